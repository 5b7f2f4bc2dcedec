"""The largest sizes a model may state. Far beyond any model that exists, small enough that no product overflows."""

from __future__ import annotations

from pellucid.loader.errors import ModelConfigError
from pellucid.models.config import ModelConfig

MAX_VOCAB = 1 << 22
MAX_HIDDEN = 1 << 17
MAX_INTERMEDIATE = 1 << 20
MAX_LAYERS = 1 << 10
MAX_HEADS = 1 << 12
MAX_HEAD_DIM = 1 << 10
MAX_POSITIONS = 1 << 27
MAX_THETA = 1e15


def check_consistent(config: ModelConfig, origin: str) -> ModelConfig:
    """Relations between fields that each are in bounds; returns the config. Raises ModelConfigError."""
    if config.num_heads % config.num_kv_heads:
        raise ModelConfigError(
            f"{origin}: {config.num_heads} heads can't share {config.num_kv_heads} key-value heads evenly"
        )
    if config.head_dim % 2:
        raise ModelConfigError(f"{origin}: head_dim is {config.head_dim}; rotary positions need an even one")
    if len(config.layer_types) != config.num_layers:
        raise ModelConfigError(f"{origin}: {len(config.layer_types)} layer types for {config.num_layers} layers")
    if "sliding" in config.layer_types and config.sliding_window is None:
        raise ModelConfigError(f"{origin}: there are sliding layers, but sliding_window is not given")
    outside = [i for i in (config.bos_token_id, *config.eos_token_ids) if i is not None and i >= config.vocab_size]
    if outside:
        raise ModelConfigError(
            f"{origin}: the token ids {outside} lie outside of the vocabulary of {config.vocab_size}"
        )
    return config
