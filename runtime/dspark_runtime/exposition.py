"""The counts of metrics.py as Prometheus reads them. Names follow vLLM's, with the prefix `dspark:`."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from dspark_runtime.engine import Engine
from dspark_runtime.metrics import Histogram

PREFIX = "dspark:"


class EngineCollector(Collector):
    """Reads an engine's counts when asked to, all of one moment."""

    def __init__(self, engine: Engine, model_name: str) -> None:
        self._engine = engine
        self._model = model_name

    def collect(self) -> Iterator[Metric]:
        with self._engine.metrics.lock:
            families = [*self._gauges(), *self._counters(), *self._speculation(), *self._histograms()]
        families += self._time()
        yield from families

    def _gauges(self) -> Iterator[Metric]:
        engine = self._engine
        values = {
            "num_requests_running": ("Requests that hold a slot.", engine.num_running),
            "num_requests_waiting": ("Requests without a slot.", engine.num_waiting),
            "num_slots": ("Requests that fit at once.", engine.num_slots),
            "kv_cache_usage_perc": (
                "Share of the slots that are taken, 0 to 1.",
                engine.num_running / engine.num_slots,
            ),
        }
        for name, (text, value) in values.items():
            yield self._one(GaugeMetricFamily(PREFIX + name, text, labels=["model_name"]), value)

    def _counters(self) -> Iterator[Metric]:
        metrics = self._engine.metrics
        values = {
            "requests": ("Requests taken.", metrics.added),
            "requests_refused": ("Requests that the full queue did not take.", metrics.refused),
            "num_preemptions": (
                "Times that a request lost its slot to a higher priority.",
                self._engine.num_preemptions,
            ),
            "prompt_tokens": ("Tokens of prompts, computed or found in a slot.", metrics.prompt_tokens),
            "prompt_tokens_computed": ("Of these, computed.", metrics.prefilled),
            "prompt_tokens_recomputed": ("Tokens computed again after a preemption.", metrics.recomputed),
            "prefix_cache_queries": ("Tokens of prompts that were looked for.", metrics.prefix_queries),
            "prefix_cache_hits": ("Of these, found in a slot.", metrics.prefix_hits),
            "generation_tokens": ("Tokens of output.", metrics.generation_tokens),
            "first_tokens": ("Of these, drawn from a prompt and of no round.", metrics.first_tokens),
            "rounds": ("Rounds of the engine.", metrics.rounds),
            "steps_failed": ("Steps that ended their requests with an error.", metrics.steps_failed),
        }
        for name, (text, value) in values.items():
            yield self._one(CounterMetricFamily(PREFIX + name, text, labels=["model_name"]), value)
        finished = CounterMetricFamily(
            PREFIX + "request_success", "Requests that ended, by reason; abort and error too, as in vLLM.",
            labels=["model_name", "finished_reason"],
        )  # fmt: skip
        for reason, count in metrics.finished.items():
            finished.add_metric([self._model, reason], count)
        yield finished

    def _speculation(self) -> Iterator[Metric]:
        texts = {
            "rounds": ("spec_decode_num_request_rounds", "Rounds times the requests in them."),
            "drafts": ("spec_decode_num_drafts", "Of these, those with proposals."),
            "proposed": ("spec_decode_num_draft_tokens", "Tokens proposed."),
            "not_scheduled": ("spec_decode_num_not_scheduled_tokens", "Proposals that the cutoff did not send."),
            "scheduled": ("spec_decode_num_scheduled_tokens", "Proposals that the target checked."),
            "verified": ("spec_decode_num_verified_tokens", "Of these, decided about: accepted or rejected."),
            "accepted": ("spec_decode_num_accepted_tokens", "Proposals that became output."),
            "rejected": ("spec_decode_num_rejected_tokens", "Proposals that the target did not keep."),
            "trimmed": ("spec_decode_num_trimmed_tokens", "Proposals behind the end of their request."),
            "target_tokens": ("spec_decode_num_target_tokens", "Tokens of output that the target drew itself."),
            "blocks": ("spec_decode_num_blocks", "Rounds with scheduled proposals."),
            "blocks_accepted": ("spec_decode_num_blocks_accepted", "Of these, those with all of them accepted."),
        }
        kinds = self._engine.metrics.speculation
        for field, (name, text) in texts.items():
            family = CounterMetricFamily(PREFIX + name, text, labels=["model_name", "lossless"])
            for lossless, counts in kinds.items():
                family.add_metric([self._model, str(lossless).lower()], getattr(counts, field))
            yield family
        for field, word in (("accepted_at", "accepted"), ("scheduled_at", "scheduled")):
            family = CounterMetricFamily(
                f"{PREFIX}spec_decode_num_{word}_tokens_per_pos", f"Proposals {word}, by place in the block from 0.",
                labels=["model_name", "lossless", "position"],
            )  # fmt: skip
            for lossless, counts in kinds.items():
                for place, count in enumerate(getattr(counts, field)):
                    family.add_metric([self._model, str(lossless).lower(), str(place)], count)
            yield family
        rates = {
            "spec_decode_acceptance_rate": ("Accepted share of the verified proposals.", "acceptance_rate"),
            "spec_decode_block_acceptance_rate": (
                "Share of the blocks that were accepted whole.",
                "block_acceptance_rate",
            ),
            "spec_decode_accepted_length": ("Tokens of output per round and request.", "accepted_length"),
        }
        for name, (text, field) in rates.items():
            gauge = GaugeMetricFamily(PREFIX + name, text, labels=["model_name", "lossless"])
            for lossless, counts in kinds.items():
                gauge.add_metric([self._model, str(lossless).lower()], getattr(counts, field))
            yield gauge

    def _histograms(self) -> Iterator[Metric]:
        metrics = self._engine.metrics
        values = {
            "time_to_first_token_seconds": ("From arrival to the first token.", metrics.ttft),
            "inter_token_latency_seconds": (
                "Between two tokens of a request; those of one round share the wait.", metrics.inter_token,
            ),
            "e2e_request_latency_seconds": ("From arrival to the end.", metrics.latency),
            "request_queue_time_seconds": ("From arrival to the first chunk of the prompt.", metrics.queue_time),
            "request_prefill_time_seconds": ("From the first chunk to the first token.", metrics.prefill_time),
            "request_decode_time_seconds": ("From the first token to the end.", metrics.decode_time),
            "request_prompt_tokens": ("Tokens of a prompt.", metrics.request_prompt_tokens),
            "request_generation_tokens": ("Tokens of an output.", metrics.request_generation_tokens),
            "spec_decode_round_tokens": ("Tokens of output of a request in a round.", metrics.accepted_length),
        }  # fmt: skip
        for name, (text, histogram) in values.items():
            family = HistogramMetricFamily(PREFIX + name, text, labels=["model_name"])
            family.add_metric([self._model], buckets=_cumulative(histogram), sum_value=histogram.sum)
            yield family

    def _time(self) -> list[Metric]:
        profile = self._engine.profiler.snapshot()
        seconds = CounterMetricFamily(
            PREFIX + "round_seconds", "Seconds of all rounds, by part.", labels=["model_name", "part"]
        )
        for part, value in profile.parts().items():
            seconds.add_metric([self._model, part.replace(" ", "_")], value)
        share = GaugeMetricFamily(
            PREFIX + "round_host_share", "Share of a round that is neither engine nor operator.", labels=["model_name"]
        )
        return [seconds, self._one(share, profile.host_share)]

    def _one(self, family: Metric, value: float) -> Metric:
        family.add_metric([self._model], value)  # type: ignore[attr-defined]
        return family


def prometheus_text(engine: Engine, model_name: str) -> str:
    """Everything as text in Prometheus' format."""
    registry = CollectorRegistry()
    registry.register(EngineCollector(engine, model_name))
    text: bytes = generate_latest(registry)
    return text.decode()


def _cumulative(histogram: Histogram) -> list[tuple[str, float]]:
    total, buckets = 0, []
    for bound, count in zip((*map(str, map(float, histogram.bounds)), "+Inf"), histogram.buckets, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets
