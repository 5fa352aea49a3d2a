"""The cutoff of a request from round to round: warm-up and the adaptive controller (dspark.md 4.2). Pure, plain data.

What a round may do is decided from completed rounds alone: a controller that looked at the values of the round it
decides about would skew what rejection emits (docs/lossless.md).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from dspark_runtime.cutoff import Adaptive
from dspark_runtime.plan import RoundCutoff

TAU_STEP = 0.02
DECISIONS_PER_WINDOW = 10
"""A window is looked at so often while it passes: a step shows in the rate only rounds later."""


@dataclass(slots=True, kw_only=True)
class CutoffControl:
    """What one request sends to the target: `cutoff` and `max_len` for its next round."""

    cutoff: RoundCutoff
    max_len: int
    """Most proposals of a round, 0..K."""
    warmup_tokens: int = 0
    """Output tokens before the first proposal."""
    adaptive: Adaptive | None = None
    """Its bounds must lie in what the policy and the block take."""
    _window: deque[tuple[int, int]] = field(default_factory=deque)
    _accepted: int = 0
    _verified: int = 0
    _since: int = 0

    def __post_init__(self) -> None:
        if self.adaptive is not None:
            self._move(0.0)

    def limit(self, num_output: int) -> int:
        """Most proposals of the next round, for a request with that many output tokens."""
        return 0 if num_output < self.warmup_tokens else self.max_len

    @property
    def rate(self) -> float | None:
        """Accepted share of the proposals verified in the window; None before any."""
        return self._accepted / self._verified if self._verified else None

    def completed(self, verified: int, accepted: int) -> None:
        """Take note of a completed round, and move what is to be moved. Rounds that verified nothing say nothing."""
        if self.adaptive is None or not verified:
            return
        self._window.append((verified, accepted))
        self._verified += verified
        self._accepted += accepted
        if len(self._window) > self.adaptive.window:
            old_verified, old_accepted = self._window.popleft()
            self._verified -= old_verified
            self._accepted -= old_accepted
        self._since += 1
        if self._since >= max(1, self.adaptive.window // DECISIONS_PER_WINDOW):
            self._since = 0
            rate = self._accepted / self._verified
            self._move(0.0 if rate == self.adaptive.target else 1.0 if rate < self.adaptive.target else -1.0)

    def _move(self, stricter: float) -> None:
        """One step towards fewer (1) or more (-1) proposals, or none (0), within the bounds."""
        adaptive = self.adaptive
        assert adaptive is not None
        if adaptive.moves == "max_len":
            self.max_len = int(min(max(self.max_len - stricter, adaptive.low), adaptive.high))
            return
        tau = min(max(self.cutoff.params[0] + TAU_STEP * stricter, adaptive.low), adaptive.high)
        if tau != self.cutoff.params[0]:
            # Another object only where something changed: arrays are filled again for changed ones.
            self.cutoff = replace(self.cutoff, params=(tau, *self.cutoff.params[1:]))
