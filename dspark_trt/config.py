"""Shapes of models and options of a build, as frozen dataclasses checked once.

Knows nothing of files, graphs or engines. `checkpoint` fills the model configurations,
`graph` reads them, `build` ties them together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dspark_runtime.contract.errors import ConfigError, shown
from dspark_runtime.contract.names import HEAD_STORAGES

ROPE_TYPES = ("default", "linear", "llama3")
DRAFT_KINDS = ("auto", "dspark", "model", "none")
BACKENDS = ("onnxruntime", "tensorrt-rtx", "tensorrt")
DTYPES = ("auto", "float32", "bfloat16", "float16")
BACKEND_DTYPES = {
    "onnxruntime": ("float32",),
    "tensorrt-rtx": ("bfloat16", "float16"),
    "tensorrt": ("bfloat16", "float16"),
}
"""Arithmetic that each backend has kernels for; the first is what `auto` means."""
QUANTIZATIONS = ("none", "int8")
STORAGES = ("auto", "float32", "checkpoint")
DIALECTS = ("auto", "trt", "standard")
QUERY_FORMS = ("auto", "packed", "padded")
HEAD_TYPES = ("none", "vanilla", "gated", "rnn")


def _raise(where: str, problems: list[str]) -> None:
    if problems:
        raise ConfigError(f"{where}: " + "; ".join(problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding. Frequencies follow transformers' `ROPE_INIT_FUNCTIONS`."""

    theta: float = 10_000.0
    """Base of the frequencies, >= 1."""
    type: str = "default"
    """One of ROPE_TYPES."""
    factor: float = 1.0
    """linear and llama3: how much longer than the original context, >= 1."""
    low_freq_factor: float = 1.0
    """llama3 only, > 0."""
    high_freq_factor: float = 4.0
    """llama3 only, > low_freq_factor."""
    original_max_position_embeddings: int = 8192
    """llama3 only, in tokens, >= 1."""

    def __post_init__(self) -> None:
        problems = []
        if not self.theta >= 1.0:
            problems.append(f"rope theta is {self.theta}, needs >= 1")
        if self.type not in ROPE_TYPES:
            problems.append(f"rope type is {shown(self.type)}, supported are {', '.join(ROPE_TYPES)}")
        if not self.factor >= 1.0:
            problems.append(f"rope factor is {self.factor}, needs >= 1")
        if self.type == "llama3" and not self.low_freq_factor > 0:
            problems.append(f"low_freq_factor is {self.low_freq_factor}, needs > 0")
        if self.type == "llama3" and self.original_max_position_embeddings < 1:
            original = self.original_max_position_embeddings
            problems.append(f"original_max_position_embeddings is {original}, needs >= 1")
        if self.type == "llama3" and not self.high_freq_factor > self.low_freq_factor:
            problems.append(
                f"high_freq_factor is {self.high_freq_factor}, needs more than low_freq_factor {self.low_freq_factor}"
            )
        _raise("rope", problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Geometry of a stack of decoder layers, target or draft (Llama, Qwen2, Qwen3). Widths in elements."""

    family: str
    """`llama`, `qwen2` or `qwen3`: which file of graph/ describes it."""
    vocab_size: int
    """Rows of embed_tokens and lm_head (may exceed the tokenizer's)."""
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    """Divides num_heads."""
    head_dim: int
    """Need not be hidden_size / num_heads; even."""
    rms_norm_eps: float
    max_position_embeddings: int
    rope: RopeConfig = field(default_factory=RopeConfig)
    tie_embeddings: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False

    def __post_init__(self) -> None:
        problems = [
            f"{name} is {getattr(self, name)}, needs >= 1"
            for name in (
                "vocab_size", "hidden_size", "intermediate_size", "num_layers",
                "num_heads", "num_kv_heads", "head_dim",
            )
            if getattr(self, name) < 1
        ]  # fmt: skip
        if self.max_position_embeddings < 2:  # a token of prompt, a token of output
            problems.append(f"max_position_embeddings is {self.max_position_embeddings}, needs >= 2")
        if self.num_kv_heads >= 1 and self.num_heads % self.num_kv_heads:
            problems.append(f"num_heads is {self.num_heads}, needs a multiple of num_kv_heads {self.num_kv_heads}")
        if not 0.0 <= self.rms_norm_eps < 1.0:
            problems.append(f"rms_norm_eps is {self.rms_norm_eps}, needs [0, 1)")
        if self.head_dim % 2:
            problems.append(f"head_dim is {self.head_dim}, needs an even number")
        _raise("model", problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig(DecoderConfig):
    """A target, or a draft of kind `model`."""

    eos_token_ids: tuple[int, ...] = ()
    """From generation_config first, then config; may be empty."""
    bos_token_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DSparkDraftConfig:
    """A semi-autoregressive draft (dspark.md 2.2). Lengths are counted in tokens."""

    decoder: DecoderConfig
    """The draft's own layers; vocab_size is that of its markov_w1 (target ids)."""
    block_size: int
    """K, tokens proposed per draft pass; >= 1."""
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    """id i = output of target layer i (hidden_states[i+1]); -1 = the embedding output."""
    num_target_layers: int | None = None
    markov_head_type: str = "none"
    """One of HEAD_TYPES; `none` when markov_rank is 0."""
    markov_rank: int = 0
    has_confidence_head: bool = False
    confidence_with_markov: bool = False
    has_embed_tokens: bool = False
    """The checkpoint carries its own embed_tokens (else the target's are used)."""
    has_lm_head: bool = False

    def __post_init__(self) -> None:
        problems = []
        if self.block_size < 1:
            problems.append(f"block_size is {self.block_size}, needs >= 1")
        if not 0 <= self.mask_token_id < self.decoder.vocab_size:
            problems.append(f"mask_token_id is {self.mask_token_id}, needs [0, {self.decoder.vocab_size})")
        if not self.target_layer_ids:
            problems.append("target_layer_ids is empty, needs at least one layer")
        if self.markov_head_type not in HEAD_TYPES:
            problems.append(
                f"markov_head_type is {shown(self.markov_head_type)}, supported are {', '.join(HEAD_TYPES)}"
            )
        if (self.markov_rank == 0) != (self.markov_head_type == "none"):
            problems.append(f"markov_rank {self.markov_rank} does not go with head type {shown(self.markov_head_type)}")
        if self.confidence_with_markov and self.markov_rank == 0:
            problems.append("confidence_head_with_markov needs markov_rank > 0")
        _raise("draft", problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildConfig:
    """Options of one build, as build_engines.py takes them."""

    target: Path
    """Folder with safetensors + config.json, or a .gguf file (or a folder that holds one)."""
    output: Path
    """Bundle folder to make; an existing bundle is replaced, any other folder is refused."""
    draft: Path | None = None
    draft_kind: str = "auto"
    """One of DRAFT_KINDS; auto reads the draft's config (none without a draft)."""
    backend: str = "onnxruntime"
    dtype: str = "auto"
    """One of DTYPES; auto is the first of BACKEND_DTYPES."""
    quantize: str = "none"
    """Weights of the target's linear layers."""
    draft_quantize: str = "none"
    """Weights of the draft's linear layers and lm_head."""
    storage: str = "auto"
    """Weights of linear layers that are not quantised, one of STORAGES. `checkpoint`: as small as the checkpoint has
    them where DSparkLinear reads the form (bfloat16, Q8_0, Q4_1), exactly; auto = checkpoint where graphs can say it
    (onnxruntime, trt dialect)."""
    head_storage: str = "float32"
    """markov_w2 of a dspark draft's sequential head, one of HEAD_STORAGES: fewer bytes to read per proposal. The output
    stays the same, since the target decides."""
    draft_vocab: int | None = None
    """Keep the N most frequent tokens in the draft's lm_head (dspark drafts only)."""
    draft_vocab_text: Path | None = None
    """UTF-8 text whose token counts choose the draft vocabulary; None: a sample that we ship."""
    max_batch_size: int = 8
    max_seq_len: int | None = None
    """Prompt + output tokens of one request; None: 2048, or fewer where a model was trained for fewer."""
    block_size: int | None = None
    """None: the draft's own (dspark), 4 for model drafts. At most the trained size for dspark drafts."""
    dialect: str = "auto"
    """trt = our attention and cache operators; standard = plain ONNX; auto = trt where the library has them."""
    query_form: str = "auto"
    """Of the trt dialect: `packed` (CPU), `padded` (what TensorRT has kernels for); auto = what the backend wants."""
    compute_capabilities: tuple[str, ...] = ()
    """GPUs to build engines for, such as `8.6` (tensorrt-rtx); empty: all that the library and the dtype allow."""
    prefill_chunk: int = 256
    """Most prompt tokens that an engine reads in one step (TensorRT)."""
    inspect_engine: bool = False
    """Keep a description of every engine's layers in the bundle (TensorRT)."""

    def __post_init__(self) -> None:
        problems = []
        for name, value, known in (
            ("backend", self.backend, BACKENDS),
            ("dtype", self.dtype, DTYPES),
            ("quantize", self.quantize, QUANTIZATIONS),
            ("draft_quantize", self.draft_quantize, QUANTIZATIONS),
            ("storage", self.storage, STORAGES),
            ("head_storage", self.head_storage, HEAD_STORAGES),
            ("draft_kind", self.draft_kind, DRAFT_KINDS),
            ("dialect", self.dialect, DIALECTS),
            ("query_form", self.query_form, QUERY_FORMS),
        ):
            if value not in known:
                problems.append(f"{name} is '{value}', supported are {', '.join(known)}")
        if not 1 <= self.max_batch_size <= 256:
            problems.append(f"max_batch_size is {self.max_batch_size}, needs [1, 256]")
        if self.max_seq_len is not None and self.max_seq_len < 2:
            problems.append(f"max_seq_len is {self.max_seq_len}, needs >= 2")
        if self.block_size is not None and not 1 <= self.block_size <= 16:
            problems.append(f"block_size is {self.block_size}, needs [1, 16]")
        if self.draft_vocab is not None and self.draft_vocab < 1:
            problems.append(f"draft_vocab is {self.draft_vocab}, needs >= 1")
        if self.draft_vocab_text is not None and self.draft_vocab is None:
            problems.append("draft_vocab_text is given but draft_vocab, the number of tokens to keep, is not")
        if self.draft is None and self.draft_kind not in ("auto", "none"):
            problems.append(f"draft_kind is '{self.draft_kind}' but no draft was given")
        if not 1 <= self.prefill_chunk <= 8192:
            problems.append(f"prefill_chunk is {self.prefill_chunk}, needs [1, 8192]")
        for capability in self.compute_capabilities:
            if not re.fullmatch(r"[0-9]{1,2}\.[0-9]", capability):
                problems.append(f"compute capability is '{capability}', wanted a form like 8.6")
        if len(set(self.compute_capabilities)) < len(self.compute_capabilities):
            problems.append(f"compute capabilities {', '.join(self.compute_capabilities)} name one twice")
        _raise("build", problems)
        _raise("build", list(self._backend_problems()))

    def _backend_problems(self) -> Iterator[str]:
        """Options that are known, but not to this backend."""
        dtypes = BACKEND_DTYPES[self.backend]
        if self.dtype not in ("auto", *dtypes):
            yield f"dtype is '{self.dtype}', backend {self.backend} runs {' or '.join(dtypes)}"
        if self.backend != "tensorrt-rtx" and self.compute_capabilities:
            yield f"compute capabilities are for tensorrt-rtx, but the backend is {self.backend}"
        if self.storage == "checkpoint" and (self.backend != "onnxruntime" or self.dialect == "standard"):
            where = f"the backend is {self.backend} and the dialect {self.dialect}"
            yield f"storage is 'checkpoint', which onnxruntime's trt dialect alone can say, but {where}"
        if self.backend == "onnxruntime":
            if self.inspect_engine:
                yield "inspect_engine describes engines of TensorRT, but the backend is onnxruntime"
            return
        for name in ("quantize", "draft_quantize"):
            if getattr(self, name) != "none":
                yield f"{name} is '{getattr(self, name)}', backend {self.backend} runs weights of its dtype only"
        if self.query_form == "packed":
            yield f"query_form is 'packed', backend {self.backend} has kernels for padded queries only"

    @property
    def arithmetic(self) -> str:
        """The dtype, `auto` resolved."""
        return BACKEND_DTYPES[self.backend][0] if self.dtype == "auto" else self.dtype
