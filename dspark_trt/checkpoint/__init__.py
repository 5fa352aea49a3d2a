"""Models on disk: Hugging Face folders, GGUF files, DSpark drafts. Knows no graph and no engine.

Nothing here trusts a file: sizes, offsets, types and shapes are checked before a byte of a weight
is read, nothing is unpickled, and weights are mapped, so that only the tensor asked for is in memory.
"""

from dspark_trt.checkpoint.load import load_draft, load_target
from dspark_trt.checkpoint.types import Array, DSparkDraftCheckpoint, TargetCheckpoint, TensorSource

__all__ = ["Array", "DSparkDraftCheckpoint", "TargetCheckpoint", "TensorSource", "load_draft", "load_target"]
