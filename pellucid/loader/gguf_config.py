"""GGUF metadata to a ModelConfig, with llama.cpp's conventions where the file leaves something unsaid."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pellucid.loader.errors import GGUFError, ModelConfigError, UnsupportedModelError
from pellucid.loader.fields import Fields
from pellucid.loader.gguf_reader import GGUFFile
from pellucid.loader.hf_config import default_sampling
from pellucid.loader.limits import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_INTERMEDIATE,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_THETA,
    check_consistent,
)
from pellucid.models.config import ModelConfig, RopeScaling

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",  # Mistral and SmolLM2 files call themselves llama too
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}
ROPE_FACTORS_TENSOR = "rope_freqs.weight"
CONTROL_TOKEN = 3  # in tokenizer.ggml.token_type
# a file names one end token, a chat model ends its turns with another: llama.cpp knows these by their text
END_OF_TURN_TEXTS = {
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>",
}  # fmt: skip

_HEEDED = {
    "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.dimension_count",
    "attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.freq_base_swa", "rope.scale_linear",
    "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.finetuned",
    "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "attention.sliding_window",
    "attention.sliding_window_pattern", "attn_logit_softcapping", "final_logit_softcapping", "vocab_size",
    "tensor_data_layout",
}  # fmt: skip


def read_gguf_config(file: GGUFFile) -> ModelConfig:
    """Raises UnsupportedModelError for what Pellucid does not compute, ModelConfigError for what makes no sense."""
    origin = str(file.path)
    architecture = file.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{origin}: the architecture {architecture!r} is not supported; supported are {', '.join(ARCHITECTURES)}"
        )
    if file.metadata.get("split.count", 1) not in (0, 1):
        raise UnsupportedModelError(
            f"{origin}: part of a split model; join the parts with llama.cpp's gguf-split --merge"
        )
    own = {
        key.removeprefix(f"{architecture}."): _plain(value)
        for key, value in file.metadata.items()
        if key.startswith(f"{architecture}.")
    }
    fields = Fields(own, origin)
    unknown = sorted(key for key, value in own.items() if key not in _HEEDED and not _is_neutral(value))
    if unknown:
        listed = ", ".join(f"{architecture}.{key}={own[key]!r}" for key in unknown)
        raise UnsupportedModelError(f"{origin}: these would change the result and are not supported: {listed}")
    return check_consistent(_model_config(file, fields, architecture), origin)


def _model_config(file: GGUFFile, fields: Fields, architecture: str) -> ModelConfig:
    gemma = architecture == "gemma3"
    tokens = Fields({k: v for k, v in file.metadata.items() if k.startswith("tokenizer.ggml.")}, fields.origin)
    hidden_size = fields.integer("embedding_length", high=MAX_HIDDEN)
    num_layers = fields.integer("block_count", high=MAX_LAYERS)
    num_heads = _same_in_all_layers(fields, "attention.head_count", None, MAX_HEADS)
    head_dim = fields.integer("attention.key_length", max(1, hidden_size // num_heads), high=MAX_HEAD_DIM)
    for name in ("attention.value_length", "rope.dimension_count"):
        if fields.integer(name, head_dim, low=0, high=MAX_HEAD_DIM) != head_dim:
            raise UnsupportedModelError(f"{fields.origin}: {name} differs from the head size {head_dim}")
    theta = fields.number("rope.freq_base", 10000.0, low=1.0, high=MAX_THETA)
    layer_types, sliding_window = _layers(fields, gemma, num_layers)
    bos = tokens.integer("tokenizer.ggml.bos_token_id", None, low=0, high=1 << 31)
    return ModelConfig(
        architecture=ARCHITECTURES[architecture],
        vocab_size=_vocab_size(file, hidden_size),
        hidden_size=hidden_size,
        intermediate_size=_same_in_all_layers(fields, "feed_forward_length", None, MAX_INTERMEDIATE),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_same_in_all_layers(fields, "attention.head_count_kv", num_heads, MAX_HEADS),
        head_dim=head_dim,
        max_position_embeddings=fields.integer("context_length", high=MAX_POSITIONS),
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon", low=0.0, high=1.0),
        hidden_act="gelu_tanh" if gemma else "silu",
        rope_theta=theta,
        rope_scaling=_rope_scaling(file, fields, head_dim),
        rope_theta_local=fields.number("rope.freq_base_swa", 10000.0, low=1.0, high=MAX_THETA) if gemma else None,
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        attention_output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_down.bias" in file.tensors,
        qk_norm=architecture in ("qwen3", "gemma3"),
        sandwich_norm=gemma,
        norm_weight_plus_one=False,  # a GGUF file of Gemma holds 1 + w already
        embedding_scale=math.sqrt(hidden_size) if gemma else 1.0,
        attention_scale=_gemma_attention_scale(num_layers, hidden_size, num_heads, head_dim) if gemma else None,
        attention_softcap=_softcap(fields, "attn_logit_softcapping"),
        logit_softcap=_softcap(fields, "final_logit_softcapping"),
        sliding_window=sliding_window,
        layer_types=layer_types,
        tie_word_embeddings="output.weight" not in file.tensors,
        bos_token_id=bos,
        eos_token_ids=_eos_token_ids(file, tokens),
        torch_dtype={"F32": "float32", "F16": "float16"}.get(_embedding(file).ggml_type.name, "bfloat16"),
        extra={"default_sampling": _default_sampling(file, fields.origin)},
    )


def _plain(value: Any) -> Any:
    """Numpy arrays as lists; floats, which GGUF stores in 32 bits, as the decimal they were written from."""
    if isinstance(value, np.ndarray):
        return value.tolist() if value.size <= MAX_LAYERS else None
    if isinstance(value, float):
        return float(str(np.float32(value)))
    return value


def _is_neutral(value: Any) -> bool:
    return value in (None, False, 0, "", [])


def _same_in_all_layers(fields: Fields, name: str, default: int | None, high: int) -> int:
    value = fields.values.get(name)
    if isinstance(value, list):
        if len(set(value)) != 1:
            raise UnsupportedModelError(f"{fields.origin}: {name} differs from layer to layer, which is not supported")
        fields = Fields({name: value[0]}, fields.origin)
    if default is None:
        return fields.integer(name, high=high)
    return fields.integer(name, default, high=high)


def _embedding(file: GGUFFile) -> Any:
    info = file.tensors.get("token_embd.weight")
    if info is None:
        raise GGUFError(f"{file.path}: has no token_embd.weight (a vocabulary or adapter file?)")
    return info


def _vocab_size(file: GGUFFile, hidden_size: int) -> int:
    shape = _embedding(file).shape
    if len(shape) != 2 or shape[1] != hidden_size:
        raise ModelConfigError(
            f"{file.path}: token_embd.weight has the shape {list(shape)}, expected [*, {hidden_size}]"
        )
    return shape[0]


def _layers(fields: Fields, gemma: bool, num_layers: int) -> tuple[tuple[str, ...], int | None]:
    window = fields.integer("attention.sliding_window", None, low=0, high=MAX_POSITIONS) or None
    if gemma:
        pattern = fields.integer("attention.sliding_window_pattern", 6, high=MAX_LAYERS)
        layers = tuple("sliding" if (i + 1) % pattern else "full" for i in range(num_layers))
        return layers, window if "sliding" in layers else None
    if window is not None and window < fields.integer("context_length", high=MAX_POSITIONS):
        raise UnsupportedModelError(
            f"{fields.origin}: a sliding window of {window} is not supported in this architecture"
        )
    return ("full",) * num_layers, None


def _gemma_attention_scale(num_layers: int, hidden_size: int, num_heads: int, head_dim: int) -> float:
    # the file does not hold query_pre_attn_scalar; it is the head size but for the 27B model, which has 62 layers
    return (hidden_size / num_heads if num_layers == 62 else head_dim) ** -0.5


def _softcap(fields: Fields, name: str) -> float | None:
    return fields.number(name, None, low=0.0, high=1e6) or None


def _rope_scaling(file: GGUFFile, fields: Fields, head_dim: int) -> RopeScaling | None:
    kind = fields.text("rope.scaling.type", "linear" if "rope.scale_linear" in fields else "none")
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedModelError(
            f"{fields.origin}: the rope kind {kind!r}; supported are none, linear, yarn, llama3"
        )
    if ROPE_FACTORS_TENSOR in file.tensors:
        if kind != "none":
            raise UnsupportedModelError(f"{fields.origin}: rope factors together with the rope kind {kind!r}")
        return _stored_factors(file, head_dim)
    factor = fields.number(
        "rope.scaling.factor", fields.number("rope.scale_linear", 1.0, low=0, high=1e6), low=0, high=1e6
    )
    if kind == "none" or factor in (0.0, 1.0):
        return None
    if kind == "linear":
        return RopeScaling("linear", factor)
    return RopeScaling(
        "yarn",
        factor,
        original_max_position_embeddings=fields.integer("rope.scaling.original_context_length", high=MAX_POSITIONS),
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0, low=1e-3, high=1e6),
        beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0, low=1e-3, high=1e6),
    )


def _stored_factors(file: GGUFFile, head_dim: int) -> RopeScaling:
    """Llama 3.x's scaling, which these files hold as what each frequency is divided by."""
    info = file.tensors[ROPE_FACTORS_TENSOR]
    if info.ggml_type.name != "F32" or info.num_elements != head_dim // 2:
        raise ModelConfigError(f"{file.path}: {ROPE_FACTORS_TENSOR} is no F32 vector of {head_dim // 2}")
    factors = file.raw(info).reshape(-1).view("<f4").tolist()
    if not all(math.isfinite(factor) and factor > 0 for factor in factors):
        raise ModelConfigError(f"{file.path}: {ROPE_FACTORS_TENSOR} holds factors that are not positive numbers")
    return RopeScaling("factors", freq_factors=tuple(factors))


def _eos_token_ids(file: GGUFFile, tokens: Fields) -> tuple[int, ...]:
    named = [
        tokens.integer(f"tokenizer.ggml.{kind}_token_id", None, low=0, high=1 << 31) for kind in ("eos", "eot", "eom")
    ]
    ids = [token_id for token_id in named if token_id is not None]
    texts = file.metadata.get("tokenizer.ggml.tokens", ())
    types = file.metadata.get("tokenizer.ggml.token_type")
    if isinstance(texts, list) and isinstance(types, np.ndarray) and len(texts) == len(types):
        ids += [int(i) for i in np.flatnonzero(types == CONTROL_TOKEN) if texts[i] in END_OF_TURN_TEXTS]
    return tuple(dict.fromkeys(ids))


def _default_sampling(file: GGUFFile, origin: str) -> dict[str, float | int]:
    names = {
        "temp": "temperature",
        "top_p": "top_p",
        "top_k": "top_k",
        "min_p": "min_p",
        "penalty_repeat": "repetition_penalty",
    }
    stated = {ours: _plain(file.metadata.get(f"general.sampling.{theirs}")) for theirs, ours in names.items()}
    return default_sampling(Fields(stated, origin))
