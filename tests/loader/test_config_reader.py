"""What a model's files say is read as transformers reads it, and what would change results is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import LLAMA, llama_tensors, write_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import Gemma3Config, Gemma3TextConfig, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from pellucid.loader.config_reader import read_model_config
from pellucid.loader.errors import ModelConfigError, ModelError, UnsupportedModelError
from pellucid.loader.resolve import ModelFiles
from pellucid.models.config import ModelConfig, RopeScaling


def read(directory: Path, config: Any, generation: Any = None) -> ModelConfig:
    (directory / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation))
    return read_model_config(ModelFiles("test", directory))


SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "vocab_size": 300,
}
TRANSFORMERS = {
    "LlamaForCausalLM": LlamaConfig(**SIZES, num_key_value_heads=2, attention_bias=True, rope_theta=5e5),
    "MistralForCausalLM": MistralConfig(**SIZES, num_key_value_heads=2, head_dim=32, sliding_window=128),
    "Qwen2ForCausalLM": Qwen2Config(
        **SIZES, num_key_value_heads=4, use_sliding_window=True, sliding_window=64, max_window_layers=3
    ),
    "Qwen3ForCausalLM": Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=48, tie_word_embeddings=True),
    "Gemma3ForCausalLM": Gemma3TextConfig(
        **SIZES, num_key_value_heads=1, head_dim=32, query_pre_attn_scalar=100, sliding_window=48
    ),
}


@pytest.mark.parametrize("architecture", TRANSFORMERS)
def test_a_config_saved_by_transformers_is_read_as_it_was_meant(architecture: str, tmp_path: Path) -> None:
    theirs = TRANSFORMERS[architecture]
    theirs.architectures = [architecture]
    theirs.save_pretrained(tmp_path)
    ours = read_model_config(ModelFiles("test", tmp_path))
    gemma = architecture.startswith("Gemma")
    assert ours.architecture == architecture
    assert (ours.vocab_size, ours.hidden_size, ours.intermediate_size) == (300, 64, 96)
    assert (ours.num_layers, ours.num_heads, ours.num_kv_heads) == (8, 4, theirs.num_key_value_heads)
    assert ours.head_dim == getattr(theirs, "head_dim", None) or 64 // 4
    assert ours.max_position_embeddings == theirs.max_position_embeddings
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings
    rope = theirs.rope_parameters
    assert ours.rope_theta == (rope["full_attention"] if gemma else rope)["rope_theta"]
    assert ours.rope_theta_local == (rope["sliding_attention"]["rope_theta"] if gemma else None)
    assert ours.rope_scaling is None
    assert ours.attention_bias == (architecture in ("LlamaForCausalLM", "Qwen2ForCausalLM"))
    assert ours.attention_output_bias == (architecture == "LlamaForCausalLM")
    assert ours.qk_norm == (architecture in ("Qwen3ForCausalLM", "Gemma3ForCausalLM"))
    assert (ours.sandwich_norm, ours.norm_weight_plus_one) == (gemma, gemma)
    assert ours.embedding_scale == (8.0 if gemma else 1.0)
    assert ours.attention_scale == (0.1 if gemma else None)
    assert ours.hidden_act == ("gelu_tanh" if gemma else "silu")
    kinds = getattr(theirs, "layer_types", None)
    if kinds is None:
        kinds = ["sliding_attention" if architecture.startswith("Mistral") else "full_attention"] * 8
    assert [f"{kind}_attention" for kind in ours.layer_types] == kinds
    assert ours.sliding_window == (theirs.sliding_window if "sliding_attention" in kinds else None)


LLAMA32 = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0.dev0",
    "use_cache": True,
    "vocab_size": 128256,
}
LLAMA3_SCALING = RopeScaling("llama3", 32.0, 1.0, 4.0, 8192)


def test_llama_3_2_with_its_rope_scaling_and_three_eos_ids(tmp_path: Path) -> None:
    config = read(tmp_path, LLAMA32)
    assert config.rope_scaling == LLAMA3_SCALING
    assert config.eos_token_ids == (128001, 128008, 128009)
    assert (config.bos_token_id, config.torch_dtype, config.tie_word_embeddings) == (128000, "bfloat16", True)


def test_the_spelling_of_transformers_5_means_the_same(tmp_path: Path) -> None:
    new = {key: value for key, value in LLAMA32.items() if key not in ("rope_scaling", "rope_theta", "torch_dtype")}
    new["rope_parameters"] = {**LLAMA32["rope_scaling"], "rope_theta": 500000.0}
    new["dtype"] = "bfloat16"
    assert read(tmp_path, new) == read(tmp_path, LLAMA32)


def test_gemma_3_inside_a_multimodal_config_with_its_defaults_left_out(tmp_path: Path) -> None:
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    config = read(
        tmp_path,
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "eos_token_id": [1, 106],
            "image_token_index": 262144,
            "model_type": "gemma3",
            "text_config": text,
            "torch_dtype": "bfloat16",
            "vision_config": {"hidden_size": 1152},
        },
    )
    theirs = Gemma3Config(text_config=text).text_config
    assert config.architecture == "Gemma3ForCausalLM"
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (8, 4, 256)
    assert config.vocab_size == theirs.vocab_size
    assert config.max_position_embeddings == theirs.max_position_embeddings
    assert config.rope_scaling == RopeScaling("linear", 8.0)
    assert (config.rope_theta, config.rope_theta_local) == (1e6, 1e4)
    assert (config.sliding_window, config.eos_token_ids, config.torch_dtype) == (1024, (1, 106), "bfloat16")
    assert [f"{kind}_attention" for kind in config.layer_types] == theirs.layer_types
    assert config.embedding_scale == math.sqrt(2560)


def test_the_sliding_window_of_mistral_is_for_all_layers_and_null_means_none(tmp_path: Path) -> None:
    mistral = {"architectures": ["MistralForCausalLM"], "num_hidden_layers": 3, "sliding_window": 4096}
    assert read(tmp_path, mistral).layer_types == ("sliding",) * 3
    without = read(tmp_path, {**mistral, "sliding_window": None})
    assert (without.layer_types, without.sliding_window) == (("full",) * 3, None)


def test_the_sliding_window_of_qwen_is_off_unless_it_is_used(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        {
            "architectures": ["Qwen2ForCausalLM"],
            "sliding_window": 32768,
            "max_window_layers": 21,
            "use_sliding_window": False,
        },
    )
    assert (config.sliding_window, set(config.layer_types)) == (None, {"full"})


def test_yarn_is_read_with_its_parameters(tmp_path: Path) -> None:
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    config = read(tmp_path, {"architectures": ["Qwen3ForCausalLM"], "rope_scaling": yarn})
    assert config.rope_scaling == RopeScaling("yarn", 4.0, original_max_position_embeddings=32768)
    scaled = read(
        tmp_path,
        {"architectures": ["Qwen3ForCausalLM"], "rope_scaling": {**yarn, "mscale": 0.7, "mscale_all_dim": 1.0}},
    )
    assert scaled.rope_scaling is not None
    expected = (0.07 * math.log(4) + 1) / (0.1 * math.log(4) + 1)
    assert scaled.rope_scaling.attention_factor == pytest.approx(expected)


def test_generation_config_names_the_eos_ids_and_the_makers_sampling(tmp_path: Path) -> None:
    generation = {
        "bos_token_id": 5,
        "do_sample": True,
        "eos_token_id": [7, 9, 7],
        "repetition_penalty": 1.05,
        "temperature": 0.7,
        "top_k": 20,
        "top_p": 0.8,
    }
    config = read(tmp_path, {**LLAMA32, "eos_token_id": 128001}, generation)
    assert config.eos_token_ids == (7, 9)
    expected = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}
    assert config.extra["default_sampling"] == expected
    greedy = read(tmp_path, LLAMA32, {"do_sample": False, "temperature": 0.7})
    assert greedy.extra["default_sampling"] == {}
    assert greedy.eos_token_ids == (128001, 128008, 128009)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM.*LlamaForCausalLM.*Qwen3ForCausalLM"),
    "no architecture": ({"architectures": None, "model_type": "xyz"}, "xyz.*LlamaForCausalLM"),
    "rope kind": ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "longrope.*linear, llama3, yarn"),
    "rope parameter": ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "mrope_section": [1]}}, "mrope_section"),
    "partial rotary": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    "partial rotary in rope": ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    "interleaved rope": ({"rope_interleaved": True}, "rope_interleaved"),
    "experts": ({"num_local_experts": 8}, "num_local_experts"),
    "quantised": ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq.*GGUF"),
    "softcap": ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    "activation": ({"hidden_act": "relu2"}, "relu2.*silu"),
    "layer kind": ({"layer_types": ["chunked_attention"] * 16}, "chunked_attention"),
    "multiplier": ({"residual_multiplier": 0.22}, "residual_multiplier"),
    "dtype": ({"torch_dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_change_the_result_is_refused_by_name(name: str, tmp_path: Path) -> None:
    changed, expected = REFUSED[name]
    with pytest.raises(UnsupportedModelError, match=expected):
        read(tmp_path, {**LLAMA32, **changed})


def test_neutral_values_of_what_is_not_computed_are_fine(tmp_path: Path) -> None:
    neutral = {
        "rope_interleaved": False,
        "is_llama_config": True,
        "partial_rotary_factor": 1.0,
        "num_local_experts": None,
    }
    assert read(tmp_path, {**LLAMA32, **neutral}) == read(tmp_path, LLAMA32)


def test_an_unknown_key_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    read(tmp_path, {**LLAMA32, "some_new_feature": 3})
    assert "some_new_feature" in caplog.text


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor is missing"),
    "type": ({"hidden_size": "2048"}, "hidden_size is '2048'"),
    "truth": ({"num_hidden_layers": True}, "num_hidden_layers is True"),
    "too large": ({"vocab_size": 1 << 40}, "vocab_size is 1099511627776, expected a whole number from 1 to"),
    "negative": ({"num_key_value_heads": -1}, "num_key_value_heads is -1"),
    "not a number": ({"rms_norm_eps": math.nan}, "rms_norm_eps is nan"),
    "infinite": ({"rope_theta": math.inf}, "rope_theta is inf"),
    "heads": ({"num_key_value_heads": 5}, "32 heads can't share 5"),
    "odd head": ({"head_dim": 63}, "head_dim is 63"),
    "layer types": ({"layer_types": ["full_attention"]}, "1 layer types for 16 layers"),
    "eos outside": ({"eos_token_id": [128256]}, "128256"),
    "eos type": ({"eos_token_id": ["</s>"]}, "eos_token_id"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_makes_no_sense_is_named_with_its_value(name: str, tmp_path: Path) -> None:
    changed, expected = BROKEN[name]
    with pytest.raises(ModelConfigError, match=expected):
        read(tmp_path, {**LLAMA32, **changed})


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'"x"', b"[" * 100_000, b'{"text_config": 3}'])
def test_a_config_that_is_none_ends_in_a_clean_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"config\.json"):
        read_model_config(ModelFiles("test", tmp_path))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["rope_type", "factor", "x"]), inner),
    max_leaves=5,
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.dictionaries(st.sampled_from(sorted(LLAMA32)), JSON_VALUES, min_size=1, max_size=3))
def test_any_json_in_any_field_gives_a_config_or_a_clean_error(changes: dict[str, Any], tmp_path: Path) -> None:
    try:
        config = read(tmp_path, {**LLAMA32, **changes})
    except ModelError:
        return
    assert isinstance(config, ModelConfig)
    assert config.num_heads % config.num_kv_heads == 0


# GGUF ---------------------------------------------------------------------------------------------------------------


def test_smollm2_from_its_gguf_file(smollm2: ModelFiles) -> None:
    config = read_model_config(smollm2)
    assert config.architecture == "LlamaForCausalLM"
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (30, 9, 3, 64)
    assert (config.rms_norm_eps, config.rope_theta) == (1e-5, 1e5)  # the decimals they were written from
    assert (config.vocab_size, config.max_position_embeddings, config.tie_word_embeddings) == (49152, 8192, True)
    assert config.eos_token_ids[0] == 2


def test_gemma_3_from_its_gguf_file(gemma3: ModelFiles) -> None:
    config = read_model_config(gemma3)
    assert config.architecture == "Gemma3ForCausalLM"
    assert (config.rope_theta, config.rope_theta_local, config.sliding_window) == (1e6, 1e4, 512)
    assert config.layer_types == (("sliding",) * 5 + ("full",)) * 3
    assert (config.embedding_scale, config.attention_scale) == (math.sqrt(640), 1 / 16)
    assert (config.qk_norm, config.sandwich_norm) == (True, True)
    assert config.norm_weight_plus_one is False  # the file holds 1 + w
    assert config.eos_token_ids == (1, 106)  # <end_of_turn> ends a turn, though the file does not name it


def read_gguf(
    path: Path, metadata: dict[str, Any], tensors: dict[str, Any] | None = None, arch: str = "llama"
) -> ModelConfig:
    write_model(path / "m.gguf", arch, metadata, llama_tensors() if tensors is None else tensors)
    return read_model_config(ModelFiles("test", path, path / "m.gguf"))


def test_a_gguf_files_rope_factors_reach_the_config(tmp_path: Path) -> None:
    factors = np.array([1.0, 1.0, 2.5, 32.0], np.float32)
    config = read_gguf(tmp_path, LLAMA, {**llama_tensors(), "rope_freqs.weight": factors})
    assert config.rope_scaling == RopeScaling("factors", freq_factors=(1.0, 1.0, 2.5, 32.0))


def test_a_gguf_files_yarn_and_linear_scaling_reach_the_config(tmp_path: Path) -> None:
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    assert read_gguf(tmp_path, {**LLAMA, **linear}).rope_scaling == RopeScaling("linear", 4.0)
    yarn = {**linear, "llama.rope.scaling.type": "yarn", "llama.rope.scaling.original_context_length": 16}
    expected = RopeScaling("yarn", 4.0, original_max_position_embeddings=16)
    assert read_gguf(tmp_path, {**LLAMA, **yarn}).rope_scaling == expected


def test_end_of_turn_tokens_and_sampling_of_a_gguf_file(tmp_path: Path) -> None:
    tokens = [f"t{i}" for i in range(44)] + ["<|eot_id|>", "<|im_end|>", "x", "y"]
    metadata = {
        **LLAMA,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 44 + [3, 1, 3, 1],  # <|im_end|> is ordinary text here
        "tokenizer.ggml.eos_token_id": 3,
        "tokenizer.ggml.eot_token_id": 5,
        "general.sampling.temp": 0.6,
        "general.sampling.top_k": 20,
    }
    config = read_gguf(tmp_path, metadata)
    assert config.eos_token_ids == (3, 5, 44)
    assert config.extra["default_sampling"] == {"temperature": 0.6, "top_k": 20}


GGUF_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "experts": ({"llama.expert_count": 8}, r"llama\.expert_count=8"),
    "unknown": ({"llama.new.feature": 0.5}, r"llama\.new\.feature"),
    "rope kind": ({"llama.rope.scaling.type": "longrope"}, "longrope.*yarn"),
    "partial rotary": ({"llama.rope.dimension_count": 4}, r"rope\.dimension_count"),
    "value size": ({"llama.attention.value_length": 16}, r"attention\.value_length"),
    "per layer": ({"llama.attention.head_count_kv": [2, 1]}, "differs from layer to layer"),
    "sliding": ({"llama.attention.sliding_window": 8}, "sliding window of 8"),
    "split": ({"split.count": 3}, "split model"),
}


@pytest.mark.parametrize("name", GGUF_REFUSED)
def test_gguf_metadata_that_would_change_the_result_is_refused_by_name(name: str, tmp_path: Path) -> None:
    changed, expected = GGUF_REFUSED[name]
    with pytest.raises(UnsupportedModelError, match=expected):
        read_gguf(tmp_path, {**LLAMA, **changed})


def test_a_gguf_architecture_that_is_not_known_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"'rwkv7'.*llama, qwen2, qwen3, gemma3"):
        read_gguf(tmp_path, {}, arch="rwkv7")


def test_a_gguf_file_that_lacks_a_size_or_states_a_wild_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match="context_length is missing"):
        read_gguf(tmp_path, {k: v for k, v in LLAMA.items() if k != "llama.context_length"})
    with pytest.raises(ModelConfigError, match="block_count is 4000000000"):
        read_gguf(tmp_path, {**LLAMA, "llama.block_count": 4_000_000_000})
    with pytest.raises(ModelConfigError, match=r"shape \[48, 32\], expected \[\*, 40\]"):
        read_gguf(tmp_path, {**LLAMA, "llama.embedding_length": 40})
    with pytest.raises(ModelError, match=r"no token_embd\.weight"):
        read_gguf(tmp_path, LLAMA, {"x": np.zeros(32, np.float32)})
