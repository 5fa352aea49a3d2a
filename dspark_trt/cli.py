"""`build_engines.py` and `dspark-build`: options to a BuildConfig, progress, one-line errors."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

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

  # the target alone, from a GGUF file, with int8 weights
  build_engines.py --target model.gguf --quantize int8 --output OUT
"""


def parser() -> argparse.ArgumentParser:
    """Every option of a build. Values that no code supports are refused by BuildConfig, which names those that are."""
    p = argparse.ArgumentParser(
        prog="build_engines.py",
        description="Compile a target and a draft checkpoint into an engine bundle.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--target", type=Path, required=True, metavar="DIR", help="Hugging Face folder, or a .gguf file")
    p.add_argument("--draft", type=Path, metavar="DIR", help="draft checkpoint; left out: a bundle without a draft")
    p.add_argument("--output", type=Path, required=True, metavar="DIR", help="bundle folder; a bundle there is replaced")
    p.add_argument("--backend", default="onnxruntime", metavar="NAME", help=_choices("engine", known.BACKENDS))
    p.add_argument("--draft-kind", default="auto", metavar="KIND", help=_choices("what the draft is", known.DRAFT_KINDS))
    p.add_argument("--dtype", default="float32", metavar="TYPE", help=_choices("arithmetic", known.DTYPES))
    p.add_argument("--quantize", default="none", metavar="Q", help=_choices("target weights", known.QUANTIZATIONS))
    p.add_argument("--draft-quantize", default="none", metavar="Q", help=_choices("draft weights", known.QUANTIZATIONS))
    p.add_argument("--draft-vocab", type=int, metavar="N", help="keep the N most frequent tokens in a dspark draft's lm_head")
    p.add_argument("--draft-vocab-text", type=Path, metavar="FILE", help="UTF-8 text to count tokens in; else a packaged sample")
    p.add_argument("--max-batch-size", type=int, default=8, metavar="N", help="requests at once (default 8)")
    p.add_argument("--max-seq-len", type=int, metavar="N", help="prompt + output tokens of a request (default 2048 or what the models allow)")
    p.add_argument("--block-size", type=int, metavar="K", help="proposals a round (default: the draft's own; 4 for model drafts)")
    p.add_argument("--dialect", default="auto", metavar="NAME", help=_choices("operators of the graphs", known.DIALECTS))
    p.add_argument("--query-form", default="packed", metavar="FORM", help="queries of the trt dialect: packed (default) or padded")
    p.add_argument("--json", action="store_true", help="print a summary for machines")
    p.add_argument("--quiet", action="store_true", help="print nothing but errors")
    return p


def _choices(what: str, values: Sequence[str]) -> str:
    return f"{what}: {', '.join(values)} (default {values[0]})"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a build; returns the exit code: 0, or 2 with one line on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = vars(parser().parse_args(arguments))
    as_json, quiet = options.pop("json"), options.pop("quiet")
    started = time.perf_counter()
    try:
        config = BuildConfig(**options)
        with _progress(quiet or as_json) as report:
            output = build(config, report, argv=("build_engines.py", *arguments))
        manifest = parse_manifest((output / names.MANIFEST).read_text(encoding="utf-8"), str(output))
    except DsparkError as error:
        print(f"build_engines.py: error: {error}", file=sys.stderr)
        return 2
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
        "draft_kind": draft.kind if draft is not None else "none",
        "block_size": draft.block_size if draft is not None else 0,
        "draft_vocab": draft.draft_vocab if draft is not None else 0,
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
        f"{output}: {manifest.target.architecture}{with_draft}, {manifest.dialect} dialect, up to {limits.max_batch_size} "
        f"requests of {limits.max_seq_len} tokens; {size:.0f} MiB in {seconds:.1f} s"
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
