"""A plan to arrays, through draft and target, to a result. The only place that touches tensors of a step.

Rules of a round: docs/architecture.md. Knows slots, not requests: what tokens mean for a request is the engine's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Protocol

import numpy as np

from dspark_runtime.bundle import Bundle
from dspark_runtime.contract import names
from dspark_runtime.contract.graph_io import expected_tensors
from dspark_runtime.contract.manifest import DraftInfo, Manifest
from dspark_runtime.drafting.base import Drafter, Proposals
from dspark_runtime.drafting.dspark import DSparkDrafter
from dspark_runtime.drafting.model import ModelDrafter
from dspark_runtime.plan import PrefillPlan, RoundPlan, StepPlan, StepResult, TokenLogprobs
from dspark_runtime.profile import Profiler
from dspark_runtime.sessions.acceptance import (
    AcceptInputs,
    AcceptOutputs,
    Outcome,
    TokenHistory,
    logprob_entries,
    outcome,
)
from dspark_runtime.sessions.agreement import check_agreement
from dspark_runtime.sessions.base import Array, Binding, FloatArray, IntArray, Session, Tensor
from dspark_runtime.sessions.buffers import Buffer, allocate_caches
from dspark_runtime.sessions.machine import check_machine
from dspark_runtime.sessions.onnxruntime import OnnxRuntimeSession
from dspark_runtime.sessions.operators import (
    HEAD_FILE,
    HostDraft,
    host_accept,
    host_logprobs,
    operator_seconds,
    read_head,
)
from dspark_runtime.sessions.packing import Packer
from dspark_runtime.sessions.sampling import SamplingInputs
from dspark_runtime.sessions.slices import SlotSlices

log = logging.getLogger(__name__)

AcceptanceOverride = Callable[[RoundPlan, IntArray, IntArray], IntArray]
"""(plan, verify lengths [R], accepted [R]) -> accepted [R], each in [0, verify length]: for tests that force every
accepted count. The tokens then are the first proposals and whatever the target drew last."""


class Executor(Protocol):
    """Runs steps. Prefills and rounds may come in any order the scheduler likes."""

    @property
    def block_size(self) -> int:
        """K; 0 without a draft."""
        ...

    def run(self, plan: StepPlan) -> StepResult: ...


class BundleExecutor:
    """The engines of a bundle behind `Executor`.

    B = the bundle's max_batch_size slots are allocated whole; rounds bind the caches whole, prefill chunks the slice
    of their slot.
    """

    def __init__(
        self,
        manifest: Manifest,
        target: Session,
        draft: Session | None,
        head: dict[str, Array],
        profiler: Profiler,
        override: AcceptanceOverride | None = None,
    ) -> None:
        """head: weights of the sequential head, where the bundle's operators run on the host."""
        limits = manifest.limits
        sessions = [target] if draft is None else [target, draft]
        self.caches = allocate_caches(sessions, limits.max_batch_size, limits.cache_capacity, "bundle")
        """Every cache by input name: rows up to a request's length mean something, the others nothing."""
        self._manifest = manifest
        self._profiler = profiler
        self._override = override
        self._in_graph = manifest.operators == "graph"
        self._d2t = head.get("d2t")
        self._binding = target.bind(self.caches)
        self._packer = self._make_packer(target, limits.max_batch_size, manifest.target.min_rows, causal=True)
        prefill_packer = self._make_packer(target, 1, manifest.target.min_rows, causal=True)
        self._slices = SlotSlices(target, self.caches, prefill_packer)
        # Apart, because what is bound once as an output stays bound: here the logits of every row.
        self._scored_slices = SlotSlices(target, self.caches, prefill_packer)
        self._sampling = SamplingInputs(target)
        self._prefill_sampling = SamplingInputs(target)
        vocab, block_size = manifest.target.vocab_size, manifest.draft.block_size if manifest.draft is not None else 0
        self._history = TokenHistory(target, limits.max_batch_size, limits.cache_capacity)
        self._accept = AcceptInputs(target, self._history, vocab, block_size)
        self._prefill_accept = AcceptInputs(target, self._history, vocab, block_size)
        self._outputs = AcceptOutputs(target)
        self._min_rows = manifest.target.min_rows
        make = target.tensor
        self._logit_rows = Buffer(np.int32, make)
        self._row_offsets = Buffer(np.int32, make)
        self._no_tokens = Buffer(np.int32, make)
        self._no_logits = Buffer(np.float32, make)
        self._logits = Buffer(np.float32, make)
        self._drafter: Drafter | None = None
        self._context_packer: Packer | None = None
        if manifest.draft is not None:
            assert draft is not None
            self._drafter = self._make_drafter(manifest.draft, draft, head)

    @property
    def block_size(self) -> int:
        return self._drafter.block_size if self._drafter is not None else 0

    def run(self, plan: StepPlan) -> StepResult:
        return self._prefill(plan) if isinstance(plan, PrefillPlan) else self._round(plan)

    def _make_packer(self, session: Session, num_slots: int, min_rows: int, causal: bool) -> Packer:
        manifest = self._manifest
        return Packer(session, manifest.dialect, num_slots, manifest.limits.cache_capacity, causal, min_rows)

    def _make_drafter(self, info: DraftInfo, session: Session, head: dict[str, Array]) -> Drafter:
        num_slots = self._manifest.limits.max_batch_size
        host = None if self._in_graph else HostDraft(info, head)
        binding = session.bind(self.caches)
        # Identity until the bundle is calibrated.
        calibration = np.ones(info.block_size, np.float32)
        is_model = info.kind == "model"
        packer = self._make_packer(session, num_slots, info.engine.min_rows if is_model else 1, causal=is_model)
        if not is_model:
            self._context_packer = packer
            return DSparkDrafter(session, binding, packer, info, calibration, self._profiler, host)
        slices = SlotSlices(session, self.caches, self._make_packer(session, 1, info.engine.min_rows, causal=True))
        return ModelDrafter(session, binding, packer, slices, info, calibration, self._profiler, host)

    def _prefill(self, plan: PrefillPlan) -> StepResult:
        count = len(plan.tokens)
        if plan.clears:
            for cache in self.caches.values():
                cache[plan.slot] = 0
        if plan.copy_from is not None:
            self._copy_rows(plan.copy_from, plan.slot, plan.start)
        binding, packer = (self._scored_slices if plan.scored else self._slices).of(plan.slot)
        inputs = packer.pack(
            np.zeros(1, np.int32),
            np.array([plan.start], np.int32),
            np.array([count], np.int32),
            np.array(plan.tokens, np.int32),
        )
        self._history.write(plan.slot, plan.start, plan.tokens)
        # The anchor of the first draw is the prompt's last token; what an earlier chunk draws means nothing.
        sampling = (plan.sampling,)
        inputs |= self._prefill_sampling.fill(sampling, np.array([plan.start + count - 1], np.int32))
        # The row that draws comes first, whatever else is wanted.
        scores = bool(plan.scored)
        rows, offsets = np.array([count - 1, *range(len(plan.scored))], np.int32), np.array([0, 1], np.int32)
        inputs |= self._prefill_accept.fill((plan.slot,), sampling, offsets, self._num_rows(rows), None)
        found, logits = self._target(binding, inputs, rows, offsets, None, nullcontext(), wants_logits=scores)
        self._protect(plan.slot, plan.start + count)
        draft_length = self._drafter.prefill(plan) if self._drafter is not None else 0
        scored: tuple[TokenLogprobs, ...] = ()
        if scores:
            assert logits is not None
            wanted = np.array(plan.scored, np.int32)
            values, ids, ranks = host_logprobs(logits[1 : len(rows)], wanted, plan.num_scored)
            scored = logprob_entries(values, ids, ranks, len(wanted), plan.num_scored)
        return StepResult(
            proposed=(0,),
            verified=(0,),
            accepted=(0,),
            tokens=found.kept(),
            ends=found.reasons(),
            draft_lengths=(draft_length,),
            logprobs=found.reported(sampling),
            prompt_logprobs=scored,
        )

    def _round(self, plan: RoundPlan) -> StepResult:
        num_requests = len(plan.slots)
        proposals = None
        if self._drafter is not None and any(plan.max_verify):
            proposals = self._drafter.propose(plan)
        verify = proposals.verify_lengths if proposals is not None else np.zeros(num_requests, np.int32)
        counts = verify + 1
        slots, lengths = np.array(plan.slots, np.int32), np.array(plan.lengths, np.int32)
        row_offsets = np.zeros(num_requests + 1, np.int32)
        np.cumsum(counts, out=row_offsets[1:])
        block = np.zeros((num_requests, self.block_size + 1), np.int32)
        block[:, 0] = plan.anchors
        if proposals is not None:
            block[:, 1:] = proposals.tokens.array
        token_ids = block[np.arange(self.block_size + 1) < counts[:, None]]
        inputs = self._packer.pack(slots, lengths, counts, token_ids)
        inputs |= self._sampling.fill(plan.sampling, lengths)
        self._history.write_blocks(slots, lengths, block)
        rows = np.arange(len(token_ids), dtype=np.int32)
        timer = self._profiler.target_session()
        confidences = None if proposals is None else proposals.confidences
        inputs |= self._accept.fill(plan.slots, plan.sampling, row_offsets, self._num_rows(rows), confidences)
        found, _ = self._target(self._binding, inputs, rows, row_offsets, proposals, timer, wants_logits=False)
        if self._override is not None:
            found = _force(self._override(plan, verify, found.accepted), found, block)
        self._protect(slots, lengths + counts)
        return StepResult(
            proposed=(0,) * num_requests if proposals is None else tuple(proposals.proposed.tolist()),
            verified=tuple(verify.tolist()),
            accepted=tuple(found.accepted.tolist()),
            tokens=found.kept(),
            ends=found.reasons(),
            draft_lengths=_draft_lengths(plan) if proposals is None else proposals.draft_lengths,
            logprobs=found.reported(plan.sampling),
        )

    def _num_rows(self, rows: IntArray) -> int:
        """N, rows of logits of a step that wants those in `rows`."""
        return max(len(rows), self._min_rows)

    def _target(
        self,
        binding: Binding,
        inputs: dict[str, Tensor],
        rows: IntArray,
        row_offsets: IntArray,
        proposals: Proposals | None,
        timer: AbstractContextManager[None],
        wants_logits: bool,
    ) -> tuple[Outcome, FloatArray | None]:
        """Run the target; what was accepted, and the logits [N, V] where wanted. rows: packed rows whose logits are
        computed; row_offsets [R+1]: which of them belong to a request."""
        num_requests, num_rows = len(row_offsets) - 1, self._num_rows(rows)
        logit_rows = inputs[names.LOGIT_ROWS] = self._logit_rows.view(num_rows)
        logit_rows.array[: len(rows)] = rows
        logit_rows.array[len(rows) :] = rows[-1]
        offsets = inputs[names.ROW_OFFSETS] = self._row_offsets.view(num_requests + 1)
        offsets.array[:] = row_offsets
        draft = self._manifest.draft
        if draft is not None:
            inputs[names.DRAFT_TOKENS] = (
                self._no_tokens.view(num_requests, self.block_size) if proposals is None else proposals.tokens
            )
            logits = None if proposals is None else proposals.logits
            inputs[names.DRAFT_LOGITS] = (
                self._no_logits.view(0, self.block_size, draft.draft_vocab) if logits is None else logits
            )
        outputs: dict[str, Tensor] = {}
        if wants_logits or not self._in_graph:
            outputs[names.LOGITS] = self._logits.view(num_rows, self._manifest.target.vocab_size)
        logits_array = outputs[names.LOGITS].array if outputs else None
        if not self._in_graph:
            with timer:
                binding.run(inputs, outputs)
            assert logits_array is not None
            return host_accept(logits_array, inputs, self._d2t), logits_array
        outputs |= self._outputs.bind(num_requests, self.block_size)
        with timer:
            binding.run(inputs, outputs)
        return outcome(outputs), logits_array

    def _copy_rows(self, source: int, slot: int, rows: int) -> None:
        """The first rows of every cache, a draft's own included: what it lacks there means nothing here either."""
        for cache in self.caches.values():
            cache[slot, :, :rows] = cache[source, :, :rows]
        self._history.copy(source, slot, rows)
        self._protect(slot, rows)
        if self._drafter is not None:
            self._drafter.protect(slot, rows)

    def _protect(self, slots: int | IntArray, rows: int | IntArray) -> None:
        self._packer.protect(slots, rows)
        if self._context_packer is not None:
            self._context_packer.protect(slots, rows)


def _draft_lengths(plan: RoundPlan) -> tuple[int, ...]:
    """Rows of a draft that did not run: those before the tokens it has not read."""
    return tuple(length + 1 - len(unseen) for length, unseen in zip(plan.lengths, plan.unseen, strict=True))


def _force(forced: IntArray, found: Outcome, block: IntArray) -> Outcome:
    """The outcome with other accepted counts: the first `forced` proposals, then what the target drew last."""
    drawn = found.tokens[np.arange(len(forced)), found.accepted]
    changed = np.full_like(found.tokens, -1)
    for i, count in enumerate(forced):
        changed[i, :count] = block[i, 1 : count + 1]
        changed[i, count] = drawn[i]
    return replace(found, accepted=forced, tokens=changed)


def open_executor(
    bundle: Bundle,
    num_threads: int | None = None,
    override: AcceptanceOverride | None = None,
) -> tuple[BundleExecutor, Profiler]:
    """Load the engines of a bundle. Raises BundleError when they cannot run here."""
    manifest = bundle.manifest
    check_machine(str(bundle.folder), manifest)
    custom = manifest.dialect == "trt" or manifest.operators == "graph"
    if manifest.dialect == "standard":
        log.warning(
            "%s uses the standard dialect, whose steps cost by the capacity of the caches; the trt dialect is faster",
            bundle.folder,
        )
    target = OnnxRuntimeSession(bundle.file(manifest.target.graph), custom, num_threads)
    check_agreement(str(bundle.folder), target, expected_tensors(manifest, "target"))
    draft = None
    if manifest.draft is not None:
        draft = OnnxRuntimeSession(bundle.file(manifest.draft.engine.graph), custom, num_threads)
        check_agreement(str(bundle.folder), draft, expected_tensors(manifest, "draft"))
    head = read_head(bundle.file(HEAD_FILE)) if bundle.has(HEAD_FILE) else {}
    profiler = Profiler(operator_seconds, manifest.operators == "graph")
    return BundleExecutor(manifest, target, draft, head, profiler, override), profiler
