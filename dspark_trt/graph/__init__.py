"""Models as ONNX graphs: `builder` and `weights` know ONNX, `layers` knows dialects, families know models."""

from dspark_trt.graph.dspark import PASS_SIZE, DSparkDraft, head_arrays, write_dspark_graph
from dspark_trt.graph.operators import storage_of
from dspark_trt.graph.step import GraphOptions, Tensors
from dspark_trt.graph.target import Proposals, write_model_draft_graph, write_target_graph

__all__ = [
    "PASS_SIZE",
    "DSparkDraft",
    "GraphOptions",
    "Proposals",
    "Tensors",
    "head_arrays",
    "storage_of",
    "write_dspark_graph",
    "write_model_draft_graph",
    "write_target_graph",
]
