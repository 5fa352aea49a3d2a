"""A scripted model behind the executor's interface: outputs are known, and every plan is checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dspark_runtime.contract.manifest import DraftInfo, EngineInfo, Limits, Manifest
from dspark_runtime.contract.names import FORMAT_VERSION
from dspark_runtime.params import SamplingParams
from dspark_runtime.plan import PrefillPlan, RoundPlan, StepPlan, StepResult
from dspark_runtime.request import Request, make_request

VOCAB = 1000


def engine_info(graph: str) -> EngineInfo:
    return EngineInfo(
        graph=graph,
        architecture="llama",
        vocab_size=VOCAB,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        dtype="float32",
        quantize="none",
        min_rows=1,
    )


def make_manifest(
    block_size: int = 4, max_batch_size: int = 4, max_seq_len: int = 64, eos: Sequence[int] = (2,), signal: str = "head"
) -> Manifest:
    """A manifest with a dspark draft of `block_size`, or without a draft for 0."""
    draft = DraftInfo(
        kind="dspark",
        engine=engine_info("draft.onnx"),
        block_size=block_size,
        pass_size=block_size,
        draft_vocab=VOCAB,
        mask_token_id=3,
        signal=signal,
        head_type="none",
        markov_rank=0,
    )
    return Manifest(
        format_version=FORMAT_VERSION,
        backend="onnxruntime",
        dialect="trt",
        query_form="packed",
        operators="graph",
        limits=Limits(
            max_batch_size=max_batch_size, max_seq_len=max_seq_len, cache_capacity=max_seq_len + block_size + 1
        ),
        target=engine_info("target.onnx"),
        draft=draft if block_size else None,
        eos_token_ids=tuple(eos),
        bos_token_id=None,
        files=(),
        versions={},
        argv=(),
        created="2026-01-01T00:00:00+00:00",
    )


def make(manifest: Manifest, prompt: Sequence[int], request_id: int = 0, **params: object) -> Request:
    return make_request(request_id, None, list(prompt), SamplingParams(**params), manifest, 0.0)  # type: ignore[arg-type]


FAULT = -1
"""In a script: the model's logits are no numbers there."""


def until_fault(tokens: Sequence[int], kept: int) -> tuple[tuple[int, ...], str]:
    """The tokens before the first FAULT, and why the round ended."""
    if FAULT in tokens:
        return tuple(tokens[: list(tokens).index(FAULT)]), "nan"
    return tuple(tokens), "bonus" if kept else "rejected"


class ScriptedExecutor:
    """Answers `prompt` with `scripts[prompt]`, whatever the plans; accepts `accepts(position, limit)` proposals.

    Checks on the way that chunks and rounds continue exactly where the last step of the slot ended.
    """

    def __init__(
        self,
        scripts: Mapping[tuple[int, ...], Sequence[int]],
        block_size: int = 4,
        accepts: Callable[[int, int], int] = lambda position, limit: limit,
    ) -> None:
        self._scripts = {tuple(prompt): list(script) for prompt, script in scripts.items()}
        self._accepts = accepts
        self._block_size = block_size
        self._rows: dict[int, list[int]] = {}
        self.plans: list[StepPlan] = []

    @property
    def block_size(self) -> int:
        return self._block_size

    def run(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        return self._prefill(plan) if isinstance(plan, PrefillPlan) else self._round(plan)

    def _prefill(self, plan: PrefillPlan) -> StepResult:
        if plan.copy_from is not None:
            self._rows[plan.slot] = self._rows[plan.copy_from][: plan.start]
        # What a slot holds is shortened by a plan that starts before its end, never skipped over.
        rows = self._rows.setdefault(plan.slot, [])
        assert plan.start <= len(rows)
        del rows[plan.start :]
        rows.extend(plan.tokens)
        first = self._next(rows)[0] if plan.draws else 999
        tokens, end = until_fault((first,), 0)
        return StepResult(
            proposed=(0,), verified=(0,), accepted=(0,), tokens=(tokens,), ends=(end,), draft_lengths=(len(rows),)
        )

    def _next(self, rows: Sequence[int]) -> list[int]:
        """What the script of the prompt that `rows` begin with says after them."""
        for prompt, script in self._scripts.items():
            whole = [*prompt, *script]
            if len(rows) >= len(prompt) and whole[: len(rows)] == list(rows):
                return whole[len(rows) :]
        raise AssertionError(f"no script begins with {list(rows)}")

    def _round(self, plan: RoundPlan) -> StepResult:
        assert list(plan.slots) == sorted(plan.slots)
        proposed, verified, accepted, tokens, ends = [], [], [], [], []
        for slot, length, anchor, most in zip(plan.slots, plan.lengths, plan.anchors, plan.max_verify, strict=True):
            rows = self._rows[slot]
            assert length <= len(rows)
            del rows[length:]
            script = self._next(rows)
            assert script[0] == anchor
            assert 0 <= most <= self._block_size
            kept = min(most, self._accepts(length, most))
            rows.extend(script[: kept + 1])
            proposed.append(self._block_size if most else 0)
            verified.append(most)
            given, end = until_fault(script[1 : 2 + kept], kept)
            accepted.append(min(kept, len(given)))
            tokens.append(given)
            ends.append(end)
        return StepResult(
            proposed=tuple(proposed),
            verified=tuple(verified),
            accepted=tuple(accepted),
            tokens=tuple(tokens),
            ends=tuple(ends),
            draft_lengths=tuple(length + 1 for length in plan.lengths),
        )
