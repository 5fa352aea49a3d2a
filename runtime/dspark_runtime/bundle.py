"""Open an engine bundle: is it whole, can this runtime read it, what is in its small files.

Knows no engine. Opening checks the manifest, the size of every file and that nothing leads out of the folder;
hashes are read on request. Hashes prove integrity, not origin.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark_runtime.contract.errors import BundleError, shown
from dspark_runtime.contract.manifest import MAX_MANIFEST_BYTES, FileEntry, Manifest, parse_manifest
from dspark_runtime.contract.names import GENERATION_CONFIG, MANIFEST, TOKENIZER, TOKENIZER_CONFIG

CHAT_TEMPLATE = "chat_template.jinja"
"""Newer checkpoints keep the template in a file of its own."""
BACKENDS = ("onnxruntime", "tensorrt-rtx", "tensorrt")
"""Whose bundles can be opened; sessions decide whether this machine runs them."""
MAX_ASSET_BYTES = {
    TOKENIZER: 256 << 20, TOKENIZER_CONFIG: 16 << 20, GENERATION_CONFIG: 1 << 20, CHAT_TEMPLATE: 1 << 20
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bundle:
    """An opened bundle: the folder and its checked manifest."""

    folder: Path
    manifest: Manifest

    def file(self, name: str) -> Path:
        """Path of a listed file. Raises BundleError when the bundle lacks it."""
        if all(entry.path != name for entry in self.manifest.files):
            raise BundleError(f"{self.folder}: lacks {name}; build the bundle again")
        return self.folder / name

    def has(self, name: str) -> bool:
        return any(entry.path == name for entry in self.manifest.files)

    def asset(self, name: str) -> bytes:
        """Contents of a small file, one of MAX_ASSET_BYTES."""
        path, limit = self.file(name), MAX_ASSET_BYTES[name]
        try:
            if path.stat().st_size > limit:
                raise BundleError(f"{path}: {path.stat().st_size} bytes, wanted at most {limit}")
            return path.read_bytes()
        except OSError as error:
            raise _unreadable(path, error) from None

    def json_asset(self, name: str) -> dict[str, Any]:
        """A JSON object of the bundle; empty when there is no such file."""
        if not self.has(name):
            return {}
        try:
            value = json.loads(self.asset(name))
        except (ValueError, RecursionError) as error:
            raise BundleError(f"{self.folder / name}: not JSON ({error}); build the bundle again") from None
        if not isinstance(value, dict):
            raise BundleError(f"{self.folder / name}: wanted a JSON object; build the bundle again")
        return value


def open_bundle(folder: Path | str, verify: bool = False) -> Bundle:
    """Open the bundle in `folder`; with `verify` also compare every SHA-256. Raises BundleError."""
    folder = Path(folder)
    try:
        return _open(folder, verify)
    except OSError as error:
        raise _unreadable(folder, error) from None


def _open(folder: Path, verify: bool) -> Bundle:
    if not folder.is_dir():
        raise BundleError(f"{folder}: {'not a folder' if folder.exists() else 'no such folder'}; give a bundle folder")
    path = folder / MANIFEST
    if not path.is_file() or path.is_symlink():
        raise BundleError(f"{folder}: no {MANIFEST}, so this is no bundle; make one with dspark-build")
    if path.stat().st_size > MAX_MANIFEST_BYTES:
        raise BundleError(f"{path}: {path.stat().st_size} bytes, wanted at most {MAX_MANIFEST_BYTES}")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BundleError(f"{path}: cannot be read ({error})") from None
    manifest = parse_manifest(text, str(path))
    if manifest.backend not in BACKENDS:
        raise BundleError(
            f"{path}: built for backend {shown(manifest.backend)}, this runtime knows {', '.join(BACKENDS)}"
        )
    if manifest.world_size != 1:
        raise BundleError(f"{path}: one of {manifest.world_size} parts, this runtime runs bundles of one part")
    for entry in manifest.files:
        _check_file(folder, entry)
    if verify:
        for entry in manifest.files:
            _check_hash(folder / entry.path, entry)
    return Bundle(folder, manifest)


def _unreadable(path: Path, error: OSError) -> BundleError:
    return BundleError(
        f"{error.filename or path}: cannot be read ({error.strerror or error}); check name and permissions"
    )


def _check_file(folder: Path, entry: FileEntry) -> None:
    path = folder
    for part in entry.path.split("/"):
        path = path / part
        if path.is_symlink():
            raise BundleError(f"{path}: is a link, wanted a file inside the bundle")
    if not path.is_file():
        raise BundleError(f"{path}: missing, wanted {entry.size} bytes; build or copy the bundle again")
    size = path.stat().st_size
    if size != entry.size:
        raise BundleError(f"{path}: {size} bytes, wanted {entry.size}; build or copy the bundle again")


def _check_hash(path: Path, entry: FileEntry) -> None:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    found = digest.hexdigest()
    if found != entry.sha256:
        raise BundleError(f"{path}: SHA-256 is {found}, wanted {entry.sha256}; build or copy the bundle again")
