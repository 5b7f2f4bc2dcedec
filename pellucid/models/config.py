"""One description for every decoder we run, read from a HF config.json or from GGUF metadata. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field

# Four bits are too few for the matrix that decides between tokens.
HEAD_QUANTIZATION = {None: None, "int8": "int8", "int4": "int8"}


@dataclass(frozen=True)
class RopeScaling:
    """How the rotary frequencies are stretched; the numbers as in HF's rope_scaling / rope_parameters.

    kind: "linear" (factor), "llama3" (factor, low_freq_factor, high_freq_factor, original_max_position_embeddings),
    "yarn" (factor, original_max_position_embeddings, beta_*, attention_factor, truncate), or "factors":
    each frequency is divided by its own freq_factors[i], which is how GGUF files store llama3 scaling (rope_freqs).
    attention_factor: what cosines and sines are multiplied by; None: 0.1 * ln(factor) + 1.
    """

    kind: str
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True
    freq_factors: tuple[float, ...] = ()


@dataclass(frozen=True)
class ModelConfig:
    """architecture: HF's class name. Sizes as in HF's config, one name each.

    layer_types: per layer "full" or "sliding"; empty: all full. sliding_window: how many tokens a sliding layer sees,
    the current one among them. rope_theta_local: the base of sliding layers (Gemma 3), which then rotate without
    rope_scaling; None: all layers rotate alike.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"  # or gelu_tanh
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    rope_theta_local: float | None = None
    attention_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sandwich_norm: bool = False  # norms after attention and MLP too (Gemma)
    norm_weight_plus_one: bool = False  # HF checkpoints of Gemma store w, and use 1 + w
    embedding_scale: float = 1.0
    attention_scale: float | None = None  # None: head_dim ** -0.5
    logit_scale: float = 1.0
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    sliding_window: int | None = None
    layer_types: tuple[str, ...] = ()
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    torch_dtype: str = "bfloat16"
    extra: dict[str, object] = field(default_factory=dict)
