"""What a caller asked for as one: the outputs of a prompt, each a request of its own; to the engine and back.

Knows tokens and text, no engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dspark_runtime.contract.manifest import Manifest
from dspark_runtime.detokenize import Detokenizer, text_of
from dspark_runtime.outputs import CompletionOutput, Logprob, PositionLogprobs, RequestOutput, RequestStats
from dspark_runtime.params import SamplingParams
from dspark_runtime.plan import TokenLogprobs
from dspark_runtime.request import Request, another_sample, make_request
from dspark_runtime.rules import split_words
from dspark_runtime.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Sample:
    """One output of a job."""

    request: Request
    detokenizer: Detokenizer | None
    """Where text is wanted while it arrives, or may end the output."""


@dataclass(frozen=True, slots=True)
class Job:
    """A prompt and the `n` outputs that were asked for; their request ids follow each other."""

    samples: tuple[Sample, ...]
    echo: str
    """The prompt's text, where it belongs to the output's; else empty."""

    @property
    def requests(self) -> tuple[Request, ...]:
        return tuple(sample.request for sample in self.samples)

    @property
    def is_finished(self) -> bool:
        return all(sample.request.is_finished for sample in self.samples)


def make_job(
    request_id: int,
    prompt: str | None,
    token_ids: Sequence[int],
    params: SamplingParams,
    manifest: Manifest,
    tokenizer: Tokenizer,
    arrival: float,
    *,
    streams: bool = False,
    priority: int = 0,
    cache_salt: str | None = None,
) -> Job:
    """`params.n` requests with ids from `request_id` on. streams: text is wanted while it arrives.

    Raises what `make_request` raises, and ConfigError for bad words that are no token.
    """
    words = split_words(tuple(params.bad_words or ()), lambda text: tokenizer.encode(text, add_special_tokens=False))
    first = make_request(request_id, prompt, token_ids, params, manifest, arrival, priority, cache_salt, words)
    requests = [first, *(another_sample(first, request_id + index, index) for index in range(1, params.n))]
    echo = ""
    if params.echo:
        echo = prompt if prompt is not None else tokenizer.decode(token_ids, params.skip_special_tokens)
    decode = tokenizer.decoder(params.skip_special_tokens)
    return Job(
        tuple(
            Sample(
                request,
                Detokenizer(decode, params.stop_strings, params.include_stop_str_in_output, params.min_tokens, echo)
                if streams or params.stop_strings
                else None,
            )
            for request in requests
        ),
        echo,
    )


def job_output(job: Job, tokenizer: Tokenizer) -> RequestOutput:
    """The result of a job whose requests have all ended."""
    requests = job.requests
    first = requests[0]
    prompt_logprobs = None
    # An output that never began leaves them incomplete, or no numbers.
    if first.params.prompt_logprobs is not None and first.num_output:
        prompt_logprobs = (None, *(_by_token(entry, tokenizer) for entry in first.prompt_logprobs))
    return RequestOutput(
        request_id=first.request_id,
        prompt=first.prompt,
        prompt_token_ids=first.prompt_token_ids,
        outputs=tuple(_completion(index, sample, job.echo, tokenizer) for index, sample in enumerate(job.samples)),
        stats=_stats(requests),
        prompt_logprobs=prompt_logprobs,
    )


def _completion(index: int, sample: Sample, echo: str, tokenizer: Tokenizer) -> CompletionOutput:
    request, params = sample.request, sample.request.params
    ids = request.output_token_ids
    if sample.detokenizer is not None:
        text = sample.detokenizer.text
    else:
        # Without stop strings the text is made once, at the end.
        ends_in_stop = bool(ids) and request.finish_reason == "stop" and not params.include_stop_str_in_output
        kept = ids[:-1] if ends_in_stop else ids
        text = echo + text_of(tokenizer.decoder(params.skip_special_tokens), kept)
    assert request.finish_reason is not None
    wants = params.logprobs is not None
    return CompletionOutput(
        index=index,
        text=text,
        token_ids=tuple(ids),
        finish_reason=request.finish_reason,
        stop_reason=request.stop_reason,
        error=request.error,
        cumulative_logprob=sum(entry.values[0] for entry in request.logprobs) if wants else None,
        logprobs=tuple(_by_token(entry, tokenizer) for entry in request.logprobs) if wants else None,
    )


def _by_token(entry: TokenLogprobs, tokenizer: Tokenizer) -> PositionLogprobs:
    found: dict[int, Logprob] = {}
    ranks = (entry.rank, *range(1, len(entry.ids)))
    for token, value, rank in zip(entry.ids, entry.values, ranks, strict=True):
        # The token itself comes first; it may be one of the most probable, too.
        if token not in found:
            text = tokenizer.decode([token], skip_special_tokens=False)
            found[token] = Logprob(logprob=value, rank=rank, decoded_token=text)
    return found


def _stats(requests: Sequence[Request]) -> RequestStats:
    ends = [request.finish_time for request in requests if request.finish_time is not None]
    starts = [request.first_token_time for request in requests if request.first_token_time is not None]
    arrival = requests[0].arrival
    return RequestStats(
        rounds=sum(request.rounds for request in requests),
        proposed=sum(request.proposed for request in requests),
        verified=sum(request.verified for request in requests),
        accepted=sum(request.accepted for request in requests),
        ttft_s=min(starts, default=max(ends)) - arrival,
        total_s=max(ends) - arrival,
        output_tokens=sum(request.num_output for request in requests),
        samples=sum(request.num_output > 0 for request in requests),
        lossless=all(request.lossless for request in requests),
        cached_tokens=requests[0].cached_tokens,
        queue_s=min((r.start_time for r in requests if r.start_time is not None), default=max(ends)) - arrival,
        preemptions=sum(request.preemptions for request in requests),
    )
