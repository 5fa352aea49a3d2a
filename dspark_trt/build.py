"""Checkpoints to a bundle, as one readable function."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from safetensors.numpy import save

from dspark_runtime.contract import names
from dspark_runtime.contract.errors import ConfigError
from dspark_runtime.contract.manifest import DraftInfo, EngineInfo, Limits, Manifest, dump_manifest
from dspark_trt.backends import BACKENDS, ENGINES, Backend, CompileJob, Dialect, Report
from dspark_trt.bundle import check_output, describe_files, new_bundle
from dspark_trt.checkpoint import DSparkDraftCheckpoint, TargetCheckpoint, load_draft, load_target
from dspark_trt.config import BuildConfig, DecoderConfig
from dspark_trt.draft_vocab import choose_draft_vocab, read_sample
from dspark_trt.graph import (
    DSparkDraft,
    GraphOptions,
    Proposals,
    head_arrays,
    storage_of,
    write_dspark_graph,
    write_model_draft_graph,
    write_target_graph,
)

DEFAULT_SEQ_LEN = 2048
DEFAULT_MODEL_BLOCK = 4
GRAPHS = {"target": names.TARGET_GRAPH, "draft": names.DRAFT_GRAPH}
DRAFT_HEAD = "draft_head.safetensors"
"""Weights of the sequential head, for a runtime that calls the operators itself."""

Progress = Callable[[str, float], None]
"""What is being done, and the share of the build that lies behind, in [0, 1]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A build with everything decided: nothing is written before this exists."""

    config: BuildConfig
    target: TargetCheckpoint
    draft: DSparkDraft | TargetCheckpoint | None
    dialect: Dialect
    block_size: int
    """K; 0 without a draft."""
    pass_size: int
    limits: Limits

    @property
    def operators(self) -> str:
        return self.dialect.operators if self.dialect.name == "trt" else "host"

    @property
    def storage(self) -> str:
        if self.config.storage != "auto":
            return self.config.storage
        return "checkpoint" if self.config.backend == "onnxruntime" and self.operators == "graph" else "float32"

    @property
    def query_form(self) -> str:
        if self.dialect.name == "standard":
            return "padded"
        return self.dialect.query_form if self.config.query_form == "auto" else self.config.query_form


def build(config: BuildConfig, progress: Progress | None = None, argv: Sequence[str] = ()) -> Path:
    """Compile the checkpoints of `config` into a bundle and return its folder.

    argv: the command to record in the manifest. Raises a DsparkError and leaves nothing behind when
    the checkpoints do not fit the options or each other, or the output cannot be written.
    """
    check_output(config.output)
    backend = BACKENDS[config.backend](config)
    plan = make_plan(config, backend.choose_dialect(config.dialect))
    report = _reporter(plan, progress)
    with new_bundle(config.output) as folder:
        write_graphs(plan, folder, report)
        manifest = add_storage(plan, folder, describe(plan, backend.versions(), argv))
        manifest = compile_graphs(backend, plan, folder, report, manifest)
        for name, content in plan.target.assets.items():
            (folder / name).write_bytes(content)
        manifest = replace(manifest, files=describe_files(folder, report))
        (folder / names.MANIFEST).write_text(dump_manifest(manifest), encoding="utf-8")
    if progress is not None:
        progress("done", 1.0)
    return config.output


def make_plan(config: BuildConfig, dialect: Dialect) -> Plan:
    """Open the checkpoints and settle what the options leave open. Raises DsparkError."""
    if config.storage == "checkpoint" and dialect.name != "trt":
        why = dialect.note or "the dialect is standard"
        raise ConfigError(f"storage is 'checkpoint', which the trt dialect alone can say, but {why}")
    target = load_target(config.target)
    draft: DSparkDraft | TargetCheckpoint | None = None
    block_size = pass_size = 0
    if config.draft is not None and config.draft_kind != "none":
        loaded = load_draft(config.draft, target, config.draft_kind)
        if isinstance(loaded, DSparkDraftCheckpoint):
            draft = _dspark_draft(config, target, loaded)
            block_size, pass_size = draft.block_size, draft.config.block_size
        else:
            draft, pass_size = loaded, 1
            block_size = config.block_size or DEFAULT_MODEL_BLOCK
    if config.draft_vocab is not None and not isinstance(draft, DSparkDraft):
        raise ConfigError("draft_vocab reduces the lm_head of a dspark draft, and this build has none; leave it out")
    if config.head_storage != "float32" and not (isinstance(draft, DSparkDraft) and draft.config.markov_rank):
        raise ConfigError(
            f"head_storage is '{config.head_storage}', which is for the sequential head of a dspark draft, "
            "and this build has none; leave it out"
        )
    if config.block_size is not None and draft is None:
        raise ConfigError(f"block_size is {config.block_size} but the build has no draft; leave it out or give a draft")
    max_seq_len = _max_seq_len(config, target, draft if isinstance(draft, TargetCheckpoint) else None)
    # A block behind the last token, and one row more: a padded verify step writes K + 1 rows per slot.
    capacity = max_seq_len + max(block_size, pass_size) + 1
    return Plan(
        config=config,
        target=target,
        draft=draft,
        dialect=dialect,
        block_size=block_size,
        pass_size=pass_size,
        limits=Limits(max_batch_size=config.max_batch_size, max_seq_len=max_seq_len, cache_capacity=capacity),
    )


def write_graphs(plan: Plan, folder: Path, report: Callable[[str], None]) -> None:
    """Target graph, draft graph and, for operators on the host, the draft's head weights."""
    options = GraphOptions(
        folder=folder,
        dialect=plan.dialect.name,
        query_form=plan.query_form,
        operators=plan.operators,
        cache_capacity=plan.limits.cache_capacity,
        max_step_tokens=plan.limits.max_batch_size * max(plan.pass_size, plan.block_size + 1),
        quantize=plan.config.quantize,
        storage=plan.storage,
        report=report,
        dtype=plan.config.arithmetic,
    )
    draft = plan.draft
    dspark = draft if isinstance(draft, DSparkDraft) else None
    proposals = Proposals(block_size=plan.block_size, vocab_size=_draft_vocab_size(plan))
    table = write_target_graph(options, plan.target.config, plan.target.tensors, proposals, dspark)
    options = replace(options, quantize=plan.config.draft_quantize)
    if dspark is not None:
        write_dspark_graph(options, dspark, plan.target.tensors, shared_table=table)
        if plan.operators == "host" and (arrays := head_arrays(dspark)):
            (folder / DRAFT_HEAD).write_bytes(save(arrays))
    elif isinstance(draft, TargetCheckpoint):
        write_model_draft_graph(options, draft.config, draft.tensors)


def add_storage(plan: Plan, folder: Path, manifest: Manifest) -> Manifest:
    """`manifest` with how the graph files, which are written, keep their weights."""
    if plan.storage == "float32":
        return manifest
    found = {role: storage_of(folder / name) for role, name in _graph_names(plan).items()}
    target, draft = replace(manifest.target, storage=found["target"]), manifest.draft
    if draft is not None:
        draft = replace(draft, engine=replace(draft.engine, storage=found["draft"]))
    return replace(manifest, target=target, draft=draft)


def compile_graphs(backend: Backend, plan: Plan, folder: Path, report: Report, manifest: Manifest) -> Manifest:
    """Let the backend make of every graph what runs; `manifest` with what it says about that."""
    jobs = [CompileJob(graph=folder / name, role=role, manifest=manifest) for role, name in _graph_names(plan).items()]
    compiled = {job.role: backend.compile(job, report) for job in jobs}
    if not backend.keeps_graphs:
        for name in (*_graph_names(plan).values(), names.TARGET_WEIGHTS, names.DRAFT_WEIGHTS):
            (folder / name).unlink(missing_ok=True)
    target, draft = replace(manifest.target, compiled=compiled["target"]), manifest.draft
    if draft is not None:
        draft = replace(draft, engine=replace(draft.engine, compiled=compiled["draft"]))
    return replace(manifest, target=target, draft=draft)


def describe(plan: Plan, versions: dict[str, str], argv: Sequence[str]) -> Manifest:
    """The manifest of a build, files and compiled engines aside."""
    config, target = plan.config, plan.target.config
    return Manifest(
        format_version=names.FORMAT_VERSION,
        backend=config.backend,
        dialect=plan.dialect.name,
        query_form=plan.query_form,
        operators=plan.operators,
        limits=plan.limits,
        # One row takes another path through the int8 products than two; rows must not depend on their number.
        target=_engine(config, "target", target, config.quantize, 2 if config.quantize == "int8" else 1),
        draft=_draft_info(plan),
        eos_token_ids=target.eos_token_ids,
        bos_token_id=target.bos_token_id,
        files=(),
        versions={"dspark-trt": _own_version(), "python": platform.python_version(), **versions},
        # What was not UTF-8 on the command line would not be in the manifest either.
        argv=tuple(argument.encode(errors="backslashreplace").decode() for argument in argv),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        notes=(*((plan.dialect.note,) if plan.dialect.note else ()), *plan.target.notes),
    )


def _dspark_draft(config: BuildConfig, target: TargetCheckpoint, loaded: DSparkDraftCheckpoint) -> DSparkDraft:
    trained = loaded.config.block_size
    if config.block_size is not None and config.block_size > trained:
        raise ConfigError(
            f"block_size is {config.block_size}, but draft {loaded.path.name} was trained for {trained}; "
            f"give at most {trained}"
        )
    d2t = None
    if config.draft_vocab is not None:
        d2t = choose_draft_vocab(
            target.assets[names.TOKENIZER],
            read_sample(config.draft_vocab_text),
            config.draft_vocab,
            loaded.config.decoder.vocab_size,
            target.config.eos_token_ids,
        )
    return DSparkDraft(
        config=loaded.config,
        tensors=loaded.tensors,
        block_size=config.block_size or trained,
        d2t=d2t,
        head_storage=config.head_storage,
    )


def _max_seq_len(config: BuildConfig, target: TargetCheckpoint, model_draft: TargetCheckpoint | None) -> int:
    models = [("target", target)] + ([("draft", model_draft)] if model_draft is not None else [])
    name, trained = min(((name, m.config.max_position_embeddings) for name, m in models), key=lambda pair: pair[1])
    if config.max_seq_len is None:
        return min(DEFAULT_SEQ_LEN, trained)
    if config.max_seq_len > trained:
        raise ConfigError(
            f"max_seq_len is {config.max_seq_len}, but the {name} was trained for {trained} positions; "
            f"give at most {trained}"
        )
    return config.max_seq_len


def _draft_vocab_size(plan: Plan) -> int:
    if isinstance(plan.draft, DSparkDraft):
        return plan.draft.vocab_size
    return plan.draft.config.vocab_size if plan.draft is not None else plan.target.config.vocab_size


def _engine(config: BuildConfig, role: str, model: DecoderConfig, quantize: str, min_rows: int) -> EngineInfo:
    return EngineInfo(
        graph=(GRAPHS if BACKENDS[config.backend].keeps_graphs else ENGINES)[role],
        architecture=model.family,
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        num_layers=model.num_layers,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        dtype=config.arithmetic,
        quantize=quantize,
        min_rows=min_rows,
    )


def _draft_info(plan: Plan) -> DraftInfo | None:
    draft, quantize = plan.draft, plan.config.draft_quantize
    if draft is None:
        return None
    is_dspark = isinstance(draft, DSparkDraft)
    model = draft.config.decoder if isinstance(draft, DSparkDraft) else draft.config
    return DraftInfo(
        kind="dspark" if is_dspark else "model",
        # Proposals may differ in the last bit with the number of rows; the target decides about them anyway.
        engine=_engine(plan.config, "draft", model, quantize, 1),
        block_size=plan.block_size,
        pass_size=plan.pass_size,
        draft_vocab=_draft_vocab_size(plan),
        mask_token_id=draft.config.mask_token_id if isinstance(draft, DSparkDraft) else None,
        signal=draft.signal if isinstance(draft, DSparkDraft) else "top1",
        head_type=draft.config.markov_head_type if isinstance(draft, DSparkDraft) else "none",
        markov_rank=draft.config.markov_rank if isinstance(draft, DSparkDraft) else 0,
        head_storage=draft.head_storage if isinstance(draft, DSparkDraft) else "float32",
    )


def _graph_names(plan: Plan) -> dict[str, str]:
    return {role: name for role, name in GRAPHS.items() if role == "target" or plan.draft is not None}


def _reporter(plan: Plan, progress: Progress | None) -> Report:
    """Turns names of parts into shares of the build; the number of parts follows from the models."""
    model = plan.draft.config.decoder if isinstance(plan.draft, DSparkDraft) else getattr(plan.draft, "config", None)
    num_parts = plan.target.config.num_layers + 2 + (model.num_layers + 3 if model is not None else 0)
    num_parts += BACKENDS[plan.config.backend].graph_weight * len(_graph_names(plan)) + 8
    done = size = 0

    def report(part: str, *, weight: int = 1, inside: float | None = None) -> None:
        nonlocal done, size
        if inside is None:
            done, size = done + size, weight
        if progress is not None:
            progress(part, min((done + size * (inside or 0.0)) / num_parts, 1.0))

    return report


def _own_version() -> str:
    try:
        return version("dspark-trt")
    except PackageNotFoundError:
        return "unknown"
