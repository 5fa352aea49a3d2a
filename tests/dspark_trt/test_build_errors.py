"""What a user may get wrong in a build: one line on stderr, exit code 2, nothing written."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from dspark_runtime.contract import names
from dspark_trt.cli import main
from tests.tiny import make_dspark_draft, make_target


@pytest.fixture
def target(tiny_target: Path, tmp_path: Path) -> Path:
    """A target folder of this test's own, to be damaged."""
    return Path(shutil.copytree(tiny_target, tmp_path / "target"))


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run the command line, assert exit code 2, and return its one line."""
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as stop:  # argparse's own way out
        code = stop.code  # type: ignore[assignment]
    captured = capsys.readouterr()
    assert code == 2 and captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("dspark-build: error: ")
    return line


def test_build_missing_target_folder_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = refusal(capsys, "--target", tmp_path / "nowhere", "--output", tmp_path / "b")
    assert "nowhere" in line and not (tmp_path / "b").exists()


def test_build_config_without_weights_is_refused(
    capsys: pytest.CaptureFixture[str], target: Path, tmp_path: Path
) -> None:
    (target / "model.safetensors").unlink()
    line = refusal(capsys, "--target", target, "--output", tmp_path / "b")
    assert "safetensors" in line and not (tmp_path / "b").exists()


def test_build_truncated_weights_are_refused(capsys: pytest.CaptureFixture[str], target: Path, tmp_path: Path) -> None:
    content = (target / "model.safetensors").read_bytes()
    (target / "model.safetensors").write_bytes(content[: len(content) // 2])
    line = refusal(capsys, "--target", target, "--output", tmp_path / "b")
    assert "model.safetensors" in line and not (tmp_path / "b").exists()


def test_build_unknown_architecture_is_refused(
    capsys: pytest.CaptureFixture[str], target: Path, tmp_path: Path
) -> None:
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"architectures": ["MambaForCausalLM"]}))
    line = refusal(capsys, "--target", target, "--output", tmp_path / "b")
    assert "MambaForCausalLM" in line and "LlamaForCausalLM" in line


def test_build_draft_of_another_vocabulary_is_refused(
    capsys: pytest.CaptureFixture[str], target: Path, tmp_path: Path
) -> None:
    other = make_target(tmp_path / "other", vocab_size=300)
    draft = make_dspark_draft(tmp_path / "draft", other)
    line = refusal(capsys, "--target", target, "--draft", draft, "--output", tmp_path / "b")
    assert "300" in line and "320" in line


def test_build_output_that_is_no_bundle_is_refused_and_left_alone(
    capsys: pytest.CaptureFixture[str], target: Path, tmp_path: Path
) -> None:
    output = tmp_path / "photos"
    output.mkdir()
    (output / "holiday.jpg").write_bytes(b"x")
    line = refusal(capsys, "--target", target, "--output", output)
    assert f"output {output} is a folder without {names.MANIFEST}" in line and "holiday.jpg" in line
    assert [path.name for path in output.iterdir()] == ["holiday.jpg"]


def test_build_output_with_some_other_manifest_is_refused_and_left_alone(
    capsys: pytest.CaptureFixture[str], target: Path, tmp_path: Path
) -> None:
    output = tmp_path / "extension"
    (output / "src").mkdir(parents=True)
    (output / "src" / "precious.js").write_text("1")
    (output / names.MANIFEST).write_text(json.dumps({"manifest_version": 3, "files": []}))
    line = refusal(capsys, "--target", target, "--output", output)
    assert "holds 'src'" in line and "only bundles are replaced" in line
    assert (output / "src" / "precious.js").read_text() == "1"


@pytest.mark.parametrize("where", ["itself", "inside"])
def test_build_output_over_its_own_target_is_refused_and_left_alone(
    capsys: pytest.CaptureFixture[str], target: Path, tmp_path: Path, where: str
) -> None:
    output = target if where == "itself" else tmp_path
    listed = [{"path": "target.onnx", "size": 1, "sha256": "0"}]
    (output / names.MANIFEST).write_text(json.dumps({"format_version": [1, 0], "files": listed}))
    before = sorted(path.name for path in target.iterdir())
    line = refusal(capsys, "--target", target, "--output", output)
    assert "does not list as a file of a bundle" in line
    assert sorted(path.name for path in target.iterdir()) == before


@pytest.mark.parametrize("length", [250, 300, 5000])
def test_build_output_with_a_name_too_long_is_refused(
    capsys: pytest.CaptureFixture[str], target: Path, tmp_path: Path, length: int
) -> None:
    """250 bytes would do for the bundle itself, but not for the folder beside it that is renamed at the end."""
    line = refusal(capsys, "--target", target, "--output", tmp_path / ("x" * length))
    assert line.endswith("cannot be written: File name too long; give a shorter name")
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_build_output_that_is_not_utf8_is_refused(
    capsys: pytest.CaptureFixture[str], target: Path, tmp_path: Path
) -> None:
    line = refusal(capsys, "--target", target, "--output", tmp_path / os.fsdecode(b"b\xff"))
    assert r"b\udcff' is not UTF-8" in line and "give another name" in line
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_build_target_that_is_not_utf8_is_built(tiny_target: Path, tmp_path: Path) -> None:
    target = Path(shutil.copytree(tiny_target, tmp_path / os.fsdecode(b"t\xff")))
    assert main(["--target", str(target), "--output", str(tmp_path / "b"), "--max-seq-len", "64"]) == 0
    assert str(target).replace("\udcff", r"\udcff") in json.loads((tmp_path / "b" / names.MANIFEST).read_text())["argv"]


def test_build_message_with_control_characters_is_escaped(
    capsys: pytest.CaptureFixture[str], target: Path, tmp_path: Path
) -> None:
    line = refusal(capsys, "--target", tmp_path / "\x1b[2J\x07", "--output", tmp_path / "b")
    assert r"\x1b[2J\x07 does not exist" in line and line.isprintable()


def test_build_output_named_like_a_pattern_touches_nobody_elses_folders(tiny_target: Path, tmp_path: Path) -> None:
    others = [tmp_path / ".other.building-1", tmp_path / ".other.replaced-1", tmp_path / ".a.b.building-1"]
    for folder in others:
        folder.mkdir()
    for name in ("*", "[ab]", "**", "a"):
        assert main(["--target", str(tiny_target), "--output", str(tmp_path / name), "--max-seq-len", "64"]) == 0
    assert all(folder.is_dir() for folder in others)


def test_build_output_that_is_a_file_is_refused(
    capsys: pytest.CaptureFixture[str], target: Path, tmp_path: Path
) -> None:
    (tmp_path / "b").write_text("x")
    assert "is no folder" in refusal(capsys, "--target", target, "--output", tmp_path / "b")


def test_build_output_that_cannot_be_written_is_refused(
    capsys: pytest.CaptureFixture[str], target: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    line = refusal(capsys, "--target", target, "--output", tmp_path / "file" / "b")
    assert "cannot be written" in line and "give another folder" in line


@pytest.mark.parametrize(
    "arguments, wanted",
    [
        (("--block-size", "0"), "block_size is 0, needs [1, 16]"),
        (("--block-size", "4"), "block_size is 4 but the build has no draft"),
        (("--draft-vocab", "100"), "draft_vocab reduces the lm_head of a dspark draft"),
        (("--max-batch-size", "0"), "max_batch_size is 0, needs [1, 256]"),
        (("--max-seq-len", "513"), "max_seq_len is 513, but the target was trained for 512 positions"),
        (("--max-seq-len", "1"), "max_seq_len is 1, needs >= 2"),
        (("--backend", "openvino"), "backend is 'openvino', supported are onnxruntime, tensorrt-rtx, tensorrt"),
        (("--dtype", "float8"), "dtype is 'float8', supported are auto, float32, bfloat16, float16"),
        (("--dtype", "bfloat16"), "dtype is 'bfloat16', backend onnxruntime runs float32"),
        (("--quantize", "int4"), "quantize is 'int4', supported are none, int8"),
        (("--draft-quantize", "fp8"), "draft_quantize is 'fp8', supported are none, int8"),
        (("--head-storage", "int4"), "head_storage is 'int4', supported are float32, bfloat16, int8"),
        (("--head-storage", "int8"), "head_storage is 'int8', which is for the sequential head of a dspark draft, and"),
        (("--draft-kind", "ngram"), "draft_kind is 'ngram', supported are auto, dspark, model, none"),
        (("--draft-kind", "dflash"), "draft_kind is 'dflash', supported are auto, dspark, model, none"),
        (("--draft-kind", "model"), "draft_kind is 'model' but no draft was given"),
        (("--dialect", "onnx"), "dialect is 'onnx', supported are auto, trt, standard"),
        (("--query-form", "ragged"), "query_form is 'ragged', supported are auto, packed, padded"),
        (("--max-seq-len", "many"), "invalid int value: 'many'"),
        (("--colour", "red"), "unrecognized arguments: --colour red"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_build_option_out_of_range_is_refused(
    capsys: pytest.CaptureFixture[str], target: Path, tmp_path: Path, arguments: tuple[str, ...], wanted: str
) -> None:
    assert wanted in refusal(capsys, "--target", target, "--output", tmp_path / "b", *arguments)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    "arguments, wanted",
    [
        (("--block-size", "5"), "block_size is 5, but draft draft was trained for 4; give at most 4"),
        (("--draft-vocab", "321"), "draft_vocab is 321, needs [2, 320] with this target"),
        (("--draft-vocab", "9", "--draft-vocab-text", "no.txt"), "draft_vocab_text no.txt cannot be read"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_build_draft_option_that_does_not_fit_is_refused(
    capsys: pytest.CaptureFixture[str], target: Path, tmp_path: Path, arguments: tuple[str, ...], wanted: str
) -> None:
    draft = make_dspark_draft(tmp_path / "draft", target)
    base = ("--target", target, "--draft", draft, "--output", tmp_path / "b", "--dialect", "standard")
    assert wanted in refusal(capsys, *base, *arguments)


def test_build_json_summary_is_one_object(
    capsys: pytest.CaptureFixture[str], tiny_target: Path, tiny_draft: Path, tmp_path: Path
) -> None:
    arguments = ["--target", tiny_target, "--draft", tiny_draft, "--output", tmp_path / "b", "--max-seq-len", "64"]
    assert main([*map(str, arguments), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["output"], summary["draft_kind"], summary["block_size"]) == (str(tmp_path / "b"), "dspark", 4)
    assert (summary["max_seq_len"], summary["draft_vocab"]) == (64, 320)


def test_build_quiet_prints_nothing(capsys: pytest.CaptureFixture[str], tiny_target: Path, tmp_path: Path) -> None:
    assert main(["--target", str(tiny_target), "--output", str(tmp_path / "b"), "--quiet"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_build_vocab_text_without_a_number_of_tokens_is_refused(
    capsys: pytest.CaptureFixture[str], target: Path, tmp_path: Path
) -> None:
    line = refusal(capsys, "--target", target, "--output", tmp_path / "b", "--draft-vocab-text", tmp_path / "text")
    assert "draft_vocab_text is given but draft_vocab" in line


def test_build_interrupted_from_the_keyboard_says_so_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, target: Path, tmp_path: Path
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dspark_trt.build.write_graphs", interrupt)
    assert main(["--target", str(target), "--output", str(tmp_path / "b")]) == 130
    assert capsys.readouterr().err.splitlines() == ["dspark-build: interrupted, nothing written"]
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_build_without_memory_is_one_line_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, target: Path, tmp_path: Path
) -> None:
    def allocate(*_: object) -> None:
        raise MemoryError("Unable to allocate 3.64 TiB for an array")

    monkeypatch.setattr("dspark_trt.build.write_graphs", allocate)
    line = refusal(capsys, "--target", target, "--output", tmp_path / "b")
    assert "out of memory (Unable to allocate 3.64 TiB for an array); free some" in line
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_build_names_the_program_that_was_called(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["--target", str(tmp_path / "x"), "--output", str(tmp_path / "b")]
    assert main(arguments, prog="build_engines.py") == 2
    assert capsys.readouterr().err.startswith("build_engines.py: error: target: ")
    with pytest.raises(SystemExit):
        main(["--help"], prog="build_engines.py")
    shown = capsys.readouterr().out
    assert shown.startswith("usage: build_engines.py ") and "dspark-build" not in shown


def test_build_whose_stdout_is_full_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tiny_target: Path, tmp_path: Path
) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stdout", full)
        assert main(["--target", str(tiny_target), "--output", str(tmp_path / "b"), "--max-seq-len", "64"]) == 2
        monkeypatch.undo()
    assert capsys.readouterr().err == "dspark-build: error: No space left on device; check names and room\n"
