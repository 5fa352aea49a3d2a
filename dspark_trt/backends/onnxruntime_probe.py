"""Run one step of a graph and fail if anything is not finite: `python -m` this module with path and dialect.

A process of its own for the sake of memory; knows names and shapes of the contract, no model.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from dspark_runtime.contract import names
from dspark_runtime.oplib import library_path
from dspark_trt.graph import PASS_SIZE

Array = np.ndarray[Any, np.dtype[Any]]

DTYPES = {
    "tensor(float)": np.float32,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
}


def open_session(graph: Path, dialect: str) -> ort.InferenceSession:
    """The graph on one thread, weights mapped and not packed: opened to be proven, not to be fast."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.enable_cpu_mem_arena = False
    if dialect == "trt":
        options.register_custom_ops_library(str(library_path()))
    return ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])


def dummy_inputs(session: ort.InferenceSession) -> dict[str, Array]:
    """A step of one request in slot 0 with an empty cache."""
    inputs = {item.name: item for item in session.get_inputs()}
    # A dspark draft runs whole blocks; two rows suit every other graph.
    is_block_graph = names.LOGIT_ROWS not in inputs
    rows = _block_rows(session) if is_block_graph else 2
    sizes = {"B": 1, "R": 1, "B+1": 2, "R+1": 2, "N": 1, "T": rows, "Q": rows, "Rj": 0, "Rc": 0, "E": 0, "M": 0}
    arrays: dict[str, Array] = {}
    for name, item in inputs.items():
        shape = tuple(sizes[size] if isinstance(size, str) else size for size in item.shape)
        arrays[name] = np.zeros(shape, DTYPES[item.type])
    arange = np.arange(rows)
    values: dict[str, Any] = {
        names.POSITIONS: arange,
        names.UPDATE_LENGTHS: [0, rows],
        names.KV_LENGTHS: [rows],
        names.QUERY_ROWS: arange[None],
        names.OUTPUT_ROWS: arange,
        names.ROW_OFFSETS: [0, 1],
        names.TOP_P: [1.0],
        names.PENALTIES: [[1.0, 0.0, 0.0]],
        names.MASK_ROWS: [-1],
        names.NUM_LOGPROBS: [-1],
        # The one signal that every draft has, whatever its heads.
        names.CONFIDENCE_SIGNAL: [names.CONFIDENCE_SIGNALS["top1"]],
        names.CALIBRATION_TEMPERATURES: 1.0,
        names.ANCHOR_POSITION: [rows - 1],
    }
    for name, value in values.items():
        if name in arrays:
            arrays[name][...] = value
    if names.ATTENTION_MASK in arrays:
        mask = arrays[names.ATTENTION_MASK]
        mask[0, 0] = np.arange(mask.shape[-1])[None, :] <= (rows - 1 if is_block_graph else arange[:, None])
    return arrays


def _block_rows(session: ort.InferenceSession) -> int:
    """Rows of one block, which the graph states in its metadata."""
    return int(session.get_modelmeta().custom_metadata_map[PASS_SIZE])


def main(graph: Path, dialect: str) -> None:
    session = open_session(graph, dialect)
    outputs = [item.name for item in session.get_outputs() if not item.name.endswith(names.PRESENT)]
    for name, array in zip(outputs, session.run(outputs, dummy_inputs(session)), strict=True):
        if not np.isfinite(array).all():
            raise ArithmeticError(f"output {name} of a first step is not finite; is the checkpoint damaged?")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
