"""`dspark generate`: text, statistics, JSON, and one line for everything that cannot be done."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dspark_runtime.cli.main import main
from dspark_runtime.cli.report import summarise
from dspark_runtime.outputs import CompletionOutput, RequestOutput, RequestStats
from dspark_runtime.params import SpeculativeParams

GREEDY = ("--temperature", "0", "--max-tokens", "12", "--ignore-eos")


def generated(dspark: Callable, bundle: Path, *arguments: str) -> dict:
    ended = dspark("generate", bundle, "--json", *arguments)
    assert ended.code == 0, ended.err
    assert ended.err == ""
    return json.loads(ended.out)


def test_generate_prints_text_to_stdout_and_statistics_to_stderr(dspark: Callable, tiny_bundle: Path) -> None:
    ended = dspark("generate", tiny_bundle, "--prompt", "one two", *GREEDY)
    text = generated(dspark, tiny_bundle, "--prompt", "one two", *GREEDY)["outputs"][0]["text"]
    assert ended.code == 0 and ended.out == text + "\n"
    assert ended.err.startswith("12 tokens in ") and ended.err.endswith("ended by length\n")


def test_generate_streamed_text_equals_the_text_at_once(dspark: Callable, tiny_bundle: Path) -> None:
    whole = dspark("generate", tiny_bundle, "--prompt", "one two", *GREEDY, "--no-stream")
    streamed = dspark("generate", tiny_bundle, "--prompt", "one two", *GREEDY, "--stream")
    assert streamed.code == 0 and streamed.out == whole.out
    assert streamed.err.startswith("12 tokens in ")


def test_generate_several_prompts_are_one_batch_in_order(dspark: Callable, tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "second.txt").write_text("two")
    arguments = ("--prompt", "one", "--prompt-file", str(tmp_path / "second.txt"), "--prompt", "three")
    report = generated(dspark, tiny_bundle, *arguments, *GREEDY)
    assert [output["prompt"] for output in report["outputs"]] == ["one", "two", "three"]
    assert report["statistics"]["requests"] == 3 and report["statistics"]["output_tokens"] == 36
    alone = generated(dspark, tiny_bundle, "--prompt", "two", *GREEDY)
    assert alone["outputs"][0]["token_ids"] == report["outputs"][1]["token_ids"]


def test_generate_several_prompts_without_json_are_numbered(dspark: Callable, tiny_bundle: Path) -> None:
    ended = dspark("generate", tiny_bundle, "--prompt", "one", "--prompt", "two", *GREEDY)
    assert ended.out.startswith("--- 1\n") and "\n--- 2\n" in ended.out
    assert ended.err.startswith("2 requests, 24 tokens in ")


def test_generate_dash_reads_stdin(dspark: Callable, tiny_bundle: Path) -> None:
    ended = dspark("generate", tiny_bundle, "--prompt-file", "-", "--json", *GREEDY, stdin="grüß dich".encode())
    assert json.loads(ended.out)["outputs"][0]["prompt"] == "grüß dich"


@pytest.mark.parametrize(
    ("given", "prompt"),
    [("a b\n", "a b"), ("a b\n\n", "a b\n"), ("a b\r\n", "a b"), (" a\nb ", " a\nb "), ("a\r", "a\r")],
)
def test_generate_prompt_read_from_a_file_loses_one_newline_at_its_end(
    dspark: Callable, tiny_bundle: Path, tmp_path: Path, given: str, prompt: str
) -> None:
    (tmp_path / "prompt.txt").write_bytes(given.encode())
    arguments = ("--prompt-file", str(tmp_path / "prompt.txt"), "--prompt-file", "-", "--prompt", given, "--json")
    report = json.loads(dspark("generate", tiny_bundle, *arguments, *GREEDY, stdin=given.encode()).out)
    assert [output["prompt"] for output in report["outputs"]] == [prompt, prompt, given]


def test_generate_help_and_guide_list_every_cutoff_that_is_accepted(dspark: Callable) -> None:
    shown = dspark("generate", "--help").out
    guide = Path(__file__).parents[3].joinpath("docs/cutoff.md").read_text(encoding="utf-8")
    refusal = dspark("generate", "bundle", "--prompt", "x", "--cutoff", "nonsense").error
    for value in ("auto", "all", "off", "threshold:X", "survival:X"):
        assert value in shown and f"| `{value}` |" in guide and value in refusal
        SpeculativeParams(cutoff=value.replace("X", "0.5"))


@pytest.mark.parametrize("prompts", [("one two",), ("one two", "three", "four five six")])
def test_generate_accepted_length_is_that_of_the_requests(
    dspark: Callable, tiny_bundle: Path, prompts: tuple[str, ...]
) -> None:
    given = [argument for prompt in prompts for argument in ("--prompt", prompt)]
    report = generated(dspark, tiny_bundle, *given, "--temperature", "0", "--cutoff", "all", "--max-tokens", "5")
    each = [output["statistics"] for output in report["outputs"]]
    rounds = sum(stats["rounds"] for stats in each)
    mean = sum(stats["accepted_length"] * stats["rounds"] for stats in each) / rounds
    assert report["statistics"]["accepted_length"] == pytest.approx(mean)


def test_accepted_length_of_a_batch_counts_no_token_that_a_stop_cut_off() -> None:
    counts = {"rounds": 2, "proposed": 8, "verified": 8, "accepted": 3, "ttft_s": 0.1, "total_s": 0.2}
    stats = RequestStats(output_tokens=5, **counts)  # the last round ended in an accepted token: no token of its own
    answer = CompletionOutput(index=0, text="", token_ids=(1,) * 5, finish_reason="length", stop_reason=None)
    output = RequestOutput(request_id=0, prompt="", prompt_token_ids=(1,), outputs=(answer,), stats=stats)
    assert summarise([output], 1.0)["accepted_length"] == stats.accepted_length == 2.0


def test_generate_counts_agree_with_each_other(dspark: Callable, tiny_bundle: Path) -> None:
    report = generated(dspark, tiny_bundle, "--prompt", "one two", *GREEDY, "--cutoff", "all")
    counts = report["outputs"][0]["statistics"]
    assert counts["output_tokens"] == len(report["outputs"][0]["token_ids"]) == 12
    assert 0 <= counts["accepted"] <= counts["verified"] <= counts["proposed"] and counts["proposed"] > 0
    assert report["statistics"]["accepted"] == counts["accepted"]


def test_generate_speculation_off_drafts_nothing_and_writes_the_same(dspark: Callable, tiny_bundle: Path) -> None:
    plain = generated(dspark, tiny_bundle, "--prompt", "one two", *GREEDY, "--speculative", "off")
    fast = generated(dspark, tiny_bundle, "--prompt", "one two", *GREEDY, "--speculative", "on")
    assert plain["statistics"]["proposed"] == 0 < fast["statistics"]["proposed"]
    assert plain["outputs"][0]["token_ids"] == fast["outputs"][0]["token_ids"]


def test_generate_max_verify_caps_what_is_checked(dspark: Callable, tiny_bundle: Path) -> None:
    arguments = ("--prompt", "one two", *GREEDY, "--cutoff", "all", "--max-verify", "1")
    counts = generated(dspark, tiny_bundle, *arguments)["statistics"]
    assert 0 < counts["verified"] <= counts["rounds"]


def test_generate_same_seed_repeats_and_another_differs(dspark: Callable, tiny_bundle: Path) -> None:
    def tokens(seed: str) -> list[int]:
        report = generated(dspark, tiny_bundle, "--prompt", "one", "--max-tokens", "24", "--ignore-eos", "--seed", seed)
        return report["outputs"][0]["token_ids"]

    assert tokens("7") == tokens("7") != tokens("8")


def test_generate_stop_text_ends_before_it(dspark: Callable, tiny_bundle: Path) -> None:
    whole = generated(dspark, tiny_bundle, "--prompt", "one two", *GREEDY)["outputs"][0]["text"]
    stop = whole[len(whole) // 2 :][:2]
    output = generated(dspark, tiny_bundle, "--prompt", "one two", *GREEDY, "--stop", stop)["outputs"][0]
    assert output["text"] == whole[: whole.index(stop)]
    assert (output["finish_reason"], output["stop_reason"]) == ("stop", stop)


def test_generate_chat_wraps_the_prompt_in_the_template(dspark: Callable, tiny_bundle: Path) -> None:
    bare = generated(dspark, tiny_bundle, "--prompt", "hi", *GREEDY)["outputs"][0]
    chat = generated(dspark, tiny_bundle, "--prompt", "hi", "--chat", *GREEDY)["outputs"][0]
    system = generated(dspark, tiny_bundle, "--prompt", "hi", "--system", "be brief", *GREEDY)["outputs"][0]
    assert bare["num_prompt_tokens"] < chat["num_prompt_tokens"] < system["num_prompt_tokens"]


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ '{} {}'.format(1) }}", "IndexError"),
        ("{{ 'a' | center(4000000000) }}", "too much memory"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{% for %}", "cannot be compiled"),
    ],
)
def test_generate_chat_with_a_template_that_fails_is_one_line(
    dspark: Callable, damaged: Callable[..., Path], tiny_bundle: Path, template: str, why: str
) -> None:
    config = json.loads((tiny_bundle / "tokenizer_config.json").read_text()) | {"chat_template": template}
    data = json.dumps(config).encode()
    change = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    files = json.loads((tiny_bundle / "manifest.json").read_text())["files"]
    bundle = damaged(files=[entry | change if entry["path"] == "tokenizer_config.json" else entry for entry in files])
    (bundle / "tokenizer_config.json").write_bytes(data)
    error = dspark("generate", bundle, "--chat", "--prompt", "x").error
    assert error.startswith("chat template") and why in error


def test_generate_profile_accounts_for_the_run(dspark: Callable, tiny_bundle: Path) -> None:
    ended = dspark("generate", tiny_bundle, "--prompt", "one two", *GREEDY, "--profile")
    for part in ("draft session", "head", "cutoff", "target session", "accept", "host", "prompts"):
        assert part in ended.err
    profile = generated(dspark, tiny_bundle, "--prompt", "one two", *GREEDY, "--profile")["profile"]
    assert all(seconds >= 0 for seconds in profile.values()) and profile["target_session_s"] > 0


@pytest.mark.parametrize(
    "arguments, words",
    [
        ((), ("no prompt",)),
        (("--prompt", "x", "--temperature", "-1"), ("temperature is -1.0",)),
        (("--prompt", "x", "--temperature", "warm"), ("--temperature", "warm")),
        (("--prompt", "x", "--top-p", "0", "--min-p", "2"), ("top_p is 0.0", "min_p is 2.0")),
        (("--prompt", "x", "--max-tokens", "0"), ("max_tokens is 0",)),
        (("--prompt", "x", "--seed", "-5"), ("seed is -5",)),
        (("--prompt", "x", "--stop", ""), ("stop",)),
        (("--prompt", "x", "--cutoff", "throughput"), ("cutoff is 'throughput'", "threshold", "survival")),
        (("--prompt", "x", "--cutoff", "threshold:1.5"), ("threshold:1.5", "[0, 1]")),
        (("--prompt", "x", "--accept", "lenient"), ("accept is 'lenient'", "relaxed", "rejection")),
        (("--prompt", "x", "--accept", "relaxed:0.9,0.1"), ("relaxed:0.9,0.1", "min_bar <= max_bar")),
        (("--prompt", "x", "--signal", "mood"), ("signal is 'mood'", "head", "top1")),
        (("--prompt", "x", "--logit-bias", "42"), ("--logit-bias is '42'", "42=-1.5")),
        (("--prompt", "x", "--bad-word", "\udcff"), ("--bad-word is not UTF-8",)),
        (("--prompt", "x", "--n", "3", "--temperature", "0"), ("n is 3", "needs 1 in greedy decoding")),
        (("--prompt", "x", "--max-verify", "-1"), ("max_len is -1",)),
        (("--prompt", "x", "--threads", "0"), ("threads", "0")),
        (("--prompt", "x", "--prompt", "y", "--stream"), ("--stream takes one prompt",)),
        (("--prompt", "x", "--stream", "--json"), ("--stream and --json",)),
        (("--prompt-file", "absent.txt"), ("absent.txt", "No such file")),
        (("--prompt-file", "."), ("--prompt-file .", "directory")),
        (("--prompt", "a\udcff"), ("--prompt is not UTF-8", "character 1")),
        (("--prompt", "x", "--system", "\udcff"), ("--system is not UTF-8",)),
        (("--prompt", "x", "--stop", "end", "--stop", "\udcff"), ("--stop is not UTF-8",)),
    ],
)
def test_generate_bad_option_is_one_line(
    dspark: Callable, tiny_bundle: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    error = dspark("generate", tiny_bundle, *arguments).error
    for word in words:
        assert word in error


def test_generate_prompt_that_is_not_utf8_is_one_line(dspark: Callable, tiny_bundle: Path) -> None:
    error = dspark("generate", tiny_bundle, "--prompt-file", "-", stdin=b"abc\xff").error
    assert "not UTF-8" in error and "byte 3" in error


def test_generate_dash_with_stdin_closed_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tiny_bundle: Path
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["generate", str(tiny_bundle), "--prompt-file", "-"]) == 2
    assert capsys.readouterr().err == "dspark: error: generate: --prompt-file - reads stdin, which is closed\n"


def test_generate_prompt_longer_than_the_limit_is_one_line(dspark: Callable, tiny_bundle: Path) -> None:
    error = dspark("generate", tiny_bundle, "--prompt", "word " * 500, "--max-tokens", "4").error
    assert "96" in error and "tokens" in error


def test_generate_empty_prompt_is_one_line(dspark: Callable, tiny_bundle: Path) -> None:
    assert "prompt has no tokens" in dspark("generate", tiny_bundle, "--prompt", "", *GREEDY).error


def test_generate_newer_bundle_is_one_line(dspark: Callable, damaged: Callable[..., Path]) -> None:
    assert "format version 9.0" in dspark("generate", damaged(format_version=[9, 0]), "--prompt", "x").error


def test_generate_damaged_graph_is_one_line(dspark: Callable, damaged: Callable[..., Path]) -> None:
    bundle = damaged()
    graph = bundle / "target.onnx"
    graph.write_bytes(b"\xff" * graph.stat().st_size)
    assert "target.onnx" in dspark("generate", bundle, "--prompt", "x").error
