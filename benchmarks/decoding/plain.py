"""Part `plain`: our plain decoding against `transformers.generate`, float32, greedy, batch 1."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GgufConfig
from transformers.utils import logging

from decoding import prompts, runs
from decoding.table import Result
from dspark_runtime import LLM


def load_judge(target: Path, threads: int) -> torch.nn.Module:
    """The same weights in transformers: a folder, or a GGUF file dequantised to float32."""
    logging.disable_progress_bar()
    torch.set_num_threads(threads)
    if target.suffix == ".gguf":
        model = AutoModelForCausalLM.from_pretrained(
            target.parent, gguf_file=target.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
        )
    else:
        model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    model.generation_config.eos_token_id = None  # every call makes the same number of tokens, as ours do
    return model.eval()


def measure_plain(
    engines: dict[str, LLM], target: Path, *, num_tokens: int, per_domain: int, repetitions: int, threads: int
) -> Result:
    """engines: by name; each decodes plainly (with a draft: speculation off). Times of whole calls, prompt included."""
    model = load_judge(target, threads)
    params = runs.greedy(num_tokens, runs.PLAIN)
    seconds: dict[str, list[float]] = {name: [] for name in (*engines, "transformers")}
    any_engine = next(iter(engines.values()))
    chosen = [prompts.as_chat(any_engine, prompt) for _, prompt in prompts.mixed(per_domain)]
    same = 0
    for turn in range(-1, repetitions):  # turn -1 warms up
        for ids in chosen[: 1 if turn < 0 else None]:
            tokens: dict[str, tuple[int, ...]] = {}
            for name in _rotated(list(seconds), max(turn, 0)):
                time.sleep(runs.SETTLE_S)
                start = time.perf_counter()
                if name == "transformers":
                    tokens[name] = _judge(model, ids, num_tokens)
                else:
                    tokens[name] = tuple(engines[name].generate([ids], params)[0].token_ids)
                if turn >= 0:
                    seconds[name].append(time.perf_counter() - start)
            same += turn >= 0 and len(set(tokens.values())) == 1
    speed = {name: num_tokens / runs.median(values) for name, values in seconds.items()}
    rows = [(name, runs.median(seconds[name]), speed[name], speed[name] / speed["transformers"]) for name in seconds]
    count = repetitions * len(chosen)
    return Result(
        part="plain",
        title=(
            f"plain decoding, float32, greedy, batch 1, {num_tokens} tokens, prompt included, {threads} threads; "
            f"median of {count} alternating calls"
        ),
        columns=("engine", "seconds", "tokens/s", "ratio to transformers"),
        rows=rows,
        verdicts=(f"all engines gave the same tokens in {same} of {count} calls",),
    )


def _judge(model: torch.nn.Module, ids: list[int], num_tokens: int) -> tuple[int, ...]:
    batch = torch.tensor([ids])
    with torch.inference_mode():
        output = model.generate(
            batch, attention_mask=torch.ones_like(batch), do_sample=False, max_new_tokens=num_tokens, pad_token_id=0
        )
    return tuple(output[0, len(ids) :].tolist())


def _rotated(names: list[str], turn: int) -> list[str]:
    shift = turn % len(names)
    return names[shift:] + names[:shift]
