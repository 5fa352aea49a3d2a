"""A build from checkpoint folders to a bundle folder: what it holds, and how little it leaves behind."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from dspark_runtime.contract import names
from dspark_runtime.contract.errors import BuildError, CheckpointError
from dspark_runtime.contract.manifest import Manifest, parse_manifest
from dspark_trt.build import DRAFT_HEAD, build
from dspark_trt.bundle import new_bundle
from dspark_trt.config import BuildConfig
from tests.dspark_trt.graph.models import needs_operators
from tests.tiny import make_dspark_draft, make_target, read_safetensors, write_safetensors

ASSETS = {names.TOKENIZER, names.TOKENIZER_CONFIG, names.GENERATION_CONFIG}


def read(output: Path) -> Manifest:
    return parse_manifest((output / names.MANIFEST).read_text(encoding="utf-8"), output.name)


def listing(output: Path) -> set[str]:
    return {path.name for path in output.iterdir()}


def test_build_bundle_lists_every_file_with_its_hash(tiny_target: Path, tiny_draft: Path, tmp_path: Path) -> None:
    output = tmp_path / "deep" / "bundle"
    config = BuildConfig(target=tiny_target, draft=tiny_draft, output=output, max_seq_len=64, dialect="standard")
    assert build(config, argv=("build", "it")) == output
    manifest = read(output)
    assert {entry.path for entry in manifest.files} | {names.MANIFEST} == listing(output)
    for entry in manifest.files:
        content = (output / entry.path).read_bytes()
        assert (entry.size, entry.sha256) == (len(content), hashlib.sha256(content).hexdigest()), entry.path
    assert listing(output) >= ASSETS
    assert manifest.argv == ("build", "it")
    assert manifest.versions.keys() >= {"dspark-trt", "onnxruntime", "onnx", "numpy", "python"}
    assert listing(output.parent) == {"bundle"}


def test_build_manifest_describes_models_and_limits(tiny_target: Path, tiny_draft: Path, tmp_path: Path) -> None:
    config = BuildConfig(
        target=tiny_target, draft=tiny_draft, output=tmp_path / "b", max_seq_len=64, max_batch_size=3, block_size=2,
        draft_vocab=100, quantize="int8", dialect="standard",
    )  # fmt: skip
    build(config)
    manifest = read(tmp_path / "b")
    assert (manifest.limits.max_batch_size, manifest.limits.max_seq_len) == (3, 64)
    assert manifest.limits.cache_capacity >= 64 + 4
    assert (manifest.target.architecture, manifest.target.vocab_size, manifest.target.num_layers) == ("llama", 320, 4)
    assert (manifest.target.quantize, manifest.target.min_rows) == ("int8", 2)
    draft = manifest.draft
    assert draft is not None
    assert (draft.kind, draft.block_size, draft.pass_size, draft.draft_vocab) == ("dspark", 2, 4, 100)
    assert (draft.signal, draft.head_type, draft.mask_token_id) == ("head", "vanilla", 3)
    assert (draft.engine.quantize, draft.engine.min_rows) == ("none", 1)
    assert manifest.eos_token_ids == (2, 0)
    assert (manifest.dialect, manifest.query_form, manifest.operators) == ("standard", "padded", "host")


def test_build_standard_dialect_carries_the_head_for_the_host(tiny_target: Path, tmp_path: Path) -> None:
    draft = make_dspark_draft(tmp_path / "draft", tiny_target, "gated")
    config = BuildConfig(target=tiny_target, draft=draft, output=tmp_path / "b", dialect="standard", draft_vocab=100)
    build(config)
    arrays = {name: (a.shape, str(a.dtype)) for name, a in load_file(tmp_path / "b" / DRAFT_HEAD).items()}
    assert arrays == {
        "markov_w1": ((320, 8), "float32"),
        "markov_w2": ((100, 8), "float32"),
        "head_weight": ((8, 72), "float32"),
        "head_bias": ((8,), "float32"),
        "confidence_weight": ((72,), "float32"),
        "confidence_bias": ((1,), "float32"),
        "d2t": ((100,), "int32"),
    }


@needs_operators
@pytest.mark.parametrize("query_form", ["packed", "padded"])
def test_build_trt_dialect_keeps_the_operators_in_the_graph(
    tiny_target: Path, tiny_draft: Path, query_form: str, tmp_path: Path
) -> None:
    config = BuildConfig(target=tiny_target, draft=tiny_draft, output=tmp_path / "b", query_form=query_form)
    build(config)
    manifest = read(tmp_path / "b")
    assert (manifest.dialect, manifest.query_form, manifest.operators) == ("trt", query_form, "graph")
    assert DRAFT_HEAD not in listing(tmp_path / "b")
    # The tiny model was trained for 512 positions, fewer than the default.
    assert manifest.limits.max_seq_len == 512


@pytest.mark.parametrize("kind, draft_kind", [("none", None), ("model", "model")])
def test_build_other_draft_kinds_are_described(
    tiny_target: Path, kind: str, draft_kind: str | None, tmp_path: Path
) -> None:
    draft = make_target(tmp_path / "small", num_layers=1, seed=3) if kind == "model" else None
    build(BuildConfig(target=tiny_target, draft=draft, draft_kind=kind, output=tmp_path / "b", max_seq_len=64))
    described = read(tmp_path / "b").draft
    assert (described.kind if described is not None else None) == draft_kind
    if described is not None:
        assert (described.block_size, described.pass_size, described.signal) == (4, 1, "top1")


def test_build_existing_bundle_is_replaced_whole(tiny_target: Path, tiny_draft: Path, tmp_path: Path) -> None:
    output = tmp_path / "b"
    build(BuildConfig(target=tiny_target, draft=tiny_draft, output=output, max_seq_len=64))
    (output / "calibration.json").write_text("{}")  # measured with the old engines
    build(BuildConfig(target=tiny_target, output=output, max_seq_len=32))
    assert read(output).limits.max_seq_len == 32
    assert listing(output).isdisjoint({"calibration.json", names.DRAFT_GRAPH})
    assert listing(tmp_path) == {"b"}


KILLED = """
import os, signal, sys
from pathlib import Path
from dspark_trt.build import build
from dspark_trt.config import BuildConfig

def stop(part, share):
    if part == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)

build(BuildConfig(target=Path(sys.argv[1]), output=Path(sys.argv[2]), max_seq_len=64), stop)
"""


def run_script(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("part", ["layers.2", "run target.onnx", "hash target.weights"])
def test_build_killed_leaves_no_bundle_and_the_next_one_cleans_up(tiny_target: Path, part: str, tmp_path: Path) -> None:
    output = tmp_path / "b"
    assert run_script(KILLED, tiny_target, output, part).returncode == -signal.SIGKILL
    assert not output.exists()
    assert listing(tmp_path) != set()  # what the dead build left
    build(BuildConfig(target=tiny_target, output=output, max_seq_len=64))
    assert read(output).limits.max_seq_len == 64
    assert listing(tmp_path) == {"b"}


ENDED = """
import os, signal, sys
import dspark_trt.backends.onnxruntime, dspark_trt.build, dspark_trt.bundle
from dspark_trt.cli import main

def end(*_, **__):
    os.kill(os.getpid(), getattr(signal, sys.argv[3]))

module, function = sys.argv[4].rsplit(".", 1)
done = getattr(sys.modules[module], function)
setattr(sys.modules[module], function, lambda *a, **o: (end(), done(*a, **o))[1])
if sys.argv[5] == "ignored":
    signal.signal(getattr(signal, sys.argv[3]), signal.SIG_IGN)
sys.exit(main(["--target", sys.argv[1], "--output", sys.argv[2], "--max-seq-len", "64"]))
"""


@pytest.mark.parametrize("where", ["dspark_trt.build.write_graphs", "dspark_trt.build.describe_files"])
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_build_ended_by_the_system_tidies_up(tiny_target: Path, tmp_path: Path, name: str, where: str) -> None:
    output = tmp_path / "b"
    done = run_script(ENDED, tiny_target, output, name, where, "default")
    assert done.returncode == 128 + getattr(signal, name)
    assert done.stderr == f"dspark-build: ended by {name}, nothing written\n"
    assert listing(tmp_path) == set()


def test_build_ended_between_the_renames_leaves_the_bundle_that_was_there(tiny_target: Path, tmp_path: Path) -> None:
    output = tmp_path / "b"
    build(BuildConfig(target=tiny_target, output=output, max_seq_len=32))
    before = (output / names.MANIFEST).read_bytes()
    rename, calls = Path.rename, []

    def second_ends(path: Path, target: Path) -> Path:
        calls.append(path)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return rename(path, target)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "rename", second_ends)
        build(BuildConfig(target=tiny_target, output=output, max_seq_len=64))
    assert len(calls) == 3 and (output / names.MANIFEST).read_bytes() == before
    assert listing(tmp_path) == {"b"}


def test_build_under_nohup_goes_on(tiny_target: Path, tmp_path: Path) -> None:
    done = run_script(ENDED, tiny_target, tmp_path / "b", "SIGHUP", "dspark_trt.build.write_graphs", "ignored")
    assert (done.returncode, done.stderr) == (0, "")
    assert listing(tmp_path) == {"b"}


def test_build_killed_over_a_bundle_leaves_the_old_one(tiny_target: Path, tmp_path: Path) -> None:
    output = tmp_path / "b"
    build(BuildConfig(target=tiny_target, output=output, max_seq_len=32))
    before = (output / names.MANIFEST).read_bytes()
    assert run_script(KILLED, tiny_target, output, "layers.2").returncode == -signal.SIGKILL
    assert (output / names.MANIFEST).read_bytes() == before


def test_new_bundle_leaves_the_folder_of_a_running_build_alone(tmp_path: Path) -> None:
    with new_bundle(tmp_path / "b") as running:
        script = "import sys; from pathlib import Path; from dspark_trt.bundle import new_bundle\n"
        script += "with new_bundle(Path(sys.argv[1])) as folder: (folder / 'manifest.json').write_text('{}')"
        assert run_script(script, tmp_path / "b").returncode == 0
        assert running.is_dir()
        (running / names.MANIFEST).write_text("[]")
    assert (tmp_path / "b" / names.MANIFEST).read_text() == "[]"
    assert listing(tmp_path) == {"b"}


def test_new_bundle_replaced_by_a_build_that_died_between_renames_comes_back(tmp_path: Path) -> None:
    old = tmp_path / ".b.replaced-1"
    old.mkdir()
    (old / names.MANIFEST).write_text("{}")
    with pytest.raises(KeyboardInterrupt), new_bundle(tmp_path / "b"):
        raise KeyboardInterrupt
    assert listing(tmp_path) == {"b"}


def test_build_on_a_terminal_shows_a_bar_and_leaves_the_summary(tiny_target: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    script = "import sys; from dspark_trt.cli import main; sys.exit(main())"
    arguments = ["--target", str(tiny_target), "--output", str(tmp_path / "b"), "--max-seq-len", "64"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm", "COLUMNS": "100"}
    command = [sys.executable, "-c", script, *arguments]
    with os.fdopen(theirs, "w") as stderr:
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True, check=True)
    seen = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "open checkpoints" in seen and "100%" in seen and "done" in seen
    assert done.stdout.startswith(f"{tmp_path / 'b'}: llama without a draft") and done.stdout.count("\n") == 1


FULL = """
import resource, sys
from dspark_trt.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
sys.exit(main(["--target", sys.argv[1], "--output", sys.argv[2]]))
"""


def test_build_that_runs_out_of_room_is_one_line_and_leaves_nothing(tiny_target: Path, tmp_path: Path) -> None:
    done = run_script(FULL, tiny_target, tmp_path / "b")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "b cannot be written: File too large; give another folder" in line
    assert listing(tmp_path) == set()


def test_build_weight_that_is_no_number_is_refused_by_name_and_leaves_nothing(tmp_path: Path) -> None:
    target = make_target(tmp_path / "target", num_layers=1)
    tensors = read_safetensors(target / "model.safetensors")
    tensors["model.norm.weight"][5] = np.nan
    write_safetensors(target / "model.safetensors", tensors)
    with pytest.raises(CheckpointError, match=r"target: norm\.weight holds nan at \[5\], wanted finite weights; "):
        build(BuildConfig(target=target, output=tmp_path / "b", max_seq_len=64))
    assert listing(tmp_path) == {"target"}


def test_build_graph_that_gives_no_finite_numbers_is_refused(tmp_path: Path) -> None:
    target = make_target(tmp_path / "target", num_layers=1)
    tensors = read_safetensors(target / "model.safetensors")
    tensors["model.norm.weight"][:] = 3e38  # a number, but its products are not
    write_safetensors(target / "model.safetensors", tensors)
    with pytest.raises(BuildError, match=r"target\.onnx does not run in ONNX Runtime: .*(infinite|NaN|not finite)"):
        build(BuildConfig(target=target, output=tmp_path / "b", max_seq_len=64))
    assert listing(tmp_path) == {"target"}


def test_build_says_which_generation_defaults_it_left_out(tmp_path: Path) -> None:
    target = make_target(tmp_path / "target", num_layers=1)
    path = target / names.GENERATION_CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | {"top_p": 5}))
    build(BuildConfig(target=target, output=tmp_path / "b", max_seq_len=64))
    assert read(tmp_path / "b").notes == (
        "generation_config.json: top_p is 5, wanted (0, 1]; left out of the defaults",
    )
    assert "top_p" not in json.loads((tmp_path / "b" / names.GENERATION_CONFIG).read_text())


PEAK = """
import resource, sys
from pathlib import Path
import dspark_trt.cli
from dspark_trt.build import build
from dspark_trt.config import BuildConfig

def own_peak():  # of this program alone: ru_maxrss would start from the parent's
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])

before = own_peak()
output = Path(sys.argv[2])
build(BuildConfig(target=Path(sys.argv[1]), output=output, max_seq_len=64, quantize=sys.argv[3]))
peak = max(own_peak(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
print((peak - before) * 1024 / sum(path.stat().st_size for path in output.glob("*.weights")))
"""


@pytest.mark.parametrize("quantize", ["none", "int8"])
def test_build_peak_memory_stays_below_two_and_a_half_times_the_weights(quantize: str, tmp_path: Path) -> None:
    # What an empty interpreter with the same libraries needs is taken off: the model is small, unlike real ones.
    target = make_target(
        tmp_path / "target", vocab_size=20_000, hidden_size=512, intermediate_size=1024, num_layers=6,
        num_heads=8, num_kv_heads=4, dtype="bfloat16",
    )  # fmt: skip
    done = run_script(PEAK, target, tmp_path / "b", quantize)
    assert done.returncode == 0, done.stderr
    assert 0.1 < float(done.stdout) < 2.5
