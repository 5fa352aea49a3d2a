"""`build_engines.py` and `dspark-build`: options to a BuildConfig, progress, one-line errors."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from dspark_runtime.contract import names
from dspark_runtime.contract.errors import DsparkError
from dspark_runtime.contract.manifest import Manifest, parse_manifest
from dspark_trt import config as known
from dspark_trt.build import Progress as Report
from dspark_trt.build import build
from dspark_trt.config import BuildConfig

EXAMPLES = """examples:
  # a target and its DSpark draft, for the CPU
  build_engines.py --target models/SmolLM2-135M --draft models/smollm2-dspark --output engines/smollm2

  # a cheaper draft: int8 weights, and an lm_head over its 8192 most frequent tokens (the output stays the same)
  build_engines.py --target T --draft D --output OUT --draft-quantize int8 --draft-vocab 8192

  # a smaller language model with the same vocabulary as the draft, 5 proposals a round
  build_engines.py --target Qwen2.5-7B --draft Qwen2.5-0.5B --draft-kind model --block-size 5 --output OUT

  # engines for GeForce and RTX PRO GPUs, built without one
  build_engines.py --target T --draft D --output OUT --backend tensorrt-rtx --compute-capability 8.9,12.0

  # the target alone, from a GGUF file, with int8 weights
  build_engines.py --target model.gguf --quantize int8 --output OUT
"""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; argparse would print the whole usage first."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    """Every option of a build. Values that no code supports are refused by BuildConfig, which names those that are."""
    p = _Parser(
        prog="build_engines.py",
        description="Compile a target and a draft checkpoint into an engine bundle.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    models = p.add_argument_group("models")
    models.add_argument("--target", type=Path, required=True, metavar="DIR", help="Hugging Face folder or .gguf file")
    models.add_argument(
        "--draft", type=Path, metavar="DIR", help="draft checkpoint; left out: a bundle without a draft"
    )
    models.add_argument("--output", type=Path, required=True, metavar="DIR", help="bundle folder; a bundle is replaced")
    _choice(models, "--draft-kind", "what the draft is", known.DRAFT_KINDS)

    arithmetic = p.add_argument_group("arithmetic")
    _choice(arithmetic, "--backend", "engine", known.BACKENDS)
    _choice(arithmetic, "--dtype", "type of activations and of weights that are not quantised", known.DTYPES)
    _choice(arithmetic, "--quantize", "weights of the target's linear layers", known.QUANTIZATIONS)
    _choice(arithmetic, "--draft-quantize", "weights of the draft's linear layers", known.QUANTIZATIONS)
    _choice(arithmetic, "--storage", "weights of linear layers that are not quantised", known.STORAGES)
    _choice(arithmetic, "--head-storage", "matrix of a dspark draft's sequential head", names.HEAD_STORAGES)
    _choice(arithmetic, "--dialect", "operators for attention and caches", known.DIALECTS)
    _choice(arithmetic, "--query-form", "queries of the trt dialect", known.QUERY_FORMS)

    tensorrt = p.add_argument_group("TensorRT")
    targets = "GPUs to build for, such as 8.6,12.0 (tensorrt-rtx; default: all that the library and dtype allow)"
    tensorrt.add_argument("--compute-capability", type=_list, default=(), metavar="LIST", help=targets)
    chunk = "most prompt tokens read in one step (default 256)"
    tensorrt.add_argument("--prefill-chunk", type=int, default=256, metavar="N", help=chunk)
    layers = "keep a description of every engine's layers in the bundle"
    tensorrt.add_argument("--inspect-engine", action="store_true", help=layers)

    sizes = p.add_argument_group("sizes")
    sizes.add_argument("--max-batch-size", type=int, default=8, metavar="N", help="requests at once (default 8)")
    length = "prompt + output tokens of a request (default 2048, or what the models allow)"
    sizes.add_argument("--max-seq-len", type=int, metavar="N", help=length)
    block = "proposals a round (default: what a dspark draft was trained for; 4 for model drafts)"
    sizes.add_argument("--block-size", type=int, metavar="K", help=block)
    vocab = "keep the N most frequent tokens in the lm_head of a dspark draft; the output stays the same"
    sizes.add_argument("--draft-vocab", type=int, metavar="N", help=vocab)
    text = "UTF-8 text whose token counts choose them (default: a sample that is packaged)"
    sizes.add_argument("--draft-vocab-text", type=Path, metavar="FILE", help=text)

    p.add_argument("--json", action="store_true", help="print a summary for machines")
    p.add_argument("--quiet", action="store_true", help="print nothing but errors")
    return p


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _choice(group: argparse._ArgumentGroup, flag: str, what: str, values: Sequence[str]) -> None:
    group.add_argument(
        flag, default=values[0], metavar="NAME", help=f"{what}: {', '.join(values)} (default {values[0]})"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a build; returns the exit code: 0, or 2 (130 when interrupted) with one line on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = vars(parser().parse_args(arguments))
    as_json, quiet = options.pop("json"), options.pop("quiet")
    options["compute_capabilities"] = options.pop("compute_capability")
    started = time.perf_counter()
    try:
        config = BuildConfig(**options)
        with _progress(quiet or as_json) as report:
            output = build(config, report, argv=("build_engines.py", *arguments))
        manifest = parse_manifest((output / names.MANIFEST).read_text(encoding="utf-8"), str(output))
    except DsparkError as error:
        print(f"build_engines.py: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        # The block of new_bundle has removed what was written.
        print("build_engines.py: interrupted, nothing written", file=sys.stderr)
        return 130
    seconds = time.perf_counter() - started
    if as_json:
        print(json.dumps(summary(manifest, output, seconds)))
    elif not quiet:
        for note in manifest.notes:
            print(f"note: {note}")
        print(sentence(manifest, output, seconds))
    return 0


def summary(manifest: Manifest, output: Path, seconds: float) -> dict[str, object]:
    """What `--json` prints."""
    draft = manifest.draft
    return {
        "output": str(output),
        "seconds": round(seconds, 3),
        "bytes": sum(entry.size for entry in manifest.files),
        "dialect": manifest.dialect,
        "query_form": manifest.query_form,
        "target": manifest.target.architecture,
        "quantize": manifest.target.quantize,
        "storage": manifest.target.storage,
        "draft_kind": draft.kind if draft is not None else "none",
        "block_size": draft.block_size if draft is not None else 0,
        "draft_vocab": draft.draft_vocab if draft is not None else 0,
        "head_storage": draft.head_storage if draft is not None else "float32",
        "max_batch_size": manifest.limits.max_batch_size,
        "max_seq_len": manifest.limits.max_seq_len,
        "notes": list(manifest.notes),
    }


def sentence(manifest: Manifest, output: Path, seconds: float) -> str:
    """What a person reads at the end of a build."""
    draft, limits = manifest.draft, manifest.limits
    size = sum(entry.size for entry in manifest.files) / 2**20
    with_draft = f" with a {draft.kind} draft of block {draft.block_size}" if draft is not None else " without a draft"
    return (
        f"{output}: {manifest.target.architecture}{with_draft}, {manifest.dialect} dialect, "
        f"up to {limits.max_batch_size} requests of {limits.max_seq_len} tokens; {size:.0f} MiB in {seconds:.1f} s"
    )


@contextmanager
def _progress(quiet: bool) -> Iterator[Report | None]:
    """A bar on a terminal; nothing where output is collected or unwanted."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description:<28}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("open checkpoints", total=1.0)
        yield lambda part, share: bar.update(task, description=part, completed=share)
