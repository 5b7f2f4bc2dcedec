"""What a front end needs of a model's files: how its text becomes tokens, and which tokens end it. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pellucid.frontend.tokenizer import Tokenizer, load_tokenizer
from pellucid.loader.config_reader import read_model_config
from pellucid.loader.model_files import ModelFiles
from pellucid.loader.resolve import resolve_model


@dataclass(frozen=True)
class ModelText:
    """tokenizer: with the chat template. eos_token_ids: all that end an answer (generation_config may name several).
    default_sampling: what its makers recommend where a request says nothing, by the names of SamplingParams.
    """

    tokenizer: Tokenizer
    eos_token_ids: tuple[int, ...]
    default_sampling: Mapping[str, float] = field(default_factory=dict)


def load_model_text(model: str | ModelFiles) -> ModelText:
    """model: resolved files, or a name whose files are on this machine already. Raises ModelError."""
    files = resolve_model(model, local_files_only=True) if isinstance(model, str) else model
    tokenizer = load_tokenizer(files)
    config = read_model_config(files)
    eos_token_ids = config.eos_token_ids
    if not eos_token_ids and tokenizer.eos_token_id is not None:
        eos_token_ids = (tokenizer.eos_token_id,)
    advised = config.extra.get("default_sampling")
    return ModelText(tokenizer, eos_token_ids, advised if isinstance(advised, Mapping) else {})
