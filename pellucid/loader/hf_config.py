"""config.json and generation_config.json, in the spellings of transformers 4 and 5, to a ModelConfig."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pellucid.loader.errors import UnsupportedModelError
from pellucid.loader.fields import Fields
from pellucid.loader.hf_rope import read_rope
from pellucid.loader.limits import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_INTERMEDIATE,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_VOCAB,
    check_consistent,
)
from pellucid.loader.model_files import read_json
from pellucid.models.config import ModelConfig

logger = logging.getLogger(__name__)

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}
DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Family:
    """What an architecture does that its config.json does not say, and what it assumes where that says nothing."""

    defaults: Mapping[str, Any]
    qkv_bias: bool | None = None  # None: attention_bias decides, for the output projection too
    mlp_bias: bool = False  # whether mlp_bias is heeded
    qk_norm: bool = False
    gemma: bool = False  # sandwich norms of 1 + w, scaled embeddings, two rope bases, every sixth layer full
    sliding: str = "never"  # how sliding layers are told where layer_types is absent: never | always | upper


_COMMON = {"rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False, "rope_theta": 10000.0}
_LLAMA = Family(
    {
        **_COMMON,
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    mlp_bias=True,
)
_MISTRAL = Family(
    {
        **_LLAMA.defaults,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    qkv_bias=False,
    sliding="always",
)
_QWEN = {
    **_COMMON,
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_GEMMA3 = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10000.0,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "bos_token_id": 2,
    "eos_token_id": 1,
}
FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _MISTRAL,
    "Qwen2ForCausalLM": Family(_QWEN, qkv_bias=True, sliding="upper"),
    "Qwen3ForCausalLM": Family({**_QWEN, "head_dim": 128}, qk_norm=True, sliding="upper"),
    "Gemma3ForCausalLM": Family(_GEMMA3, qk_norm=True, gemma=True),
}
BY_MODEL_TYPE = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma3": "Gemma3ForConditionalGeneration",
}
# they would change what is computed, so each must have one of the values under which it does not
NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "rope_interleaved": (False,),
    "rope_ratio": (1,),
    "partial_rotary_factor": (1,),
    "embedding_multiplier": (1,),
    "residual_multiplier": (1,),
    "logits_scaling": (1,),
    "logit_scale": (1,),
    "use_bidirectional_attention": (False,),
    "is_encoder_decoder": (False,),
    "use_qk_norm": (False,),
    "qk_layernorm": (False,),
    "use_mrope": (False,),
    "clip_qkv": (),
    "attention_multiplier": (),
    "attention_chunk_size": (),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "n_routed_experts": (0,),
    "no_rope_layers": ([],),
    "pruned_heads": ({},),
    "compression_config": (),
}
_USED = {
    "head_dim", "attention_bias", "mlp_bias", "layer_types", "use_sliding_window", "rope_parameters", "rope_scaling",
    "attn_logit_softcapping", "final_logit_softcapping", "dtype", "torch_dtype", "architectures", "model_type",
    "text_config", "num_key_value_heads", "original_max_position_embeddings",
}  # fmt: skip
_HARMLESS = {
    "attention_dropout", "auto_map", "cache_implementation", "chunk_size_feed_forward", "hidden_dropout", "id2label",
    "initializer_range", "is_decoder", "is_llama_config", "label2id", "output_attentions", "output_hidden_states",
    "pad_token_id", "pretraining_tp", "problem_type", "return_dict", "sep_token_id", "sliding_window_pattern",
    "tf_legacy_loss", "transformers.js_config", "transformers_version", "unsloth_fixed", "unsloth_version",
    "use_cache", "hidden_activation", "hidden_act", "max_window_layers", "sliding_window", "use_flash_attn",
}  # fmt: skip


def supported_architectures() -> str:
    return ", ".join([*FAMILIES, "Gemma3ForConditionalGeneration (its text model)"])


def read_hf_config(directory: Path) -> ModelConfig:
    """Raises UnsupportedModelError for what Pellucid does not compute, ModelConfigError for what makes no sense."""
    path = directory / "config.json"
    content = read_json(path)
    top = Fields(content, str(path))
    _refuse_quantized(top)
    hf_architecture = _architecture(top)
    architecture = hf_architecture
    if hf_architecture == "Gemma3ForConditionalGeneration":
        architecture = "Gemma3ForCausalLM"
        top = Fields(_text_config(top), f"{path}: text_config")
    family = FAMILIES.get(architecture)
    if family is None:
        raise UnsupportedModelError(
            f"{path}: the architecture {architecture} is not supported; supported are {supported_architectures()}"
        )
    _refuse_what_changes_results(top, family)
    generation = _generation_config(directory)
    fields = Fields({**family.defaults, **{k: v for k, v in top.values.items() if v is not None}}, top.origin)
    if "sliding_window" in top.values and top.values["sliding_window"] is None:  # here null is a statement
        fields = Fields({**fields.values, "sliding_window": None}, top.origin)
    return check_consistent(_model_config(architecture, hf_architecture, family, fields, generation), str(path))


def _model_config(
    architecture: str, hf_architecture: str, family: Family, fields: Fields, generation: Fields
) -> ModelConfig:
    hidden_size = fields.integer("hidden_size", high=MAX_HIDDEN)
    num_layers = fields.integer("num_hidden_layers", high=MAX_LAYERS)
    num_heads = fields.integer("num_attention_heads", high=MAX_HEADS)
    bias = fields.boolean("attention_bias", False)
    layer_types, sliding_window = _layers(family, fields, num_layers)
    rope = read_rope(fields, has_local_base=family.gemma)
    eos = generation.token_ids("eos_token_id") or fields.token_ids("eos_token_id")
    bos = fields.token_ids("bos_token_id")
    query_scalar = fields.number("query_pre_attn_scalar", None, low=1e-3, high=1e6) if family.gemma else None
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size", high=MAX_VOCAB),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size", high=MAX_INTERMEDIATE),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_heads, high=MAX_HEADS),
        head_dim=fields.integer("head_dim", max(1, hidden_size // num_heads), high=MAX_HEAD_DIM),
        max_position_embeddings=fields.integer("max_position_embeddings", high=MAX_POSITIONS),
        rms_norm_eps=fields.number("rms_norm_eps", low=0.0, high=1.0),
        hidden_act=_activation(fields, family),
        rope_theta=rope.theta,
        rope_scaling=rope.scaling,
        rope_theta_local=rope.theta_local,
        attention_bias=bias if family.qkv_bias is None else family.qkv_bias,
        attention_output_bias=bias if family.qkv_bias is None else False,
        mlp_bias=fields.boolean("mlp_bias", False) and family.mlp_bias,
        qk_norm=family.qk_norm,
        sandwich_norm=family.gemma,
        norm_weight_plus_one=family.gemma,
        embedding_scale=math.sqrt(hidden_size) if family.gemma else 1.0,
        attention_scale=None if query_scalar is None else query_scalar**-0.5,
        attention_softcap=_softcap(fields, "attn_logit_softcapping", family),
        logit_softcap=_softcap(fields, "final_logit_softcapping", family),
        sliding_window=sliding_window,
        layer_types=layer_types,
        tie_word_embeddings=fields.boolean("tie_word_embeddings"),
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=eos,
        torch_dtype=_dtype(fields),
        extra={"default_sampling": default_sampling(generation), "hf_architecture": hf_architecture},
    )


def _architecture(top: Fields) -> str:
    names = top.values.get("architectures")
    if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
        return names[0]
    by_type = BY_MODEL_TYPE.get(str(top.values.get("model_type")))
    if by_type is None:
        raise UnsupportedModelError(
            f"{top.origin}: names no architecture (model_type is {top.values.get('model_type')!r}); supported are "
            f"{supported_architectures()}"
        )
    return by_type


def _text_config(top: Fields) -> dict[str, Any]:
    text = dict(Fields(top.values.get("text_config") or {}, f"{top.origin}: text_config").values)
    for name in ("eos_token_id", "bos_token_id", "dtype", "torch_dtype", "tie_word_embeddings"):
        if top.values.get(name) is not None:
            text[name] = top.values[name]
    return text


def _refuse_quantized(top: Fields) -> None:
    quantized = top.values.get("quantization_config")
    if quantized:
        method = quantized.get("quant_method") if isinstance(quantized, dict) else None
        raise UnsupportedModelError(
            f"{top.origin}: weights quantised by {method!r} are not supported; give the unquantised model (Pellucid "
            "can quantise it at load) or a GGUF file"
        )


def _refuse_what_changes_results(top: Fields, family: Family) -> None:
    for name, neutral in NEUTRAL_VALUES.items():
        value = top.values.get(name)
        if value is not None and value not in neutral:
            raise UnsupportedModelError(f"{top.origin}: {name}={value!r} is not supported by Pellucid's decoder")
    if not family.gemma:
        for name in ("attn_logit_softcapping", "final_logit_softcapping"):
            if top.values.get(name) is not None:
                raise UnsupportedModelError(f"{top.origin}: {name} is not supported for this architecture")
    known = _USED | _HARMLESS | family.defaults.keys() | NEUTRAL_VALUES.keys()
    unknown = sorted(name for name in top.values if name not in known and not name.startswith("_"))
    if unknown:
        logger.warning("%s: not known and not heeded: %s", top.origin, ", ".join(unknown))


def _activation(fields: Fields, family: Family) -> str:
    name = fields.text("hidden_activation", None) if family.gemma else fields.text("hidden_act")
    if name not in ACTIVATIONS:
        raise UnsupportedModelError(f"{fields.origin}: activation {name!r}; supported are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def _softcap(fields: Fields, name: str, family: Family) -> float | None:
    return fields.number(name, None, low=1e-3, high=1e6) if family.gemma else None


def _layers(family: Family, fields: Fields, num_layers: int) -> tuple[tuple[str, ...], int | None]:
    """The layers' kinds and the window of the sliding ones (None where there are none)."""
    window = fields.integer("sliding_window", None, high=MAX_POSITIONS)
    if family.sliding == "upper" and not fields.boolean("use_sliding_window", False):
        window = None
    named = fields.values.get("layer_types")
    if named is not None:
        kinds = {"full_attention": "full", "sliding_attention": "sliding"}
        if not isinstance(named, list) or any(name not in kinds for name in named):
            raise UnsupportedModelError(f"{fields.origin}: layer_types {named!r}; supported are {', '.join(kinds)}")
        layers = [kinds[name] for name in named]
    elif family.gemma:
        pattern = fields.integer("sliding_window_pattern", high=MAX_LAYERS)
        layers = ["sliding" if (i + 1) % pattern else "full" for i in range(num_layers)]
    elif family.sliding == "upper":
        first = fields.integer("max_window_layers", low=0, high=MAX_LAYERS)
        layers = ["sliding" if window is not None and i >= first else "full" for i in range(num_layers)]
    else:
        layers = ["sliding" if family.sliding == "always" and window is not None else "full"] * num_layers
    return tuple(layers), window if "sliding" in layers else None


def _dtype(fields: Fields) -> str:
    name = str(fields.values.get("dtype") or fields.values.get("torch_dtype") or "float32").removeprefix("torch.")
    if name not in DTYPES:
        raise UnsupportedModelError(f"{fields.origin}: weights of dtype {name!r}; supported are {', '.join(DTYPES)}")
    return name


def _generation_config(directory: Path) -> Fields:
    path = directory / "generation_config.json"
    return Fields(read_json(path) if path.is_file() else {}, str(path))


def default_sampling(fields: Fields) -> dict[str, float | int]:
    """The makers' values by the names of SamplingParams; {} where they ask for greedy decoding or say nothing."""
    if fields.boolean("do_sample", True) is False:
        return {}
    values: dict[str, float | int | None] = {
        "temperature": fields.number("temperature", None, low=0.0, high=100.0),
        "top_p": fields.number("top_p", None, low=1e-6, high=1.0),
        "top_k": fields.integer("top_k", None, low=-1, high=MAX_VOCAB),
        "min_p": fields.number("min_p", None, low=0.0, high=1.0),
        "repetition_penalty": fields.number("repetition_penalty", None, low=1e-3, high=100.0),
    }
    return {name: value for name, value in values.items() if value is not None}


__all__ = ["FAMILIES", "default_sampling", "read_hf_config", "supported_architectures"]
