"""`build_engines.py` and `dspark-build`: options to a BuildConfig, progress, one-line errors.

Exit codes: 0 built; 2 what the user can mend (one line on stderr); 130 interrupted, 143 and 129 ended by SIGTERM and
SIGHUP, nothing left behind. A traceback means our bug.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from dspark_runtime.contract import names
from dspark_runtime.contract.errors import DsparkError, one_line
from dspark_runtime.contract.manifest import Manifest, parse_manifest
from dspark_trt import config as known
from dspark_trt.build import Progress as Report
from dspark_trt.build import build
from dspark_trt.config import BuildConfig

EXAMPLES = """examples:
  # a target and its DSpark draft, for the CPU
  %(prog)s --target models/SmolLM2-135M --draft models/smollm2-dspark --output engines/smollm2

  # a cheaper draft: int8 weights, and an lm_head over its 8192 most frequent tokens (the output stays the same)
  %(prog)s --target T --draft D --output OUT --draft-quantize int8 --draft-vocab 8192

  # a smaller language model with the same vocabulary as the draft, 5 proposals a round
  %(prog)s --target Qwen2.5-7B --draft Qwen2.5-0.5B --draft-kind model --block-size 5 --output OUT

  # engines for GeForce and RTX PRO GPUs, built without one
  %(prog)s --target T --draft D --output OUT --backend tensorrt-rtx --compute-capability 8.9,12.0

  # the target alone, from a GGUF file, with int8 weights
  %(prog)s --target model.gguf --quantize int8 --output OUT
"""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; argparse would print the whole usage first."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {one_line(message)}; see {self.prog} --help\n")


class _Ended(BaseException):
    """The system asked the process to end; like KeyboardInterrupt nothing may catch it on its way out."""

    def __init__(self, signum: int) -> None:
        self.signum = signum


def parser(prog: str = "dspark-build") -> argparse.ArgumentParser:
    """Every option of a build. Values that no code supports are refused by BuildConfig, which names those that are.

    prog: the name that the user called.
    """
    p = _Parser(
        prog=prog,
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


def main(argv: Sequence[str] | None = None, prog: str = "dspark-build") -> int:
    """Run a build; returns the exit code. argv: without the program's name, None for that of the process.

    Whatever ends a build, one line on stderr says why, and the block of new_bundle has removed what was written.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        with _end_like_an_interrupt():
            return _run(arguments, prog)
    except DsparkError as error:
        print(f"{prog}: error: {one_line(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{prog}: interrupted, nothing written", file=sys.stderr)
        return 130
    except _Ended as ended:
        print(f"{prog}: ended by {signal.Signals(ended.signum).name}, nothing written", file=sys.stderr)
        return 128 + ended.signum
    except BrokenPipeError:  # the bundle is written; who should read about it went away
        _forget_output()
        return 141
    except MemoryError as error:
        why = one_line(str(error)) or "the system gives no more"
        print(f"{prog}: error: out of memory ({why}); free some, or build on a larger machine", file=sys.stderr)
        return 2
    except OSError as error:  # a full disk behind stdout
        _forget_output()
        print(f"{prog}: error: {one_line(error.strerror or str(error))}; check names and room", file=sys.stderr)
        return 2


def _forget_output() -> None:
    """The interpreter flushes stdout once more on its way out; give it somewhere to write."""
    with suppress(OSError, ValueError):  # a stdout without a file has nothing to forget
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _end_like_an_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind the build instead of cutting it off; what is ignored (nohup) stays ignored."""

    def end(signum: int, frame: FrameType | None) -> None:
        signal.signal(signum, signal.SIG_IGN)  # once is enough: a second one must not cut the tidying short
        raise _Ended(signum)

    is_main = threading.current_thread() is threading.main_thread()  # others may not set handlers
    caught = [s for s in (signal.SIGTERM, signal.SIGHUP) if is_main and signal.getsignal(s) is signal.SIG_DFL]
    for signum in caught:
        signal.signal(signum, end)
    try:
        yield
    finally:
        for signum in caught:
            signal.signal(signum, signal.SIG_DFL)


def _run(arguments: Sequence[str], prog: str) -> int:
    options = vars(parser(prog).parse_args(arguments))
    as_json, quiet = options.pop("json"), options.pop("quiet")
    options["compute_capabilities"] = options.pop("compute_capability")
    started = time.perf_counter()
    config = BuildConfig(**options)
    with _progress(quiet or as_json) as report:
        output = build(config, report, argv=(prog, *arguments))
    manifest = parse_manifest((output / names.MANIFEST).read_text(encoding="utf-8"), str(output))
    seconds = time.perf_counter() - started
    if as_json:
        print(json.dumps(summary(manifest, output, seconds)), flush=True)
    elif not quiet:
        lines = [f"note: {note}" for note in manifest.notes] + [sentence(manifest, output, seconds)]
        print("\n".join(map(one_line, lines)), flush=True)
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
