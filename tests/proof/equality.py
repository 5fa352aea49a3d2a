"""When two greedy outputs count as equal, and the record of the cases that needed the margin.

Equal means token for token, or the first difference lies where the reference's two best logits
differ by less than MARGIN: there float32 itself does not decide. Such cases are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

MARGIN = 1e-3


@dataclass
class Comparison:
    """Running total over many prompts. `near_ties` holds (prompt index, position, gap)."""

    tokens: int = 0
    near_ties: list[tuple[int, int, float]] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    def add(self, index: int, ours: Sequence[int], reference: Sequence[int], gaps: Sequence[float]) -> None:
        """Compares one prompt's output with its reference; gaps[i] is the reference's margin at token i."""
        self.tokens += len(reference)
        for position, (got, wanted) in enumerate(zip(ours, reference, strict=False)):
            if got == wanted:
                continue
            if gaps[position] < MARGIN:
                self.near_ties.append((index, position, gaps[position]))
            else:
                self.differences.append(
                    f"prompt {index}, token {position}: got {got}, wanted {wanted}, margin {gaps[position]:.4f}"
                )
            return
        if len(ours) != len(reference):
            self.differences.append(f"prompt {index}: {len(ours)} tokens, wanted {len(reference)}")

    def check(self, what: str, max_near_ties_share: float = 1e-3) -> None:
        """Prints the counts; fails on a difference, or when more than the share of tokens were near ties."""
        print(f"{what}: {self.tokens} tokens, {len(self.near_ties)} near ties {self.near_ties}")
        assert self.tokens > 0
        assert not self.differences, "; ".join(self.differences)
        assert len(self.near_ties) <= max_near_ties_share * self.tokens
