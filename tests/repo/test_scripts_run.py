"""Examples and benchmarks run: on a tiny model here, on real weights in the demo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dspark_trt.build import build
from dspark_trt.config import BuildConfig
from tests.repo.sources import ROOT, tracked
from tests.tiny import make_dspark_draft, make_target


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds `target`, a tiny checkpoint that reads 2048 tokens, and `bundle`, it and a draft compiled."""
    folder = tmp_path_factory.mktemp("scripts")
    target = make_target(folder / "target", max_position_embeddings=2048)
    draft = make_dspark_draft(folder / "draft", target)
    build(BuildConfig(target=target, draft=draft, output=folder / "bundle", max_seq_len=2048))
    return folder


def run(*arguments: str | Path) -> str:
    """stdout of a script, run from the root of the repository; it must end well."""
    command = [sys.executable, *map(str, arguments)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_every_example_has_a_readme() -> None:
    folders = {path.relative_to(ROOT).parts[1] for path in tracked() if path.is_relative_to(ROOT / "examples")}
    assert {name for name in folders if not (ROOT / "examples" / name / "README.md").is_file()} == set()


def test_python_api_example_prints_every_request(folder: Path) -> None:
    shown = run("examples/python_api/generate.py", folder / "bundle")
    assert shown.count(" -> ") == 3 and shown.count("tokens a round") == 3


@pytest.mark.parametrize("part", ["demo", "host", "sweep"])
def test_benchmark_part_prints_a_table_and_writes_its_numbers(folder: Path, tmp_path: Path, part: str) -> None:
    report = tmp_path / "report.json"
    shown = run(
        *("benchmarks/decode.py", "--part", part, "--quick", "--repetitions", "1", "--prompts", "1"),
        *("--bundle", folder / "bundle", "--json", report),
    )
    results = json.loads(report.read_text())["results"]
    assert results and all(result["part"] == part and result["rows"] for result in results)
    assert all(result["title"] in shown for result in results)


def test_benchmark_sweep_plain_over_plain_is_one_and_outputs_are_equal(folder: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    run(
        *("benchmarks/decode.py", "--part", "sweep", "--quick", "--repetitions", "1", "--prompts", "1"),
        *("--cutoff", "all", "--bundle", folder / "bundle", "--json", report),
    )
    mixed = json.loads(report.read_text())["results"][0]
    plain, everything = mixed["rows"]
    assert plain["cutoff"] == "plain" and plain["ratio"] == 1.0 and plain["accepted length"] == 1.0
    assert everything["cutoff"] == "all" and everything["verify length"] > 0
    assert "outputs differed in 0 of 3 comparisons" in " ".join(mixed["verdicts"])


def test_benchmark_cache_compares_capacities(folder: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    run(
        *("benchmarks/decode.py", "--part", "cache", "--quick", "--repetitions", "1", "--target", folder / "target"),
        *("--engines", tmp_path / "engines", "--json", report),
    )
    (result,) = json.loads(report.read_text())["results"]
    assert [row["ms at max_seq_len 512"] is None for row in result["rows"]] == [False, False, True]
    assert all(row["ms at max_seq_len 2048"] > 0 for row in result["rows"])


def test_benchmark_head_prints_every_storage_and_signal(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    shown = run("benchmarks/head.py", "--quick", "--batches", "1,3", "--json", report)
    rows = json.loads(report.read_text())
    assert [row["batch"] for row in rows if row["what"] == "int8"] == [1, 3]
    assert {row["what"] for row in rows} >= {"read", "float32", "bfloat16", "int8, signal topk_mass"}
    assert all(row["ms"] > 0 and row["what"] in shown for row in rows)


def test_benchmark_ops_prints_every_operator_beside_another(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    shown = run("benchmarks/ops.py", "--quick", "--json", report)
    lines = json.loads(report.read_text())["lines"]
    assert {line["operator"] for line in lines} == {"accept", "draft", "attention"}
    assert {line["other"].split()[0] for line in lines} == {"NumPy", "PyTorch", "read", "ONNX"}
    assert all(line["ratio"] > 0 and f"{line['ratio']:.2f}x" in shown for line in lines)


def test_benchmark_of_a_service_prints_every_part(folder: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    shown = run(
        *("benchmarks/serving.py", "--quick", "--repetitions", "1", "--bundle", folder / "bundle", "--json", report)
    )
    results = {result["part"]: result for result in json.loads(report.read_text())["results"]}
    assert list(results) == ["closed", "poisson", "overhead", "stall", "prefix"]
    assert all(result["title"] in shown for result in results.values())
    assert [(row["clients"], row["mode"]) for row in results["closed"]["rows"]] == [
        (1, "plain"), (1, "speculative"), (8, "plain"), (8, "speculative"),
    ]  # fmt: skip
    assert results["closed"]["rows"][0]["ratio"] == 1.0
    assert results["prefix"]["rows"][0]["tokens found"] == 1000
    assert all(row["plan and commit"] > 0 for row in results["overhead"]["rows"])


def test_benchmark_bundle_that_is_missing_is_one_line() -> None:
    command = [sys.executable, "benchmarks/decode.py", "--part", "demo", "--bundle", "absent"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 2 and "absent" in ended.stderr and "Traceback" not in ended.stderr
