from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dspark_runtime.bundle import Bundle, open_bundle
from dspark_runtime.contract.errors import BundleError
from dspark_runtime.contract.manifest import FileEntry, Manifest, dump_manifest
from tests.runtime.fakes import make_manifest

FILES = {"target.onnx": b"graph", "draft.onnx": b"other graph", "generation_config.json": b'{"top_k": 3}'}


def entries(files: dict[str, bytes]) -> tuple[FileEntry, ...]:
    return tuple(
        FileEntry(path=name, size=len(data), sha256=hashlib.sha256(data).hexdigest()) for name, data in files.items()
    )


def write(folder: Path, manifest: Manifest | None = None) -> Path:
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    manifest = manifest or replace(make_manifest(), files=entries(FILES))
    (folder / "manifest.json").write_text(dump_manifest(manifest))
    return folder


def test_bundle_as_built_opens_and_verifies(tmp_path: Path) -> None:
    bundle = open_bundle(write(tmp_path), verify=True)
    assert bundle.json_asset("generation_config.json") == {"top_k": 3}
    assert bundle.json_asset("tokenizer_config.json") == {}
    assert bundle.file("draft.onnx") == tmp_path / "draft.onnx"


def refused(folder: Path, verify: bool = False) -> str:
    with pytest.raises(BundleError) as caught:
        open_bundle(folder, verify)
    return str(caught.value)


def test_bundle_missing_is_said_so(tmp_path: Path) -> None:
    assert "no such folder" in refused(tmp_path / "nowhere")


def test_bundle_that_is_a_file_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    assert "not a folder" in refused(tmp_path / "x")


def test_folder_without_manifest_is_no_bundle(tmp_path: Path) -> None:
    assert "no manifest.json, so this is no bundle" in refused(tmp_path)


@pytest.mark.parametrize(
    ("version", "todo"), [((3, 0), "update dspark-trt"), ((1, 2), "build the bundle again")], ids=["newer", "older"]
)
def test_bundle_of_another_major_format_is_refused(tmp_path: Path, version: tuple[int, int], todo: str) -> None:
    write(tmp_path)
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format_version": list(version)}))
    assert f"format version {version[0]}.{version[1]}, this runtime reads 2.x; {todo}" in refused(tmp_path)


def test_bundle_file_missing_is_named(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "draft.onnx").unlink()
    assert "draft.onnx: missing, wanted 11 bytes" in refused(tmp_path)


def test_bundle_file_of_another_size_is_found_at_opening(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "target.onnx").write_bytes(b"grap")
    assert "target.onnx: 4 bytes, wanted 5" in refused(tmp_path)


def test_bundle_file_with_changed_content_is_found_by_its_hash(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "target.onnx").write_bytes(b"GRAPH")
    assert isinstance(open_bundle(tmp_path), Bundle)
    assert "target.onnx: SHA-256 is" in refused(tmp_path, verify=True)


def test_bundle_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    folder.mkdir()
    write(folder)
    (tmp_path / "outside").write_bytes(FILES["target.onnx"])
    (folder / "target.onnx").unlink()
    (folder / "target.onnx").symlink_to(tmp_path / "outside")
    assert "target.onnx: is a link" in refused(folder)


def test_bundle_folder_inside_that_is_a_link_is_refused(tmp_path: Path) -> None:
    files = FILES | {"sub/x": b"x"}
    folder = tmp_path / "bundle"
    folder.mkdir()
    write(folder, replace(make_manifest(), files=entries(files)))
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x").write_bytes(b"x")
    (folder / "sub").symlink_to(tmp_path / "outside")
    assert "sub: is a link" in refused(folder)


@pytest.mark.parametrize("path", ["../evil", "/etc/hostname", "a/../../b"])
def test_bundle_path_outside_the_folder_is_refused(tmp_path: Path, path: str) -> None:
    write(tmp_path, replace(make_manifest(), files=(*entries(FILES), FileEntry(path=path, size=1, sha256="0" * 64))))
    assert path in refused(tmp_path)


def test_bundle_of_another_backend_is_refused(tmp_path: Path) -> None:
    write(tmp_path, replace(make_manifest(), files=entries(FILES), backend="openvino"))
    assert "built for backend 'openvino', this runtime knows onnxruntime, tensorrt-rtx, tensorrt" in refused(tmp_path)


def test_bundle_manifest_that_is_not_text_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "manifest.json").write_bytes(b"\xff\xfe\x00")
    assert "manifest.json: cannot be read" in refused(tmp_path)


def test_bundle_asset_that_is_not_json_is_named(tmp_path: Path) -> None:
    files = FILES | {"generation_config.json": b"{nonsense"}
    write(tmp_path, replace(make_manifest(), files=entries(files)))
    (tmp_path / "generation_config.json").write_bytes(b"{nonsense")
    with pytest.raises(BundleError, match=r"generation_config\.json: not JSON"):
        open_bundle(tmp_path).json_asset("generation_config.json")


def test_bundle_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = open_bundle(write(tmp_path))
    opened = Path.open

    def refuse(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == "manifest.json":
            return opened(path, *arguments, **options)
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(BundleError, match=r"generation_config\.json: cannot be read \(Permission denied\)"):
        bundle.asset("generation_config.json")
    assert "target.onnx: cannot be read (Permission denied)" in refused(tmp_path, verify=True)


def test_bundle_folder_that_may_not_be_entered_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)

    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    assert "manifest.json: cannot be read (Permission denied)" in refused(tmp_path)
