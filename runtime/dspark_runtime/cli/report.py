"""What `generate` says about a finished batch: one line of statistics, the profile, text fit for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TextIO

from rich.table import Table

from dspark_runtime.outputs import CompletionOutput, PositionLogprobs, RequestOutput
from dspark_runtime.profile import Profile

# A model's output is no terminal program: control characters but newline and tab are shown, not obeyed.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def printable(text: str, stream: TextIO) -> str:
    """`text` as it is for a file or pipe; with control characters escaped for a terminal."""
    return escape_controls(text) if stream.isatty() else text


def escape_controls(text: str) -> str:
    """`text` without a character that a terminal would obey, newline and tab excepted."""
    return text.translate(_CONTROLS)


def output_dict(output: RequestOutput) -> dict[str, Any]:
    """A finished request for machines: its own fields are those of its first output; `samples` has all of several."""
    report = {
        "prompt": output.prompt,
        "num_prompt_tokens": len(output.prompt_token_ids),
        **_answer_dict(output.outputs[0]),
        "lossless": output.lossless,
        "statistics": output.stats.as_dict(),
    }
    if output.prompt_logprobs is not None:
        report["prompt_logprobs"] = [_logprobs_list(entry) for entry in output.prompt_logprobs]
    if len(output.outputs) > 1:
        report["samples"] = [_answer_dict(answer) for answer in output.outputs]
    return report


def _answer_dict(answer: CompletionOutput) -> dict[str, Any]:
    report: dict[str, Any] = {
        "text": answer.text,
        "token_ids": list(answer.token_ids),
        "finish_reason": answer.finish_reason,
        "stop_reason": answer.stop_reason,
    }
    if answer.error is not None:
        report["error"] = answer.error
    if answer.logprobs is not None:
        report["cumulative_logprob"] = answer.cumulative_logprob
        report["logprobs"] = [_logprobs_list(entry) for entry in answer.logprobs]
    return report


def _logprobs_list(entry: PositionLogprobs | None) -> list[dict[str, Any]] | None:
    """The token that stands there first, then the most probable ones; None for a prompt's first token."""
    if entry is None:
        return None
    return [
        {
            "token_id": token,
            # JSON has no infinity: a token that cannot be.
            "logprob": one.logprob if math.isfinite(one.logprob) else None,
            "rank": one.rank,
            "decoded_token": one.decoded_token,
        }
        for token, one in entry.items()
    ]


def summarise(outputs: Sequence[RequestOutput], seconds: float) -> dict[str, int | float | bool]:
    """Counts over all requests. seconds: wall time of the batch, prompts included.

    accepted_length and acceptance_rate are those of RequestStats over the rounds of all requests: tokens emitted per
    round, the target's own included, and the accepted share of the verified; 0 where nothing was decoded or verified.
    """
    stats = [output.stats for output in outputs]
    rounds, verified = sum(s.rounds for s in stats), sum(s.verified for s in stats)
    accepted, tokens = sum(s.accepted for s in stats), sum(s.output_tokens for s in stats)
    samples = sum(s.samples for s in stats)
    return {
        "requests": len(outputs),
        "prompt_tokens": sum(len(output.prompt_token_ids) for output in outputs),
        "output_tokens": tokens,
        "seconds": seconds,
        "tokens_per_s": tokens / seconds if seconds > 0 else 0.0,
        "ttft_s": min(s.ttft_s for s in stats),
        "rounds": rounds,
        "proposed": sum(s.proposed for s in stats),
        "verified": verified,
        "accepted": accepted,
        "accepted_length": (tokens - samples) / rounds if rounds else 0.0,
        "acceptance_rate": accepted / verified if verified else 0.0,
        "lossless": all(s.lossless for s in stats),
    }


def statistics_line(outputs: Sequence[RequestOutput], seconds: float) -> str:
    total = summarise(outputs, seconds)
    requests = "" if len(outputs) == 1 else f"{len(outputs)} requests, "
    line = (
        f"{requests}{total['output_tokens']} tokens in {seconds:.2f} s ({total['tokens_per_s']:.1f} tokens/s), "
        f"first after {total['ttft_s']:.2f} s"
    )
    if total["proposed"]:
        line += (
            f"; accepted length {total['accepted_length']:.2f} (bonus included), "
            f"{total['accepted']} of {total['verified']} checked proposals accepted"
        )
    if not total["lossless"]:
        line += "; NOT lossless: proposals were accepted by a relaxed rule"
    errors = [answer.error for output in outputs for answer in output.outputs if answer.error is not None]
    if len(outputs) == 1 and len(outputs[0].outputs) == 1:
        line += f"; ended by {outputs[0].finish_reason}"
    if errors:
        line += f": {errors[0]}" if len(outputs) == 1 else f"; {len(errors)} ended by error: {errors[0]}"
    return line


def profile_table(profile: Profile) -> Table:
    """Where the time of a run went: the parts of its rounds, and the prompts apart."""
    table = Table(title=f"profile of {profile.rounds} rounds", title_justify="left")
    table.add_column("part")
    for heading in ("ms", "ms per round", "share"):
        table.add_column(heading, justify="right")
    for part, seconds in [*profile.parts().items(), ("round", profile.round_s)]:
        each = seconds / profile.rounds if profile.rounds else 0.0
        share = seconds / profile.round_s if profile.round_s else 0.0
        table.add_row(part, f"{seconds * 1e3:.1f}", f"{each * 1e3:.2f}", f"{share:.1%}")
    table.add_row(f"prompts, {profile.prefill_steps} chunks", f"{profile.prefill_s * 1e3:.1f}", "", "")
    return table


def profile_dict(profile: Profile) -> dict[str, float]:
    """The same for machines, in seconds; the keys of the parts are those of the table with underscores."""
    parts = {f"{part.replace(' ', '_')}_s": seconds for part, seconds in profile.parts().items()}
    return {
        "rounds": profile.rounds,
        **parts,
        "round_s": profile.round_s,
        "prefill_steps": profile.prefill_steps,
        "prefill_s": profile.prefill_s,
    }
