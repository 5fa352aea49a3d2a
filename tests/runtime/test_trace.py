"""Steps on file: they are read as they were, and give the same again on fresh engines."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dspark_runtime import LLM, SamplingParams, SpeculativeParams
from dspark_runtime.bundle import open_bundle
from dspark_runtime.cli.main import main
from dspark_runtime.contract.errors import ConfigError
from dspark_runtime.executor import open_executor
from dspark_runtime.plan import PrefillPlan, RoundPlan, StepPlan, StepResult
from dspark_runtime.trace import Trace, TraceWriter, differences, replay
from tests.runtime.conftest import THREADS

GetBundle = Callable[[str], Path]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, speculative=SpeculativeParams(cutoff="all")),
    SamplingParams(temperature=0.9, seed=5, top_k=9, max_tokens=9, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=1.1, top_p=0.8, max_tokens=9, ignore_eos=True),
    SamplingParams(
        temperature=0.7, max_tokens=7, repetition_penalty=1.3, logit_bias={7: 2.5},
        allowed_token_ids=list(range(5, 90)), prompt_logprobs=1, ignore_eos=True, n=2,
    ),
]  # fmt: skip
PROMPTS = [[5, 6, 7], [(3 * i) % 200 + 4 for i in range(30)], [5, 6, 7, 8], [(3 * i) % 200 + 4 for i in range(20)]]


def record(folder: Path, path: Path) -> Path:
    with LLM(folder, num_threads=THREADS, prefill_chunk=8, trace=path) as llm:
        llm.generate(PROMPTS, PARAMS)
    return path


@pytest.mark.parametrize("name", ["good", "itself", "none", "good-standard"])
def test_trace_replayed_on_fresh_engines_gives_the_same_results(bundle: GetBundle, tmp_path: Path, name: str) -> None:
    trace = Trace(record(bundle(name), tmp_path / "steps.jsonl"))
    opened = open_bundle(bundle(name))
    executor, _ = open_executor(opened, THREADS)
    found = list(replay(trace, executor, opened.manifest))
    assert [entry.differences for entry in found] == [[]] * len(found)
    plans = [entry.step.plan for entry in found]
    assert (
        sum(isinstance(plan, PrefillPlan) for plan in plans) >= 4 < sum(isinstance(plan, RoundPlan) for plan in plans)
    )
    assert any(isinstance(plan, PrefillPlan) and plan.copy_from is not None for plan in plans)
    assert [entry.step.number for entry in found] == list(range(len(found)))


def test_trace_read_back_is_what_was_planned(bundle: GetBundle, tmp_path: Path) -> None:
    seen: list[tuple[StepPlan, StepResult]] = []
    opened = open_bundle(bundle("good"))
    executor, _ = open_executor(opened, THREADS)
    trace = Trace(record(bundle("good"), tmp_path / "first.jsonl"))

    class Watched:
        block_size = executor.block_size

        def run(self, plan: StepPlan) -> StepResult:
            result = executor.run(plan)
            seen.append((plan, result))
            return result

    writer = TraceWriter(tmp_path / "second.jsonl", Watched(), opened.manifest)
    for step in trace.steps():
        writer.run(step.plan)
    writer.close()
    assert [(step.plan, step.result) for step in Trace(tmp_path / "second.jsonl").steps()] == seen


def test_trace_that_was_changed_differs_at_that_step(bundle: GetBundle, tmp_path: Path) -> None:
    lines = record(bundle("good"), tmp_path / "steps.jsonl").read_text().splitlines(keepends=True)
    number, entry = next(
        (i, json.loads(line)) for i, line in enumerate(lines) if '"round"' in line and '"accepted":[0' not in line
    )
    entry["result"]["tokens"][0][0] += 1
    lines[number] = json.dumps(entry) + "\n"
    (tmp_path / "changed.jsonl").write_text("".join(lines))
    opened = open_bundle(bundle("good"))
    executor, _ = open_executor(opened, THREADS)
    found = [
        entry for entry in replay(Trace(tmp_path / "changed.jsonl"), executor, opened.manifest) if entry.differences
    ]
    assert len(found) == 1 and found[0].differences[0].startswith("tokens was ")


def test_trace_of_other_engines_is_refused(bundle: GetBundle, tmp_path: Path) -> None:
    trace = Trace(record(bundle("none"), tmp_path / "steps.jsonl"))
    opened = open_bundle(bundle("good"))
    with pytest.raises(ConfigError, match=r"recorded with engines .*; replay it on the bundle it came from"):
        next(replay(trace, None, opened.manifest))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: no JSON object"),
        ("{}\n", "no trace of schema 1"),
        ('{"dspark_trace": 2}\n', "no trace of schema 1"),
        ('{"dspark_trace": 1}\nx\n', "line 2: no JSON object"),
        ('{"dspark_trace": 1}\n{"step": 0}\n', "line 2: damaged"),
        ('{"dspark_trace": 1}\n{"step": 0, "kind": "x", "plan": {}}\n', "line 2: damaged"),
    ],
)
def test_trace_that_is_none_is_refused_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        list(Trace(path).steps())


def test_trace_cut_in_a_line_ends_before_it(bundle: GetBundle, tmp_path: Path) -> None:
    path = record(bundle("none"), tmp_path / "steps.jsonl")
    whole = len(list(Trace(path).steps()))
    path.write_bytes(path.read_bytes()[:-20])
    assert len(list(Trace(path).steps())) == whole - 1


def test_trace_of_a_step_that_failed_ends_with_its_error(bundle: GetBundle, tmp_path: Path) -> None:
    opened = open_bundle(bundle("none"))
    plans = [step.plan for step in Trace(record(bundle("none"), tmp_path / "steps.jsonl")).steps()]

    class Failing:
        block_size = 0

        def run(self, plan: StepPlan) -> StepResult:
            raise MemoryError("no room")

    writer = TraceWriter(tmp_path / "failed.jsonl", Failing(), opened.manifest)
    with pytest.raises(MemoryError):
        writer.run(plans[0])
    writer.close()
    (step,) = Trace(tmp_path / "failed.jsonl").steps()
    assert (step.plan, step.result, step.error) == (plans[0], None, "MemoryError: no room")


def test_differences_tolerate_log_probabilities_and_nothing_else() -> None:
    result = StepResult(
        proposed=(1,), verified=(1,), accepted=(1,), tokens=((3, 4),), ends=("bonus",), draft_lengths=(5,),
    )  # fmt: skip
    assert differences(result, replace(result)) == []
    assert differences(result, replace(result, accepted=(0,))) == ["accepted was (1,), is (0,)"]
    close = replace(result, logprobs=(((1.0, float("nan")),),))  # type: ignore[arg-type]
    assert differences(close, replace(close, logprobs=(((1.00001, float("nan")),),))) == []  # type: ignore[arg-type]
    assert len(differences(close, replace(close, logprobs=(((1.1, float("nan")),),)))) == 1  # type: ignore[arg-type]


def test_trace_command_records_prints_and_replays(
    bundle: GetBundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, folder = str(tmp_path / "steps.jsonl"), str(bundle("good"))
    options = ["--prompt", "The quick", "--max-tokens", "8", "--temperature", "0", "--threads", "2"]
    assert main(["trace", "record", path, folder, *options]) == 0
    capsys.readouterr()
    assert main(["trace", "print", path]) == 0
    shown = capsys.readouterr().out
    assert "prefill slot 0, rows 0 to" in shown and "round   slot 0 at" in shown and "8 tokens, 0 failed" in shown
    assert main(["trace", "print", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == 8
    assert main(["trace", "replay", path, folder, "--threads", "2"]) == 0
    assert ", 0 came out otherwise" in capsys.readouterr().out
    text = Path(path).read_text()
    Path(path).write_text(re.sub(r'"verified":\[\d+\]', '"verified":[9]', text))
    assert main(["trace", "replay", path, folder, "--threads", "2", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["different"] == report["steps"] > 1
    assert main(["trace", "print", str(tmp_path / "absent")]) == 2
    assert "cannot be read: No such file" in capsys.readouterr().err
