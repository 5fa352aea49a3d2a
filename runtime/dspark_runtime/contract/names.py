"""Names that the graphs, the bundle and the runtime share. Axis letters are defined here, once.

B  slots (rows of every cache)           T  packed tokens of a step
R  requests taking part in a step        N  rows of logits of a step (`logit_rows`)
K  block size, proposed tokens a round   Q  longest query of a step (padded forms only)
V  target vocabulary                     Vd draft vocabulary (V unless reduced)
H  query heads   Hkv  key/value heads    D  head width   S  cache capacity in tokens
"""

FORMAT_VERSION = (1, 2)
"""Of the bundle: the reader refuses another major number, and accepts a newer minor one."""

MANIFEST = "manifest.json"
TARGET_GRAPH = "target.onnx"
TARGET_WEIGHTS = "target.weights"
DRAFT_GRAPH = "draft.onnx"
DRAFT_WEIGHTS = "draft.weights"
TARGET_ENGINE = "target.engine"
DRAFT_ENGINE = "draft.engine"
LAYERS = "{}.layers.json"
"""Description of an engine's layers, `{}` being target or draft; only on request."""
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
GENERATION_CONFIG = "generation_config.json"
CALIBRATION = "calibration.json"
COST_TABLE = "cost_table.json"

OPSET = 24
ATTENTION_DOMAIN = "trt"
"""Domain of TRT_KVCacheUpdate and TRT_Attention (TensorRT's parser ignores it)."""
OPERATOR_DOMAIN = "dspark"
"""Domain of DSparkDraft, DSparkCutoff and DSparkAccept."""

# --- inputs of every graph -------------------------------------------------------------
TOKEN_IDS = "token_ids"  # [T] int32
POSITIONS = "positions"  # [T] int64, absolute positions (RotaryEmbedding wants int64)
WRITE_INDICES = "write_indices"  # [B] int32, cache row where a slot's first token of the step goes
UPDATE_LENGTHS = "update_lengths"  # [B+1] int32, cumulative tokens per slot; first 0
KV_LENGTHS = "kv_lengths"  # [B] int32, valid cache rows of a slot AFTER this step's update
LOGIT_ROWS = "logit_rows"  # [N] int32, rows of T whose logits are wanted (targets and model drafts)

# padded query form and standard dialect only
QUERY_ROWS = "query_rows"  # [B, Q] int32, row of T per padded query (0 where there is none)
OUTPUT_ROWS = "output_rows"  # [T] int32, row of the flattened [B*Q] that belongs to token t
ATTENTION_MASK = "attention_mask"  # [B, 1, Q, S] bool, standard dialect only

# --- caches: inputs, and outputs of the same name + PRESENT, bound to the same memory ---
TARGET_KEY = "target_key.{}"  # [B, Hkv, S, D]
TARGET_VALUE = "target_value.{}"
CONTEXT_KEY = "context_key.{}"  # the dspark draft's context, written by the TARGET graph
CONTEXT_VALUE = "context_value.{}"
DRAFT_KEY = "draft_key.{}"  # a model draft's own cache
DRAFT_VALUE = "draft_value.{}"
PRESENT = ".present"

# --- per-request inputs of the operator nodes, all [R] ---------------------------------
TEMPERATURE = "temperature"  # float32; below 1e-5 means greedy
TOP_K = "top_k"  # int32; 0 = off
TOP_P = "top_p"  # float32 in (0, 1]; 1 = off
MIN_P = "min_p"  # float32 in [0, 1]; 0 = off
ACCEPT_MODE = "accept_mode"  # int32, ACCEPT_MODES
SEED = "seed"  # int64, the bits of the unsigned 64-bit key
SAMPLE_INDEX = "sample_index"  # int32
ANCHOR_POSITION = "anchor_position"  # int32, position of the anchor (prompt length - 1 at first)
SAMPLING_INPUTS = (
    TEMPERATURE, TOP_K, TOP_P, MIN_P, ACCEPT_MODE, SEED, SAMPLE_INDEX, ANCHOR_POSITION,
)  # fmt: skip

ANCHOR_TOKENS = "anchor_tokens"  # [R] int32 (draft)
BLOCK_OFFSET = "block_offset"  # [1] int32: block position of column 0 (0 but for model drafts)
CUTOFF_POLICY = "cutoff_policy"  # [R] int32, CUTOFF_POLICIES
CUTOFF_THRESHOLD = "cutoff_threshold"  # [R] float32
MAX_VERIFY = "max_verify"  # [R] int32 in [0, K]
CALIBRATION_TEMPERATURES = "calibration_temperatures"  # [K] float32 > 0
ROW_OFFSETS = "row_offsets"  # [R+1] int32, logit rows of a request (accept)

# --- outputs -----------------------------------------------------------------------------
LOGITS = "logits"  # [N, V] float32 (target, model draft); [R*K, Vd] (dspark draft, before the head)
HIDDEN = "hidden"  # [R*K, hidden] float32, the dspark draft's final normalised states
DRAFT_TOKENS = "draft_tokens"  # [R, K] int32, TARGET ids; output of the draft, input of the target
CONFIDENCE_LOGITS = "confidence_logits"  # [R, K] float32
DRAFT_LOGITS = "draft_logits"  # [R or 0, K, Vd] float32: head included, unfiltered; 0 rows when no
#                                request of the step uses rejection
VERIFY_LENGTHS = "verify_lengths"  # [R] int32
SURVIVALS = "survivals"  # [R, K] float32
ACCEPTED = "accepted"  # [R] int32, proposals kept
TOKENS = "tokens"  # [R, K+1] int32, kept proposals, then the target's token, then -1

ACCEPT_MODES = {"greedy": 0, "rejection": 1, "coupled": 2}
CUTOFF_POLICIES = {"all": 0, "threshold": 1, "survival": 2}
HEAD_TYPES = {"none": 0, "vanilla": 1, "gated": 2, "rnn": 3}
CONFIDENCE_SIGNALS = {"head": 0, "top1": 1}
