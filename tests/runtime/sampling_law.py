"""Many short outputs of one prompt through engine, scheduler and executor, and the exact law that they must have.

The law is worked out from the checkpoint by another implementation (transformers), over every output of a few tokens,
with the float64 references of rules and filters.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM

from dspark_runtime.bundle import open_bundle
from dspark_runtime.engine import Engine
from dspark_runtime.executor import AcceptanceOverride, open_executor
from dspark_runtime.params import SamplingParams
from dspark_runtime.request import Request, make_request
from dspark_runtime.scheduler import Scheduler
from tests.reference.filters import Sampling, filtered
from tests.reference.rules import Rules, processed
from tests.runtime.conftest import THREADS

PROMPT = (5, 4, 1)
Tokens = tuple[int, ...]


class TreeLogits:
    """Logits after PROMPT and every output of fewer than `depth` tokens, by transformers in float32."""

    def __init__(self, target: Path, depth: int) -> None:
        model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
        self.vocab: int = json.loads((target / "config.json").read_text())["vocab_size"]
        self.depth = depth
        paths = torch.tensor([PROMPT + output for output in product(range(self.vocab), repeat=depth - 1)])
        with torch.no_grad():
            rows = model(paths).logits[:, len(PROMPT) - 1 :].numpy()
        # [V] * n, [V]: logits after n tokens, the same whatever follows them.
        self._after = [
            rows[:: self.vocab ** (depth - 1 - n), n].reshape(*(self.vocab,) * n, self.vocab) for n in range(depth)
        ]

    def after(self, output: Tokens) -> NDArray[np.float32]:
        row: NDArray[np.float32] = self._after[len(output)][output]
        return row


@dataclass(frozen=True)
class Law:
    """What the target says: p(token | PROMPT, output), from its logits, filters and rules."""

    logits: TreeLogits
    sampling: Sampling
    rules: Rules = field(default_factory=Rules)
    _known: dict[Tokens, NDArray[np.float64]] = field(default_factory=dict)

    def after(self, output: Tokens) -> NDArray[np.float64]:
        """[V], of the token that follows `output`."""
        if output not in self._known:
            rules = replace(self.rules, prompt=PROMPT, output=output)
            row = processed(self.logits.after(output), rules, (), 0)
            self._known[output] = filtered(row, self.sampling).probabilities
        return self._known[output]

    def following(self, output: Tokens, length: int) -> NDArray[np.float64]:
        """[V] * length, of the next `length` tokens together."""
        vocab = self.logits.vocab
        law = np.ones((vocab,) * length)
        for n in range(length):
            for said in product(range(vocab), repeat=n):
                law[said] *= self.after(output + said).reshape(-1, *(1,) * (length - n - 1))
        return law


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished request: its output, and how many tokens it had when each of its rounds began."""

    tokens: Tokens
    starts: tuple[int, ...]


def decode(
    bundle: Path,
    params: Mapping[str, SamplingParams],
    num_samples: int,
    num_waiting: int = 512,
    override: AcceptanceOverride | None = None,
) -> tuple[dict[str, list[Sample]], list[Request]]:
    """`num_samples` outputs of PROMPT for each of `params`, requests of all of them side by side in every batch.

    Also returns every request, for what it counted.
    """
    opened = open_bundle(bundle)
    executor, _ = open_executor(opened, THREADS, override)
    manifest = opened.manifest
    model = manifest.draft is not None and manifest.draft.kind == "model"
    engine = Engine(executor, Scheduler(manifest.limits.max_batch_size, reuse=False, draft_has_caches=model))
    names = list(params)
    starts: dict[int, list[int]] = defaultdict(list)
    finished: list[Request] = []
    number, total = 0, num_samples * len(names)
    while len(finished) < total:
        while number < total and engine.num_unfinished < num_waiting:
            name = names[number % len(names)]
            request = make_request(number, None, list(PROMPT), params[name], manifest, 0.0)
            # As if the parameters had named a seed: the same numbers in every run of the test.
            request.sampling = replace(request.sampling, seed=number)
            engine.add(request)
            number += 1
        for request in engine.step():
            if request.is_finished:
                finished.append(request)
            else:
                # The tokens that a request has after a step are those its next round starts with.
                starts[request.request_id].append(len(request.output_token_ids))
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for request in finished:
        found = Sample(tuple(request.output_token_ids), tuple(starts[request.request_id]))
        samples[names[request.request_id % len(names)]].append(found)
    return samples, finished


def joint_counts(samples: Sequence[Sample], vocab: int, length: int) -> NDArray[np.int64]:
    """How often each beginning of `length` tokens came, [V] * length."""
    said = np.array([sample.tokens[:length] for sample in samples]).T
    shape = (vocab,) * length
    return np.bincount(np.ravel_multi_index(tuple(said), shape), minlength=vocab**length).reshape(shape)


def round_counts(samples: Sequence[Sample], law: Law, index: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The two tokens that follow the start of round `index` (from 0): their counts [V, V], and how often they should
    have come, given what each output was by then. Where a round starts depends on the tokens before it alone."""
    vocab = law.logits.vocab
    counts, expected = np.zeros((vocab, vocab), np.int64), np.zeros((vocab, vocab))
    visits: dict[Tokens, int] = defaultdict(int)
    for sample in samples:
        if index < len(sample.starts) and sample.starts[index] + 2 <= len(sample.tokens):
            start = sample.starts[index]
            visits[sample.tokens[:start]] += 1
            counts[sample.tokens[start : start + 2]] += 1
    for output, number in visits.items():
        expected += number * law.following(output, 2)
    return counts, expected
