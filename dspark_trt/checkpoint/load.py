"""Which reader serves a path: the only place that looks at folders and decides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dspark_runtime.contract.errors import CheckpointError, ConfigError, shown
from dspark_trt.checkpoint.dspark_format import ARCHITECTURE, foreign_format, load_dspark
from dspark_trt.checkpoint.fields import Fields, read_object
from dspark_trt.checkpoint.fit import check_model_fit
from dspark_trt.checkpoint.gguf_model import load_gguf
from dspark_trt.checkpoint.hf_config import FAMILIES, architecture
from dspark_trt.checkpoint.hf_folder import load_folder
from dspark_trt.checkpoint.safetensors import INDEX, WEIGHTS
from dspark_trt.checkpoint.types import DSparkDraftCheckpoint, TargetCheckpoint

CONFIG = "config.json"


@contextmanager
def _readable(path: Path, role: str) -> Iterator[None]:
    """What the system refuses inside, a folder without search permission or a name too long, is a CheckpointError."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise CheckpointError(
            f"{role}: {where} cannot be read ({error.strerror or error}); check name and permissions"
        ) from None


def _locate(path: Path, role: str) -> Path:
    """A folder with a config.json, or a GGUF file. Raises CheckpointError or OSError."""
    if not path.exists():
        raise CheckpointError(f"{role}: {path} does not exist")
    if not path.is_dir():
        if path.suffix != ".gguf":
            raise CheckpointError(f"{role}: {path} is a file, wanted a folder with {CONFIG}, or a .gguf file")
        return path
    has_config = (path / CONFIG).is_file()
    if has_config and ((path / WEIGHTS).is_file() or (path / INDEX).is_file()):
        return path
    found = sorted(path.glob("*.gguf"))
    if len(found) == 1:
        return found[0]
    if len(found) > 1:
        raise CheckpointError(
            f"{role}: {path} holds {len(found)} .gguf files ({', '.join(p.name for p in found[:3])}), "
            f"wanted one; name the file itself"
        )
    if has_config:
        return path  # the reader says what is missing
    raise CheckpointError(f"{role}: {path} holds neither {CONFIG} nor a .gguf file")


def _load_model(path: Path) -> TargetCheckpoint:
    return load_folder(path) if path.is_dir() else load_gguf(path)


def load_target(path: Path) -> TargetCheckpoint:
    """Open a target: a Hugging Face folder, a .gguf file, or a folder that holds exactly one.

    Everything is checked (names, shapes, types, tokenizer), no weight is read yet. Raises CheckpointError.
    """
    with _readable(path, "target"):
        return _load_target(path)


def _load_target(path: Path) -> TargetCheckpoint:
    located = _locate(path, "target")
    if located.is_dir():
        fields = Fields(str(located / CONFIG), read_object(located / CONFIG))
        if architecture(fields) == ARCHITECTURE or foreign_format(fields):
            raise CheckpointError(f"{fields.where}: is a DSpark draft, wanted a target; were the two paths swapped?")
    return _load_model(located)


def load_draft(path: Path, target: TargetCheckpoint, kind: str = "auto") -> DSparkDraftCheckpoint | TargetCheckpoint:
    """Open a draft and check that it fits `target`. Raises CheckpointError.

    kind: `dspark`, `model`, or `auto`, which reads the folder's config.json; a GGUF file is a `model`.
    """
    if kind not in ("auto", "dspark", "model"):
        raise ConfigError(f"draft_kind is '{kind}', supported are auto, dspark, model")
    with _readable(path, "draft"):
        return _load_draft(path, target, kind)


def _load_draft(path: Path, target: TargetCheckpoint, kind: str) -> DSparkDraftCheckpoint | TargetCheckpoint:
    located = _locate(path, "draft")
    fields = Fields(str(located), {})
    if located.is_dir():
        fields = Fields(str(located / CONFIG), read_object(located / CONFIG))
        if foreign := foreign_format(fields):
            raise CheckpointError(
                f"{fields.where}: is {foreign}, which is not supported yet; "
                f"supported are DeepSpec drafts ({ARCHITECTURE}) and language models"
            )
    found = "dspark" if architecture(fields) == ARCHITECTURE else "model"
    if kind not in ("auto", found):
        raise CheckpointError(f"{fields.where}: is a draft of kind {found}, wanted {kind} as --draft-kind says")
    if found == "dspark":
        return load_dspark(located, fields, target)
    if located.is_dir() and (name := architecture(fields)) not in FAMILIES:
        known = ", ".join((ARCHITECTURE, *FAMILIES))
        raise CheckpointError(f"{fields.where}: found architecture {shown(name)}, supported drafts are {known}")
    draft = _load_model(located)
    check_model_fit(draft, target)
    return draft
