"""Graphs of tiny checkpoints in every dialect, and the transformers models that judge them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from dspark_runtime.contract.errors import BundleError
from dspark_runtime.oplib import has_onnxruntime_ops
from dspark_trt.backends import Dialect
from dspark_trt.build import Plan, make_plan, write_graphs
from dspark_trt.config import BuildConfig


def _has_operators() -> bool:
    try:
        return has_onnxruntime_ops()
    except BundleError:
        return False


needs_operators = pytest.mark.skipif(
    not _has_operators(), reason="the installed operator library has no ONNX Runtime operators"
)
FORMS = [
    pytest.param(("trt", "packed"), id="trt-packed", marks=needs_operators),
    pytest.param(("trt", "padded"), id="trt-padded", marks=needs_operators),
    pytest.param(("standard", "padded"), id="standard"),
]


def write_tiny(folder: Path, form: tuple[str, str], target: Path, draft: Path | None = None, **options: Any) -> Plan:
    """Graph files of the checkpoints in `folder`, without a bundle around them."""
    folder.mkdir(parents=True, exist_ok=True)
    dialect, query_form = form
    options.setdefault("max_seq_len", 64)
    config = BuildConfig(target=target, draft=draft, output=folder, query_form=query_form, **options)
    plan = make_plan(config, Dialect(dialect))
    write_graphs(plan, folder, lambda part: None)
    return plan


def reference(target: Path) -> Any:
    """The transformers model of a checkpoint folder, float32."""
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32, attn_implementation="eager").eval()


def reference_run(model: Any, tokens: list[int]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Logits [n, V] of a whole sequence, and hidden states [n, hidden]: embeddings, then each layer's output.

    Taken by hooks, since `output_hidden_states` gives the last layer after the final norm.
    """
    states: list[np.ndarray] = []
    modules = [model.model.embed_tokens, *model.model.layers]

    def keep(module: Any, args: Any, output: Any) -> None:
        states.append((output[0] if isinstance(output, tuple) else output)[0].numpy())

    handles = [module.register_forward_hook(keep) for module in modules]
    try:
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0].numpy()
    finally:
        for handle in handles:
            handle.remove()
    return logits, [state.reshape(len(tokens), -1) for state in states]
