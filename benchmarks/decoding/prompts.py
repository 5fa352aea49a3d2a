"""The prompts of benchmarks/prompts: written for this project, forty a domain."""

from __future__ import annotations

import json
from pathlib import Path

from dspark_runtime import LLM

FOLDER = Path(__file__).resolve().parents[1] / "prompts"
DOMAINS = ("chat", "arithmetic", "code")


def load(domain: str, count: int) -> list[str]:
    """The first `count` prompts of a domain."""
    lines = (FOLDER / f"{domain}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["prompt"] for line in lines[:count]]


def mixed(count: int) -> list[tuple[str, str]]:
    """(domain, prompt), `count` of each domain, domains alternating."""
    columns = [[(domain, prompt) for prompt in load(domain, count)] for domain in DOMAINS]
    return [entry for row in zip(*columns, strict=True) for entry in row]


def as_chat(llm: LLM, prompt: str) -> list[int]:
    """Token ids of the prompt as a user's message."""
    rendered = llm.render_chat([{"role": "user", "content": prompt}])
    return llm.tokenizer.encode(rendered, add_special_tokens=False)
