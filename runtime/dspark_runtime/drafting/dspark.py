"""A DSpark draft: one pass over the block [anchor, MASK ...] of every request, head and cutoff in its graph.

Its context caches are written by the target's graph, so it has nothing to read at prefill and nothing to roll back.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from dspark_runtime.contract import names
from dspark_runtime.contract.manifest import DraftInfo
from dspark_runtime.drafting.base import Proposals
from dspark_runtime.plan import PrefillPlan, RoundPlan
from dspark_runtime.profile import Profiler
from dspark_runtime.sessions.base import Array, Binding, FloatArray, IntArray, Session, Tensor
from dspark_runtime.sessions.buffers import Buffer
from dspark_runtime.sessions.operators import HostCutoff, HostDraft
from dspark_runtime.sessions.packing import Packer
from dspark_runtime.sessions.sampling import CutoffInputs, SamplingInputs


@dataclass(frozen=True, slots=True)
class _Pass:
    """What a run gave for the R requests that draft."""

    tokens: Tensor
    """[R, K]; -1 from where the draft's own logits were faulty."""
    verify_lengths: IntArray
    confidences: Tensor
    """[R, K]"""
    logits: Tensor | None
    """[R, K, Vd] where needed."""

    @property
    def proposed(self) -> IntArray:
        """[R], tokens that exist."""
        counts: IntArray = (self.tokens.array >= 0).sum(axis=1, dtype=np.int32)
        return counts


class DSparkDrafter:
    """Drives the draft graph of kind `dspark` over the context caches that the target fills."""

    def __init__(
        self,
        session: Session,
        binding: Binding,
        packer: Packer,
        info: DraftInfo,
        calibration: FloatArray,
        profiler: Profiler,
        host: HostDraft | None,
    ) -> None:
        """calibration: [K] temperatures. host: calls the operators where the graph ends at logits, else None."""
        assert info.mask_token_id is not None
        self._binding = binding
        self._packer = packer
        self._info = info
        self._profiler = profiler
        self._host = host
        self._cutoff = HostCutoff(calibration)
        self._sampling = SamplingInputs(session)
        self._cutoffs = CutoffInputs(session)
        make = session.tensor
        self._block_offset = make(np.zeros(1, np.int32))
        self._calibration = calibration
        self._calibration_rows = Buffer(np.float32, make)
        self._anchors = Buffer(np.int32, make)
        self._tokens = Buffer(np.int32, make)
        self._lengths = Buffer(np.int32, make)
        self._confidences = Buffer(np.float32, make)
        self._logits = Buffer(np.float32, make)
        self._hidden = Buffer(np.float32, make)
        self._spread_tokens = Buffer(np.int32, make)
        self._spread_confidences = Buffer(np.float32, make)
        self._spread_logits = Buffer(np.float32, make)
        self._host_logits = Buffer(np.float32, make)
        self._blocks = np.zeros((0, info.pass_size), np.int32)

    @property
    def block_size(self) -> int:
        return self._info.block_size

    def prefill(self, plan: PrefillPlan) -> int:
        return plan.start + len(plan.tokens)

    def protect(self, slot: int, rows: int) -> None:
        self._packer.protect(slot, rows)

    def propose(self, plan: RoundPlan) -> Proposals:
        active = [i for i, most in enumerate(plan.max_verify) if most > 0]
        assert active
        everybody = len(active) == len(plan.slots)
        drafted = self._pass(plan if everybody else _part(plan, active))
        # The context lives in the target's pass: everything up to and with the anchor will have been read.
        read = tuple(length + 1 for length in plan.lengths)
        if everybody:
            return Proposals(
                tokens=drafted.tokens,
                logits=drafted.logits,
                proposed=drafted.proposed,
                verify_lengths=drafted.verify_lengths,
                confidences=drafted.confidences,
                draft_lengths=read,
            )
        num_requests = len(plan.slots)
        proposed = np.zeros(num_requests, np.int32)
        proposed[active] = drafted.proposed
        all_lengths = np.zeros(num_requests, np.int32)
        all_lengths[active] = drafted.verify_lengths
        logits = drafted.logits
        return Proposals(
            tokens=_spread(drafted.tokens, active, num_requests, self._spread_tokens),
            logits=None if logits is None else _spread(logits, active, num_requests, self._spread_logits),
            proposed=proposed,
            verify_lengths=all_lengths,
            confidences=_spread(drafted.confidences, active, num_requests, self._spread_confidences),
            draft_lengths=read,
        )

    def _pass(self, plan: RoundPlan) -> _Pass:
        """One run of the draft; all R requests draft."""
        slots, lengths = np.array(plan.slots, np.int32), np.array(plan.lengths, np.int32)
        wants_logits = any(entry.needs_draft_logits for entry in plan.sampling)
        info, num_requests = self._info, len(slots)
        if len(self._blocks) < num_requests:
            self._blocks = np.full((num_requests, info.pass_size), info.mask_token_id, np.int32)
        blocks = self._blocks[:num_requests]
        blocks[:, 0] = plan.anchors
        counts = np.full(num_requests, info.pass_size, np.int32)
        inputs = self._packer.pack(slots, lengths, counts, blocks.reshape(-1))
        inputs |= self._sampling.fill(plan.sampling, lengths)
        anchor_tensor = inputs[names.ANCHOR_TOKENS] = self._anchors.view(num_requests)
        anchor_tensor.array[:] = plan.anchors
        inputs |= self._cutoffs.fill(plan.cutoffs, plan.max_verify)
        inputs[names.BLOCK_OFFSET] = self._block_offset
        rows = inputs[names.CALIBRATION_TEMPERATURES] = self._calibration_rows.view(num_requests, info.block_size)
        rows.array[:] = self._calibration
        if self._host is not None:
            return self._pass_on_host(self._host, inputs, num_requests, wants_logits)
        tokens = self._tokens.view(num_requests, info.block_size)
        kept = self._lengths.view(num_requests)
        confidences = self._confidences.view(num_requests, info.block_size)
        # Always bound, so that a binding of an earlier round cannot have the wrong shape.
        logits = self._logits.view(num_requests if wants_logits else 0, info.block_size, info.draft_vocab)
        outputs = {
            names.DRAFT_TOKENS: tokens,
            names.VERIFY_LENGTHS: kept,
            names.CONFIDENCES: confidences,
            names.DRAFT_LOGITS: logits,
        }
        with self._profiler.draft_session():
            self._binding.run(inputs, outputs)
        return _Pass(tokens, kept.array, confidences, logits if wants_logits else None)

    def _pass_on_host(self, host: HostDraft, inputs: dict[str, Tensor], num_requests: int, wants_logits: bool) -> _Pass:
        info = self._info
        shape = (num_requests, info.block_size)
        base = self._logits.view(num_requests * info.block_size, info.draft_vocab)
        hidden = self._hidden.view(num_requests * info.block_size, info.engine.hidden_size)
        with self._profiler.draft_session():
            self._binding.run(inputs, {names.LOGITS: base, names.HIDDEN: hidden})
        drafted = host(
            base.array.reshape(*shape, info.draft_vocab),
            hidden.array.reshape(*shape, info.engine.hidden_size),
            inputs,
            wants_logits,
        )
        tokens = self._tokens.view(*shape)
        tokens.array[:] = drafted.tokens
        logits = None
        if drafted.logits is not None:
            logits = self._host_logits.view(*shape, info.draft_vocab)
            logits.array[:] = drafted.logits
        kept, values = self._cutoff(
            drafted.confidence_logits, drafted.entropies, drafted.tokens, inputs, inputs[names.MAX_VERIFY].array
        )
        confidences = self._confidences.view(*shape)
        confidences.array[:] = values
        return _Pass(tokens, kept, confidences, logits)


def _part(plan: RoundPlan, indices: list[int]) -> RoundPlan:
    """The plan of some of its requests."""
    return RoundPlan(**{entry.name: tuple(getattr(plan, entry.name)[i] for i in indices) for entry in fields(plan)})


def _spread(tensor: Tensor, active: list[int], num_requests: int, buffer: Buffer) -> Tensor:
    """Rows of the drafting requests among all requests of the round; the others hold zeros."""
    spread = buffer.view(num_requests, *tensor.array.shape[1:])
    array: Array = spread.array
    array[:] = 0
    array[active] = tensor.array
    return spread
