"""Does a draft belong to this target? Found and wanted, all in one message."""

from __future__ import annotations

from dspark_runtime.contract import names
from dspark_runtime.contract.errors import CheckpointError, shown
from dspark_trt.checkpoint.assets import load_tokenizer
from dspark_trt.checkpoint.types import TargetCheckpoint
from dspark_trt.config import DSparkDraftConfig, TargetConfig


def _raise(where: str, problems: list[str]) -> None:
    if problems:
        raise CheckpointError(
            f"{where}: the draft does not fit the target: {'; '.join(problems)}; was it trained for another target?"
        )


def check_dspark_fit(where: str, draft: DSparkDraftConfig, target: TargetConfig) -> None:
    """A DSpark draft shares embeddings, vocabulary and features with its target. Raises CheckpointError."""
    problems = []
    if draft.decoder.vocab_size != target.vocab_size:
        problems.append(f"vocabulary has {draft.decoder.vocab_size} tokens, wanted {target.vocab_size}")
    if draft.decoder.hidden_size != target.hidden_size:
        problems.append(f"hidden size is {draft.decoder.hidden_size}, wanted {target.hidden_size}")
    # The last layer is not allowed: its output reaches the draft through the lm_head already.
    last = target.num_layers - 2
    if odd := [i for i in draft.target_layer_ids if not -1 <= i <= last]:
        problems.append(f"target_layer_ids hold {odd[0]}, wanted [-1, {last}] for {target.num_layers} layers")
    if len(set(draft.target_layer_ids)) != len(draft.target_layer_ids):
        problems.append(f"target_layer_ids {shown(list(draft.target_layer_ids))} name a layer twice")
    if draft.num_target_layers is not None and draft.num_target_layers != target.num_layers:
        problems.append(f"num_target_layers is {draft.num_target_layers}, wanted {target.num_layers}")
    _raise(where, problems)


def check_model_fit(draft: TargetCheckpoint, target: TargetCheckpoint) -> None:
    """A `model` draft proposes token ids of the target: the same tokens at the same ids. Raises CheckpointError."""
    problems = []
    if draft.config.vocab_size != target.config.vocab_size:
        problems.append(f"vocabulary has {draft.config.vocab_size} rows, wanted {target.config.vocab_size}")
    if draft.assets[names.TOKENIZER] != target.assets[names.TOKENIZER]:
        found, wanted = (
            load_tokenizer(c.assets[names.TOKENIZER], str(c.path)).get_vocab(with_added_tokens=True)
            for c in (draft, target)
        )
        odd = sorted(token for token in found.keys() | wanted.keys() if found.get(token) != wanted.get(token))
        if odd:
            problems.append(
                f"{len(odd)} tokens differ between the tokenizers, for instance {shown(odd[0])} has id "
                f"{found.get(odd[0])}, wanted {wanted.get(odd[0])}"
            )
    _raise(str(draft.path), problems)
