"""GGUF's tensor names and Hugging Face's, for the decoders Pellucid knows. Torch-free."""

from __future__ import annotations

import re
from collections.abc import Mapping

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_COMMON = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_QK_NORM = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_PRE_NORM = {**_COMMON, "ffn_norm": "post_attention_layernorm"}
_SANDWICH = {
    **_COMMON,
    **_QK_NORM,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_IN_LAYER: Mapping[str, Mapping[str, str]] = {
    "llama": _PRE_NORM,
    "qwen2": _PRE_NORM,
    "qwen3": {**_PRE_NORM, **_QK_NORM},
    "gemma3": _SANDWICH,
}
_BLOCK = re.compile(r"blk\.(\d{1,4})\.([a-z_]+)\.(weight|bias)")


def hf_name(architecture: str, gguf_name: str) -> str | None:
    """architecture: general.architecture. None where the name means nothing to that decoder."""
    if gguf_name in _TOP:
        return _TOP[gguf_name]
    match = _BLOCK.fullmatch(gguf_name)
    if match is None or match[2] not in _IN_LAYER[architecture]:
        return None
    return f"model.layers.{int(match[1])}.{_IN_LAYER[architecture][match[2]]}.{match[3]}"
