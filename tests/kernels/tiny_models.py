"""Small decoders of every family with random weights, for kernels that run whole models."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pellucid.kernels.interface import Kernels
from pellucid.models.config import ModelConfig
from pellucid.models.load import load_model
from pellucid.models.model import Model

_BASE = {
    "vocab_size": 211,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_layers": 3,
    "num_heads": 6,
    "num_kv_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
}

CONFIGS = {
    "llama": ModelConfig(architecture="LlamaForCausalLM", tie_word_embeddings=True, **_BASE),
    "qwen2": ModelConfig(architecture="Qwen2ForCausalLM", attention_bias=True, **_BASE),
    "qwen3": ModelConfig(architecture="Qwen3ForCausalLM", qk_norm=True, **_BASE),
    "gemma3": ModelConfig(
        architecture="Gemma3ForCausalLM",
        tie_word_embeddings=True,
        hidden_act="gelu_tanh",
        qk_norm=True,
        sandwich_norm=True,
        norm_weight_plus_one=True,
        embedding_scale=96**0.5,
        sliding_window=24,
        layer_types=("sliding", "full", "sliding"),
        rope_theta_local=1000.0,
        attention_softcap=20.0,
        logit_softcap=15.0,
        **_BASE,
    ),
}


def random_weights(config: ModelConfig, seed: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * 0.1

    hidden, inner = config.hidden_size, config.intermediate_size
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    yield "model.embed_tokens.weight", random(config.vocab_size, hidden)
    if not config.tie_word_embeddings:
        yield "lm_head.weight", random(config.vocab_size, hidden)
    yield "model.norm.weight", 1 + random(hidden)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        for name, size in (("q", q_size), ("k", kv_size), ("v", kv_size)):
            yield f"{prefix}self_attn.{name}_proj.weight", random(size, hidden)
            if config.attention_bias:
                yield f"{prefix}self_attn.{name}_proj.bias", random(size)
        yield f"{prefix}self_attn.o_proj.weight", random(hidden, q_size)
        yield f"{prefix}mlp.gate_proj.weight", random(inner, hidden)
        yield f"{prefix}mlp.up_proj.weight", random(inner, hidden)
        yield f"{prefix}mlp.down_proj.weight", random(hidden, inner)
        norms = ["input_layernorm", "post_attention_layernorm"]
        if config.sandwich_norm:
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        for name in norms:
            yield f"{prefix}{name}.weight", 1 + random(hidden)
        if config.qk_norm:
            for name in ("q_norm", "k_norm"):
                yield f"{prefix}self_attn.{name}.weight", 1 + random(config.head_dim)


def tiny_model(family: str, kernels: Kernels, kv_dtype: str = "auto", quantization: str | None = None) -> Model:
    config = CONFIGS[family]
    model = load_model(config, kernels, random_weights(config), quantization, max_model_len=1024)
    model.allocate_kv_cache(128, 16, kv_dtype)
    return model
