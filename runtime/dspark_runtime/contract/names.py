"""Names that the graphs, the bundle and the runtime share. Axis letters are defined here, once.

B  slots (rows of every cache)           T  packed tokens of a step
R  requests taking part in a step        N  rows of logits of a step (`logit_rows`)
K  block size, proposed tokens a round   Q  longest query of a step (padded forms only)
V  target vocabulary                     Vd draft vocabulary (V unless reduced)
H  query heads   Hkv  key/value heads    D  head width   S  cache capacity in tokens
"""

FORMAT_VERSION = (2, 0)
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

# Further per-request inputs of DSparkAccept: what logits become before they are filtered, and what is reported.
PENALTIES = "penalties"  # [R, 3] float32: repetition (> 0; 1 = off), presence, frequency (0 = off)
TOKEN_HISTORY = "token_history"  # [B, S] int32, a cache of token ids: row b holds positions 0.. of slot b
SLOTS = "slots"  # [R] int32, row of the history
PROMPT_LENGTHS = "prompt_lengths"  # [R] int32: positions from here on are output
RULES = "rules"  # [E, 3] int32 (RULE_KINDS, a, b): bias, stop, word
RULE_OFFSETS = "rule_offsets"  # [R+1] int32, rules of a request
TOKEN_MASKS = "token_masks"  # [M, ceil(V/32)] int32, bit i of word w: token 32*w + i is possible
MASK_ROWS = "mask_rows"  # [N] int32, row of token_masks for a row of logits; -1: every token is possible
RELAXATION = "relaxation"  # [R, 2] float32: relaxed: min_bar, max_bar; typical: epsilon, delta
NUM_LOGPROBS = "num_logprobs"  # [R] int32, most probable tokens to report, 0..MAX_LOGPROBS; -1: no log-probabilities
ACCEPT_INPUTS = (
    PENALTIES, TOKEN_HISTORY, SLOTS, PROMPT_LENGTHS, RULES, RULE_OFFSETS, TOKEN_MASKS, MASK_ROWS, RELAXATION,
    NUM_LOGPROBS,
)  # fmt: skip

ANCHOR_TOKENS = "anchor_tokens"  # [R] int32 (draft)
BLOCK_OFFSET = "block_offset"  # [1] int32: block position of column 0 (0 but for model drafts)
CUTOFF_POLICY = "cutoff_policy"  # [R] int32, CUTOFF_POLICIES
CONFIDENCE_SIGNAL = "confidence_signal"  # [R] int32: CONFIDENCE_SIGNALS | k << 8, k that of topk_mass
CUTOFF_PARAMS = "cutoff_params"  # [R, CUTOFF_COLUMNS] float32, meaning by policy (docs/architecture.md)
CUTOFF_INCLUSIVE = "cutoff_inclusive"  # [R] int32: 1: a weak proposal stops only those after it
MIN_VERIFY = "min_verify"  # [R] int32 in [0, max_verify]
MAX_VERIFY = "max_verify"  # [R] int32 in [0, K]
CALIBRATION_TEMPERATURES = "calibration_temperatures"  # [R, K] float32 > 0
ROW_OFFSETS = "row_offsets"  # [R+1] int32, logit rows of a request (accept)

# --- outputs -----------------------------------------------------------------------------
LOGITS = "logits"  # [N, V] float32 (target, model draft); [R*K, Vd] (dspark draft, before the head)
HIDDEN = "hidden"  # [R*K, hidden] float32, the dspark draft's final normalised states
DRAFT_TOKENS = "draft_tokens"  # [R, K] int32, TARGET ids; output of the draft, input of the target
CONFIDENCE_LOGITS = "confidence_logits"  # [R, K] float32
DRAFT_LOGITS = "draft_logits"  # [R or 0, K, Vd] float32: head included, unfiltered; 0 rows when no
#                                request of the step uses rejection
ENTROPIES = "entropies"  # [R, K] float32, H(p)/ln V of the draft where policy `dual` asks for it, else 0
CONFIDENCES = "confidences"  # [R, K] float32 in [0, 1], calibrated; output of the draft, input of the target
VERIFY_LENGTHS = "verify_lengths"  # [R] int32
SURVIVALS = "survivals"  # [R, K] float32
ACCEPTED = "accepted"  # [R] int32, proposals kept
TOKENS = "tokens"  # [R, K+1] int32, kept proposals, then the target's token, then -1
ROUND_ENDS = "round_ends"  # [R] int32, ROUND_END_REASONS
LOGPROBS = "logprobs"  # [R, K+1, MAX_LOGPROBS+1] float32: chosen token first, then the most probable ones; else 0
LOGPROB_IDS = "logprob_ids"  # the same shape, int32; -1 where there is none
LOGPROB_RANKS = "logprob_ranks"  # [R, K+1] int32, rank of the chosen token from 1; 0 where there is none

ACCEPT_MODES = {"greedy": 0, "rejection": 1, "coupled": 2, "relaxed": 3, "typical": 4}
CUTOFF_POLICIES = {"all": 0, "threshold": 1, "survival": 2, "utility": 3, "two_strikes": 4, "dual": 5, "ramp": 6}
CUTOFF_COLUMNS = 5
SIGNAL_BITS = 8
"""CONFIDENCE_SIGNAL: the bits of the signal; those above hold k."""
MAX_LOGPROBS = 20
RULE_KINDS = {"bias": 0, "stop": 1, "word": 2}
ROUND_END_REASONS = {"bonus": 0, "rejected": 1, "nan": 2, "infinite": 3, "impossible": 4}
HEAD_STORAGES = ("float32", "bfloat16", "int8")
HEAD_TYPES = {"none": 0, "vanilla": 1, "gated": 2, "rnn": 3}
CONFIDENCE_SIGNALS = {"head": 0, "top1": 1, "margin": 2, "topk_mass": 3, "entropy": 4, "gini": 5, "token": 6}
