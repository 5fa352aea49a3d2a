"""A draft that is a language model of its own: it proposes token by token, and stops where the cutoff says so.

It has its own caches. Each round it first reads the committed tokens that it has not seen (the anchor, and the last
proposal where all were accepted), and rolling back is a smaller length.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np

from dspark_runtime.contract import names
from dspark_runtime.contract.manifest import DraftInfo
from dspark_runtime.drafting.base import Proposals
from dspark_runtime.plan import PrefillPlan, RoundPlan
from dspark_runtime.profile import Profiler
from dspark_runtime.sessions.base import Binding, FloatArray, IntArray, Session, Tensor
from dspark_runtime.sessions.buffers import Buffer
from dspark_runtime.sessions.operators import HostCutoff, HostDraft
from dspark_runtime.sessions.packing import Packer
from dspark_runtime.sessions.sampling import NO_CUTOFF, CutoffInputs, SamplingInputs
from dspark_runtime.sessions.slices import SlotSlices


@dataclass(frozen=True, slots=True)
class _Step:
    """What a call of the draft gave for its R requests."""

    tokens: IntArray
    """[R]; -1 where the draft's own logits were faulty."""
    confidence_logits: FloatArray
    """[R]"""
    entropies: FloatArray
    """[R]"""
    logits: FloatArray | None
    """[R, Vd] where wanted."""


class ModelDrafter:
    """Drives the draft graph of kind `model` over its own caches."""

    def __init__(
        self,
        session: Session,
        binding: Binding,
        packer: Packer,
        slices: SlotSlices,
        info: DraftInfo,
        calibration: FloatArray,
        profiler: Profiler,
        host: HostDraft | None,
    ) -> None:
        self._binding = binding
        self._packer = packer
        self._slices = slices
        self._info = info
        self._profiler = profiler
        self._host = host
        self._cutoff = HostCutoff(calibration)
        self._sampling = SamplingInputs(session)
        self._cutoffs = CutoffInputs(session)
        self._prefill_sampling = SamplingInputs(session)
        self._no_cutoff = CutoffInputs(session).fill((NO_CUTOFF,), (0,))
        make = session.tensor
        self._offsets = [make(np.array([k], np.int32)) for k in range(info.block_size)]
        self._logit_rows = Buffer(np.int32, make)
        self._anchors = Buffer(np.int32, make)
        self._step_tokens = Buffer(np.int32, make)
        self._step_confidences = Buffer(np.float32, make)
        self._step_entropies = Buffer(np.float32, make)
        self._step_logits = Buffer(np.float32, make)
        self._tokens = Buffer(np.int32, make)
        self._confidences = Buffer(np.float32, make)
        self._logits = Buffer(np.float32, make)

    @property
    def block_size(self) -> int:
        return self._info.block_size

    def prefill(self, plan: PrefillPlan) -> int:
        end = plan.start + len(plan.tokens)
        if plan.drafts:
            binding, packer = self._slices.of(plan.slot)
            inputs = packer.pack(
                np.zeros(1, np.int32),
                np.array([plan.start], np.int32),
                np.array([len(plan.tokens)], np.int32),
                np.array(plan.tokens, np.int32),
            )
            inputs |= self._prefill_sampling.fill((plan.sampling,), np.array([end - 1], np.int32)) | self._no_cutoff
            # The proposal that this gives is not asked for: rounds start from the target's token.
            wants = plan.sampling.needs_draft_logits
            # Not timed: the profile is one of rounds.
            self._run(binding, inputs, [len(plan.tokens) - 1], [plan.tokens[-1]], 0, wants, nullcontext())
            self._packer.protect(plan.slot, end)
        return end

    def protect(self, slot: int, rows: int) -> None:
        self._packer.protect(slot, rows)

    def propose(self, plan: RoundPlan) -> Proposals:
        num_requests, block = len(plan.slots), self.block_size
        max_verify = np.array(plan.max_verify, np.int32)
        wants_logits = any(
            entry.needs_draft_logits and most > 0 for entry, most in zip(plan.sampling, plan.max_verify, strict=True)
        )
        tokens = self._tokens.view(num_requests, block)
        tokens.array[:] = 0
        logits = self._logits.view(num_requests, block, self._info.draft_vocab) if wants_logits else None
        confidence_logits = np.zeros((num_requests, block), np.float32)
        entropies = np.zeros((num_requests, block), np.float32)
        confidences = self._confidences.view(num_requests, block)
        confidences.array[:] = 0
        verify = np.zeros(num_requests, np.int32)
        proposed = np.zeros(num_requests, np.int32)
        slots = np.array(plan.slots, np.int32)
        starts = np.array([n + 1 - len(u) for n, u in zip(plan.lengths, plan.unseen, strict=True)], np.int32)
        going = np.flatnonzero(max_verify > 0)
        reading = [plan.unseen[i] for i in going]
        for step in range(block):
            counts = np.array([len(run) for run in reading], np.int32)
            sampling = tuple(plan.sampling[i] for i in going)
            anchors = np.array([plan.lengths[i] for i in going], np.int32)
            packed = np.array([token for run in reading for token in run], np.int32)
            inputs = self._packer.pack(slots[going], starts[going], counts, packed)
            inputs |= self._sampling.fill(sampling, anchors)
            inputs |= self._cutoffs.fill([plan.cutoffs[i] for i in going], max_verify[going].tolist())
            last = [run[-1] for run in reading]
            # The node writes logits where a request of this very call needs them.
            wants = any(entry.needs_draft_logits for entry in sampling)
            ends, timer = (np.cumsum(counts) - 1).tolist(), self._profiler.draft_session()
            drawn = self._run(self._binding, inputs, ends, last, step, wants, timer)
            tokens.array[going, step] = drawn.tokens
            confidence_logits[going, step] = drawn.confidence_logits
            entropies[going, step] = drawn.entropies
            if logits is not None and drawn.logits is not None:
                logits.array[going, step] = drawn.logits
            # A faulty row of logits gives no token, and the request drafts no further.
            proposed[going] = step + (drawn.tokens >= 0)
            starts[going] += counts
            self._packer.protect(slots[going], starts[going])
            most = np.minimum(max_verify[going], step + 1)
            seen = (going, slice(step + 1))
            verify[going], confidences.array[seen] = self._cutoff(
                confidence_logits[seen], entropies[seen], tokens.array[seen], inputs, most
            )
            # A request goes on while everything so far is kept and more could be.
            going = going[(verify[going] == step + 1) & (max_verify[going] > step + 1)]
            if not len(going):
                break
            reading = [(int(token),) for token in tokens.array[going, step]]
        return Proposals(
            tokens=tokens,
            logits=logits,
            proposed=proposed,
            verify_lengths=verify,
            confidences=confidences,
            draft_lengths=tuple(starts.tolist()),
        )

    def _run(
        self,
        binding: Binding,
        inputs: dict[str, Tensor],
        logit_rows: list[int],
        last_tokens: list[int],
        step: int,
        wants_logits: bool,
        timer: AbstractContextManager[None],
    ) -> _Step:
        """One call of the draft: a token for each of the R requests."""
        num_requests, vocab = len(logit_rows), self._info.draft_vocab
        rows = inputs[names.LOGIT_ROWS] = self._logit_rows.view(num_requests)
        rows.array[:] = logit_rows
        anchors = inputs[names.ANCHOR_TOKENS] = self._anchors.view(num_requests)
        anchors.array[:] = last_tokens
        inputs[names.BLOCK_OFFSET] = self._offsets[step]
        if self._host is not None:
            base = self._step_logits.view(num_requests, vocab)
            with timer:
                binding.run(inputs, {names.LOGITS: base})
            drafted = self._host(base.array.reshape(num_requests, 1, vocab), None, inputs, wants_logits)
            wanted = None if drafted.logits is None else drafted.logits[:, 0]
            return _Step(drafted.tokens[:, 0], drafted.confidence_logits[:, 0], drafted.entropies[:, 0], wanted)
        tokens = self._step_tokens.view(num_requests, 1)
        confidences = self._step_confidences.view(num_requests, 1)
        entropies = self._step_entropies.view(num_requests, 1)
        logits = self._step_logits.view(num_requests if wants_logits else 0, 1, vocab)
        outputs = {
            names.DRAFT_TOKENS: tokens,
            names.CONFIDENCE_LOGITS: confidences,
            names.ENTROPIES: entropies,
            names.DRAFT_LOGITS: logits,
        }
        with timer:
            binding.run(inputs, outputs)
        wanted = logits.array[:, 0] if wants_logits else None
        return _Step(tokens.array[:, 0], confidences.array[:, 0], entropies.array[:, 0], wanted)
