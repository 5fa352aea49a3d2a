"""`dspark inspect`: what a bundle holds, what it was built for, and whether its files are intact."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dspark_runtime.bundle import open_bundle
from dspark_runtime.cli.inspect_engines import compiled_tables
from dspark_runtime.cli.report import escape_controls
from dspark_runtime.contract.manifest import EngineInfo, Manifest

EXAMPLES = """\
examples:
  dspark inspect engines/smollm2
  dspark inspect engines/smollm2 --verify
  dspark inspect engines/smollm2 --json
"""


SIGNALS = {"head": "from the draft's confidence head", "top1": "the draft's largest probability"}


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "inspect",
        help="show what a bundle holds",
        description="Show the models, limits and files of an engine bundle.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="folder made by dspark-build")
    parser.add_argument(
        "--verify",
        action="store_true",
        help="read every file and compare its SHA-256 (proves that nothing changed, not who made it)",
    )
    parser.add_argument("--json", action="store_true", help="print the manifest as one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Opens without starting an engine; BundleError where the folder is no usable bundle."""
    bundle = open_bundle(args.bundle, verify=args.verify)
    if args.json:
        json.dump(
            {"bundle": str(args.bundle), "verified": args.verify, **dataclasses.asdict(bundle.manifest)}, sys.stdout
        )
        sys.stdout.write("\n")
        return 0
    console = Console(highlight=False)
    for table in tables(bundle.manifest):
        console.print(table)
    verdict = "all hashes match" if args.verify else "sizes match; hashes not read (use --verify)"
    console.print(Text(f"{len(bundle.manifest.files)} files, {verdict}"))
    return 0


def tables(manifest: Manifest) -> list[Table]:
    """The bundle, its engines and its files. Cells are plain text: a manifest cannot style the terminal."""
    return [_overview(manifest), _engines(manifest), *compiled_tables(manifest), _files(manifest)]


def _overview(manifest: Manifest) -> Table:
    limits, draft = manifest.limits, manifest.draft
    form = f"{manifest.dialect} dialect, {manifest.query_form} queries, operators in the {manifest.operators}"
    rows = [
        ("format", ".".join(map(str, manifest.format_version))),
        ("backend", f"{manifest.backend}, {form}"),
        ("limits", f"{limits.max_batch_size} requests at once, {limits.max_seq_len} tokens each"),
        ("caches", _capacity(manifest)),
        ("stop tokens", ", ".join(map(str, manifest.eos_token_ids)) or "none"),
    ]
    if draft is None:
        rows.append(("draft", "none: plain decoding only"))
    else:
        head = "no head" if draft.head_type == "none" else f"{draft.head_type} head of rank {draft.markov_rank}"
        head += "" if draft.head_storage == "float32" else f" in {draft.head_storage}"
        vocab = f"vocabulary of {draft.draft_vocab} out of {manifest.target.vocab_size} tokens"
        rows.append(("draft", f"{draft.kind}, proposes {draft.block_size} tokens a round, {head}, {vocab}"))
        rows.append(("confidence", SIGNALS[draft.signal]))
    versions = ", ".join(f"{name} {version}" for name, version in sorted(manifest.versions.items()))
    rows.append(("built", f"{manifest.created} with {versions}"))
    rows += [("note", note) for note in manifest.notes]
    table = Table(show_header=False, title="bundle", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name, value in rows:
        table.add_row(name, _cell(value))
    return table


def _capacity(manifest: Manifest) -> str:
    """Why a cache has more rows than a request may have tokens."""
    limits, draft = manifest.limits, manifest.draft
    block = max(draft.block_size, draft.pass_size) if draft is not None else 0
    parts = [f"{limits.max_seq_len} for the tokens"]
    if block:
        parts.append(f"{block} for a round's proposals behind the last token")
    if spare := limits.cache_capacity - limits.max_seq_len - block:
        parts.append(f"{spare} for padding of a step")
    return f"{limits.cache_capacity} rows a request: {', '.join(parts)}"


def _engines(manifest: Manifest) -> Table:
    table = Table(title="engines", title_justify="left")
    for heading in ("engine", "model", "vocabulary", "hidden", "layers", "heads", "weights"):
        table.add_column(heading, justify="right" if heading in ("vocabulary", "hidden", "layers") else "left")
    engines: list[tuple[str, EngineInfo]] = [("target", manifest.target)]
    if manifest.draft is not None:
        engines.append(("draft", manifest.draft.engine))
    for name, engine in engines:
        heads = f"{engine.num_heads}/{engine.num_kv_heads} x {engine.head_dim}"
        forms = ([] if engine.quantize == "none" else [engine.quantize]) + [engine.dtype]
        forms += [] if engine.storage == "float32" else [f"stored as {engine.storage}"]
        weights = ", ".join(forms)
        # The layers of a dspark draft are those of a known model; what drafts is more than they.
        drafts = name == "draft" and manifest.draft is not None and manifest.draft.kind == "dspark"
        model = f"dspark ({engine.architecture} layers)" if drafts else engine.architecture
        shape = (engine.vocab_size, engine.hidden_size, engine.num_layers)
        table.add_row(*map(_cell, (name, model, *shape, heads, weights)))
    return table


def _files(manifest: Manifest) -> Table:
    table = Table(title="files", title_justify="left")
    table.add_column("file")
    table.add_column("bytes", justify="right")
    table.add_column("sha-256")
    for entry in manifest.files:
        table.add_row(_cell(entry.path), f"{entry.size:,}", entry.sha256[:16] + "...")
    return table


def _cell(value: object) -> Text:
    """Plain text: whatever a manifest says, it neither styles nor steers the terminal."""
    return Text(escape_controls(str(value)))
