"""Tiny bundles, each built once a session: one target, and a draft of every kind and quality."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dspark_runtime.llm import LLM
from dspark_trt.build import build
from dspark_trt.config import BuildConfig
from tests.tiny import make_contrary, make_dspark_draft, make_target

THREADS = 2
SIZES = {"max_batch_size": 8, "max_seq_len": 96}


def _variants(tmp: Path, target: Path) -> dict[str, Callable[[], dict[str, Any]]]:
    """Name -> options of BuildConfig. The target's text can be foreseen (bigram), by some drafts."""

    def dspark(head: str = "vanilla", **options: Any) -> Path:
        folder = tmp / f"draft-{head}-{'-'.join(map(str, options.values()))}"
        return folder if folder.exists() else make_dspark_draft(folder, target, head, **options)

    good = {"imitate": True, "block_size": 5}
    return {
        "none": lambda: {},
        "good": lambda: {"draft": dspark(**good)},
        "good-short": lambda: {"draft": dspark(**good), "block_size": 2},
        "good-one": lambda: {"draft": dspark(**good), "block_size": 1},
        "good-reduced": lambda: {"draft": dspark(**good), "draft_vocab": 200},
        "poor": lambda: {"draft": dspark("gated")},
        "poor-rnn": lambda: {"draft": dspark("rnn")},
        "no-head": lambda: {"draft": dspark("none", confidence=False)},
        "itself": lambda: {"draft": target, "draft_kind": "model", "block_size": 4},
        "contrary": lambda: {
            "draft": make_contrary(tmp / "contrary", target), "draft_kind": "model", "block_size": 3
        },
        "good-padded": lambda: {"draft": dspark(**good), "query_form": "padded"},
        "itself-padded": lambda: {"draft": target, "draft_kind": "model", "block_size": 4, "query_form": "padded"},
        "good-int8": lambda: {"draft": dspark(**good), "quantize": "int8", "draft_quantize": "int8"},
        "good-wide": lambda: {"draft": dspark(**good), "max_batch_size": 12, "max_seq_len": 32},
        "good-head-bfloat16": lambda: {"draft": dspark(**good), "head_storage": "bfloat16"},
        "good-head-int8": lambda: {"draft": dspark(**good), "head_storage": "int8"},
        "good-head-bfloat16-standard": lambda: {
            "draft": dspark(**good), "head_storage": "bfloat16", "dialect": "standard"
        },
        "good-head-int8-standard": lambda: {"draft": dspark(**good), "head_storage": "int8", "dialect": "standard"},
        "none-standard": lambda: {"dialect": "standard"},
        "good-standard": lambda: {"draft": dspark(**good), "dialect": "standard"},
        "reduced-standard": lambda: {"draft": dspark(**good), "draft_vocab": 200, "dialect": "standard"},
        "poor-standard": lambda: {"draft": dspark("gated"), "dialect": "standard"},
        "itself-standard": lambda: {
            "draft": target, "draft_kind": "model", "block_size": 4, "dialect": "standard"
        },
    }  # fmt: skip


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`bundle(name)`: the folder of a variant, built when first asked for. Read only."""
    tmp = tmp_path_factory.mktemp("bundles")
    target = make_target(
        tmp / "target", bigram=True, layer_gain=0.35, hidden_size=64, num_layers=3, max_position_embeddings=128
    )
    variants = _variants(tmp, target)

    def get(name: str) -> Path:
        output = tmp / f"bundle-{name}"
        if not output.exists():
            build(BuildConfig(**{"target": target, "output": output, **SIZES, **variants[name]()}))
        return output

    return get


@pytest.fixture(scope="session")
def shared_llm(bundle: Callable[[str], Path]) -> Iterator[Callable[[str], LLM]]:
    """`shared_llm(name)`: one engine per variant for the whole session; leave no request in it."""
    opened: dict[str, LLM] = {}

    def get(name: str) -> LLM:
        if name not in opened:
            opened[name] = LLM(bundle(name), num_threads=THREADS, prefill_chunk=16)
        return opened[name]

    yield get
    for llm in opened.values():
        llm.close()
