"""An engine over a tiny bundle, driven step by step: what it plans, what its slots hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dspark_runtime import SamplingParams
from dspark_runtime.bundle import open_bundle
from dspark_runtime.engine import Engine
from dspark_runtime.executor import BundleExecutor, open_executor
from dspark_runtime.plan import PrefillPlan, StepPlan, StepResult
from dspark_runtime.request import Request, make_request
from dspark_runtime.scheduler import Scheduler
from dspark_runtime.waiting import MAX_OVERTAKES
from tests.runtime.conftest import THREADS


class Recorder:
    """An executor that keeps its plans."""

    def __init__(self, inner: BundleExecutor) -> None:
        self.inner = inner
        self.plans: list[StepPlan] = []
        self.fails = False
        """Whether the next step raises instead."""

    @property
    def block_size(self) -> int:
        return self.inner.block_size

    def run(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        if self.fails:
            self.fails = False
            raise MemoryError("no room")
        return self.inner.run(plan)


class Bench:
    """An engine over a bundle, driven by hand."""

    def __init__(
        self,
        folder: Path,
        num_slots: int = 3,
        reuse: bool = True,
        chunk: int = 16,
        max_overtakes: int = MAX_OVERTAKES,
        executor: BundleExecutor | None = None,
    ) -> None:
        """executor: one to go on with, whatever its caches hold; None: a new one."""
        bundle = open_bundle(folder)
        self.manifest = bundle.manifest
        self.executor = Recorder(executor if executor is not None else open_executor(bundle, THREADS)[0])
        self.draft_has_caches = self.manifest.draft is not None and self.manifest.draft.kind == "model"
        self.scheduler = Scheduler(
            num_slots,
            chunk,
            reuse=reuse,
            draft_has_caches=self.draft_has_caches,
            max_overtakes=max_overtakes,
        )
        self.engine = Engine(self.executor, self.scheduler)
        self._next = 0

    def add(
        self, tokens: list[int], params: SamplingParams, priority: int = 0, cache_salt: str | None = None
    ) -> Request:
        request = make_request(
            self._next, None, tokens, params, self.manifest, self.engine.clock(), priority, cache_salt
        )
        self._next += 1
        self.engine.add(request)
        return request

    def run(self) -> None:
        while self.engine.num_unfinished:
            self.engine.step()

    def prefills(self) -> list[PrefillPlan]:
        return [plan for plan in self.executor.plans if isinstance(plan, PrefillPlan)]

    def rows(self, slot: int) -> dict[str, np.ndarray]:
        """What a slot holds that others may take over, by cache."""
        held = self.scheduler.slots.contents(slot)
        assert held is not None
        return {
            name: cache[slot, :, : held.draft_computed if name.startswith("draft_") else held.computed].copy()
            for name, cache in self.executor.inner.caches.items()
        }
