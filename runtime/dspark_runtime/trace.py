"""Steps on file: what was planned, and what came of it. One JSON value a line, so that a file can be cut anywhere.

The first line says what was recorded on: `{"dspark_trace": 1, ...}`. Parameters of requests are written once, as
`{"sampling": N, "value": {...}}`, and named by number after that. A step is `{"step": i, "kind": "prefill" or "round",
"plan": {...}, "result": {...}, "seconds": s}`, with `"error"` in place of the result where it raised; the fields of
plan and result are those of plan.py. Logits that are not finite give -Infinity or NaN, as Python's json writes them.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from dspark_runtime.contract.errors import ConfigError
from dspark_runtime.contract.manifest import Manifest
from dspark_runtime.executor import Executor
from dspark_runtime.plan import PrefillPlan, RoundPlan, SlotSampling, StepPlan, StepResult

SCHEMA = 1
_KINDS = {"prefill": PrefillPlan, "round": RoundPlan}


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a trace."""

    number: int
    plan: StepPlan
    result: StepResult | None
    """None where the step failed."""
    error: str | None
    seconds: float


def identity(manifest: Manifest) -> dict[str, Any]:
    """What steps mean something for: the files of the engines, and the number of slots."""
    hashes = {file.path: file.sha256 for file in manifest.files}
    engines = [manifest.target, *([manifest.draft.engine] if manifest.draft is not None else [])]
    return {
        "engines": {engine.graph: hashes.get(engine.graph) for engine in engines},
        "slots": manifest.limits.max_batch_size,
        "max_seq_len": manifest.limits.max_seq_len,
        "block_size": 0 if manifest.draft is None else manifest.draft.block_size,
    }


class TraceWriter:
    """An executor that writes down every step of another one."""

    def __init__(self, path: Path, inner: Executor, manifest: Manifest) -> None:
        """Raises ConfigError when the file cannot be written."""
        self._inner = inner
        self._samplings: dict[SlotSampling, int] = {}
        self._steps = 0
        try:
            self._file: TextIOWrapper = path.open("w", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"trace {path}: cannot be written: {error.strerror}") from None
        self._write({"dspark_trace": SCHEMA, **identity(manifest)})

    @property
    def block_size(self) -> int:
        return self._inner.block_size

    def run(self, plan: StepPlan) -> StepResult:
        start = time.perf_counter()
        try:
            result = self._inner.run(plan)
        except Exception as error:
            self._record(plan, {"error": f"{type(error).__name__}: {error}"}, start)
            self._file.flush()
            raise
        self._record(plan, {"result": _plain(result)}, start)
        return result

    def close(self) -> None:
        self._file.close()

    def _record(self, plan: StepPlan, outcome: dict[str, Any], start: float) -> None:
        seconds = round(time.perf_counter() - start, 6)
        is_prefill = isinstance(plan, PrefillPlan)
        named = plan.sampling if isinstance(plan, RoundPlan) else (plan.sampling,)
        numbers = [self._number(sampling) for sampling in named]
        fields = {
            entry.name: _plain(getattr(plan, entry.name))
            for entry in dataclasses.fields(plan)
            if entry.name != "sampling"
        }
        fields["sampling"] = numbers[0] if is_prefill else numbers
        kind = "prefill" if is_prefill else "round"
        self._write({"step": self._steps, "kind": kind, "plan": fields, **outcome, "seconds": seconds})
        self._steps += 1

    def _number(self, sampling: SlotSampling) -> int:
        number = self._samplings.get(sampling)
        if number is None:
            number = self._samplings[sampling] = len(self._samplings)
            self._write({"sampling": number, "value": _plain(sampling)})
        return number

    def _write(self, value: dict[str, Any]) -> None:
        self._file.write(json.dumps(value, separators=(",", ":")) + "\n")


class Trace:
    """A recorded file, read step by step."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError where it is no trace of this schema."""
        self._path = path
        with self._open() as file:
            header = self._parse(file.readline(), 1)
        if header.get("dspark_trace") != SCHEMA:
            raise ConfigError(f"{path}: no trace of schema {SCHEMA}; record one with dspark trace record")
        self.header = header

    def steps(self) -> Iterator[Step]:
        """Raises ConfigError, naming the line, where the file is damaged; a last line that was cut ends it."""
        samplings: dict[int, SlotSampling] = {}
        with self._open() as file:
            for number, line in enumerate(file, 1):
                if number == 1 or not line.endswith("\n"):
                    continue
                entry = self._parse(line, number)
                try:
                    if "sampling" in entry:
                        samplings[entry["sampling"]] = _typed(SlotSampling, entry["value"])
                    else:
                        yield _step(entry, samplings)
                except (KeyError, TypeError, ValueError) as error:
                    raise ConfigError(f"{self._path}, line {number}: damaged ({error}); record it again") from None

    def _open(self) -> TextIOWrapper:
        try:
            return self._path.open(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"trace {self._path}: cannot be read: {error.strerror}") from None

    def _parse(self, line: str, number: int) -> dict[str, Any]:
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise ConfigError(f"{self._path}, line {number}: no JSON object; record it again")
        return value


def differences(recorded: StepResult, found: StepResult, tolerance: float = 1e-4) -> list[str]:
    """The fields of a result that came out otherwise; log-probabilities within `tolerance` are equal."""
    unequal = []
    for entry in dataclasses.fields(StepResult):
        was, now = getattr(recorded, entry.name), getattr(found, entry.name)
        if not _close(was, now, tolerance):
            unequal.append(f"{entry.name} was {was}, is {now}")
    return unequal


def _close(a: Any, b: Any, tolerance: float) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_close(x, y, tolerance) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= tolerance
    return bool(a == b)


def _step(entry: dict[str, Any], samplings: dict[int, SlotSampling]) -> Step:
    kind, fields = _KINDS[entry["kind"]], dict(entry["plan"])
    chosen = fields.pop("sampling")
    sampling = samplings[chosen] if isinstance(chosen, int) else tuple(samplings[number] for number in chosen)
    hints = typing.get_type_hints(kind)
    plan = kind(sampling=sampling, **{name: _typed(hints[name], value) for name, value in fields.items()})
    result = None if "result" not in entry else _typed(StepResult, entry["result"])
    return Step(int(entry["step"]), plan, result, entry.get("error"), float(entry["seconds"]))


def _plain(value: Any) -> Any:
    """Dataclasses as mappings, tuples as lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {entry.name: _plain(getattr(value, entry.name)) for entry in dataclasses.fields(value)}
    return [_plain(entry) for entry in value] if isinstance(value, tuple) else value


def _typed(kind: Any, value: Any) -> Any:
    """The value of type `kind` that `_plain` made `value` of."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{name: _typed(hints[name], entry) for name, entry in value.items()})  # type: ignore[operator]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        wanted = next(argument for argument in arguments if argument is not type(None))
        return None if value is None else _typed(wanted, value)
    if origin is tuple:
        inner = [arguments[0]] * len(value) if arguments[1:] == (...,) else arguments
        return tuple(_typed(entry_kind, entry) for entry_kind, entry in zip(inner, value, strict=True))
    if isinstance(kind, type) and issubclass(kind, tuple):  # a NamedTuple
        hints = typing.get_type_hints(kind)
        return kind(*(_typed(hints[name], entry) for name, entry in zip(kind._fields, value, strict=True)))  # type: ignore[attr-defined]
    return float(value) if kind is float else value


@dataclass(frozen=True, slots=True)
class Replayed:
    """A step run once more."""

    step: Step
    seconds: float
    differences: list[str]


def replay(trace: Trace, executor: Executor, manifest: Manifest) -> Iterator[Replayed]:
    """Run the steps of a trace in order, up to the first that failed, on an executor that has run nothing yet: all that
    a step reads, caches included, comes from steps before it. Raises ConfigError for a trace of other engines."""
    for name, wanted in identity(manifest).items():
        if trace.header.get(name) != wanted:
            raise ConfigError(
                f"the trace was recorded with {name} {trace.header.get(name)}, this bundle has {wanted}; "
                "replay it on the bundle it came from"
            )
    for step in trace.steps():
        if step.result is None:
            return
        start = time.perf_counter()
        found = executor.run(step.plan)
        yield Replayed(step, time.perf_counter() - start, differences(step.result, found))


def describe(step: Step) -> str:
    """A step in one line, for people."""
    plan = step.plan
    if isinstance(plan, PrefillPlan):
        end = plan.start + len(plan.tokens)
        where = f"slot {plan.slot}, rows {plan.start} to {end - 1} of {plan.prompt_length}"
        if plan.copy_from is not None:
            where += f", the first {plan.start} copied from slot {plan.copy_from}"
        what = f"prefill {where}"
        outcome = "" if step.result is None or not plan.draws else f" -> {step.result.tokens[0]}"
    else:
        what = "round   " + "  ".join(
            f"slot {slot} at {length}" for slot, length in zip(plan.slots, plan.lengths, strict=True)
        )
        outcome = ""
        if step.result is not None:
            kept = zip(step.result.verified, step.result.accepted, step.result.tokens, strict=True)
            outcome = " -> " + "  ".join(f"{accepted} of {verified} {tokens}" for verified, accepted, tokens in kept)
    if step.error is not None:
        outcome = f" -> failed: {step.error}"
    return f"{step.number:>6} {1000 * step.seconds:9.2f} ms  {what}{outcome}"
