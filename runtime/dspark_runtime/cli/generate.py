"""`dspark generate`: one batch of prompts through a bundle, text to stdout, statistics to stderr."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from dspark_runtime.cli.options import add_sampling_options, add_speculation_options, idle_options, sampling_options
from dspark_runtime.cli.report import output_dict, printable, profile_dict, profile_table, statistics_line, summarise
from dspark_runtime.contract.errors import ConfigError
from dspark_runtime.llm import LLM
from dspark_runtime.outputs import RequestOutput
from dspark_runtime.params import SamplingParams

MAX_PROMPT_BYTES = 64 * 2**20
"""Of one prompt file or of stdin; far above any context length."""

EXAMPLES = """\
examples:
  dspark generate engines/smollm2 --chat --prompt "Why is the sky blue?" --temperature 0
  dspark generate engines/smollm2 --prompt "def add(a, b):" --max-tokens 64 --speculative off
  dspark generate engines/smollm2 --prompt-file question.txt --seed 7 --top-p 0.9 --json
  cat question.txt | dspark generate engines/smollm2 --prompt-file - --cutoff survival:0.3
"""


class _Prompt(argparse.Action):
    """Collects --prompt and --prompt-file in the order in which they were given."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        kind = "file" if option_string == "--prompt-file" else "text"
        namespace.prompts = [*(namespace.prompts or []), (kind, values)]


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "generate",
        help="generate text from prompts",
        description="Generate text. Several prompts run as one batch. The text goes to stdout, statistics to stderr.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    parser.set_defaults(run=run, trace=None)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Everything that says what to generate and how."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="folder made by dspark-build")
    prompts = parser.add_argument_group("prompts")
    prompts.add_argument("--prompt", dest="prompts", action=_Prompt, metavar="TEXT", help="may be repeated")
    prompts.add_argument(
        "--prompt-file",
        dest="prompts",
        action=_Prompt,
        metavar="FILE",
        help="UTF-8 text, less one newline at its end; - reads stdin; may be repeated",
    )
    prompts.add_argument(
        "--chat", action="store_true", help="wrap each prompt in the chat template, as the user's message"
    )
    prompts.add_argument("--system", metavar="TEXT", help="system message (implies --chat)")
    add_sampling_options(parser)
    add_speculation_options(parser)
    output = parser.add_argument_group("output and machine")
    output.add_argument(
        "--stream",
        action=argparse.BooleanOptionalAction,
        help="print while generating (default: on a terminal, one prompt)",
    )
    output.add_argument("--json", action="store_true", help="print one JSON object with outputs and statistics")
    output.add_argument("--profile", action="store_true", help="show where the time went")
    output.add_argument("--threads", type=int, metavar="N", help="of the engines; default: one per core")


def run(args: argparse.Namespace) -> int:
    """Raises DsparkError for what the user can mend; main() turns it into one line."""
    if args.stream and args.json:
        raise ConfigError("generate: --stream and --json exclude each other")
    for option in ("system", "stop", "bad_word"):
        for text in _listed(getattr(args, option)):
            check_text(f"--{option.replace('_', '-')}", text)
    prompts = read_prompts(args.prompts)
    if args.stream and len(prompts) > 1:
        raise ConfigError(f"generate: --stream takes one prompt, {len(prompts)} were given")
    options = sampling_options(args)
    several = len(prompts) > 1 or options.get("n", 1) > 1
    SamplingParams(**options)  # a bad value is reported before an engine is loaded
    with LLM(args.bundle, num_threads=args.threads, trace=args.trace) as llm:
        params = dataclasses.replace(llm.default_sampling_params, **options)
        for note in idle_options(args, params, llm.manifest.draft is not None):
            print(f"dspark: note: {note}", file=sys.stderr)
        if args.chat or args.system is not None:
            prompts = [llm.render_chat(conversation(prompt, args.system)) for prompt in prompts]
        start = time.perf_counter()
        stream = args.stream if args.stream is not None else sys.stdout.isatty() and not several and not args.json
        outputs = [_stream(llm, prompts[0], params)] if stream else llm.generate(prompts, params)
        seconds = time.perf_counter() - start
        if args.json:
            _print_json(args, outputs, seconds, llm)
        elif not stream:
            _print_text(outputs)
        if not args.json:
            console = Console(stderr=True, highlight=False)
            console.print(statistics_line(outputs, seconds), markup=False, soft_wrap=True)
            if args.profile:
                console.print(profile_table(llm.profile))
    return 0


def conversation(prompt: str, system: str | None) -> list[dict[str, str]]:
    messages = [] if system is None else [{"role": "system", "content": system}]
    return [*messages, {"role": "user", "content": prompt}]


def read_prompts(given: Sequence[tuple[str, str]] | None) -> list[str]:
    """Texts in the order given. ConfigError where there is none, or a file cannot be read as UTF-8."""
    if not given:
        raise ConfigError("generate: no prompt; give --prompt TEXT or --prompt-file FILE (- reads stdin)")
    return [check_text("--prompt", value) if kind == "text" else _read_text(value) for kind, value in given]


def check_text(option: str, text: str) -> str:
    """`text` as given; ConfigError where the shell passed bytes that are no UTF-8 (Python keeps them as surrogates)."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(f"generate: {option} is not UTF-8 text (character {error.start})") from None
    return text


def _listed(value: str | list[str] | None) -> list[str]:
    return [] if value is None else [value] if isinstance(value, str) else value


def _read_text(name: str) -> str:
    try:
        if name == "-":
            if sys.stdin is None:
                raise ConfigError("generate: --prompt-file - reads stdin, which is closed")
            data = sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(MAX_PROMPT_BYTES + 1)
        text = data.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"generate: cannot read --prompt-file {name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"generate: --prompt-file {name} is not UTF-8 text (byte {error.start})") from None
    if len(data) > MAX_PROMPT_BYTES:
        raise ConfigError(f"generate: --prompt-file {name} is larger than {MAX_PROMPT_BYTES} bytes")
    # Editors and echo end a file with a newline that its author does not see as part of the text.
    return text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")


def _stream(llm: LLM, prompt: Any, params: SamplingParams) -> RequestOutput:
    """Prints the text as it comes; returns the finished request."""
    stream = llm.stream(prompt, params)
    for delta in stream:
        sys.stdout.write(printable(delta, sys.stdout))
        sys.stdout.flush()
    sys.stdout.write("\n")
    return stream.output


def _print_text(outputs: Sequence[RequestOutput]) -> None:
    for number, output in enumerate(outputs, 1):
        for answer in output.outputs:
            if len(outputs) > 1 or len(output.outputs) > 1:
                sample = f".{answer.index + 1}" if len(output.outputs) > 1 else ""
                sys.stdout.write(f"--- {number}{sample}\n")
            sys.stdout.write(printable(answer.text, sys.stdout) + "\n")


def _print_json(args: argparse.Namespace, outputs: Sequence[RequestOutput], seconds: float, llm: LLM) -> None:
    report: dict[str, Any] = {
        "bundle": str(args.bundle),
        "outputs": [output_dict(output) for output in outputs],
        "statistics": summarise(outputs, seconds),
    }
    if args.profile:
        report["profile"] = profile_dict(llm.profile)
    json.dump(report, sys.stdout)
    sys.stdout.write("\n")
