"""Weights under one set of names from every format, lazily, bit for bit; incomplete checkpoints are refused by name."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf_files import LLAMA, llama_tensors, write_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from pellucid.kernels.weights import QuantizedTensor, WeightSource
from pellucid.loader.config_reader import read_model_config
from pellucid.loader.errors import GGUFError, ModelError, SafetensorsError, UnsupportedModelError
from pellucid.loader.resolve import ModelFiles, resolve_model
from pellucid.loader.safetensors_reader import Checkpoint, SafetensorsFile
from pellucid.loader.weights import iter_weights, weight_bytes, weight_sizes


def values(weight: WeightSource) -> torch.Tensor:
    return weight if isinstance(weight, torch.Tensor) else weight.dequantize()


def all_weights(files: ModelFiles) -> dict[str, WeightSource]:
    listed = list(iter_weights(files, read_model_config(files)))
    assert len(dict(listed)) == len(listed)
    return dict(listed)


# safetensors --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=300,
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)


@pytest.fixture
def sharded(llama: LlamaForCausalLM, tmp_path: Path) -> Path:
    llama.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    return tmp_path


def test_a_sharded_checkpoint_is_what_was_saved(llama: LlamaForCausalLM, sharded: Path) -> None:
    files = resolve_model(str(sharded))
    found, expected = all_weights(files), llama.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == torch.bfloat16
        assert torch.equal(values(found[name]), tensor), name
    sizes = weight_sizes(files, read_model_config(files))
    assert sizes.num_parameters == sum(p.numel() for p in llama.parameters())
    assert sizes.num_bytes == weight_bytes(files, read_model_config(files)) == 2 * sizes.num_parameters
    assert sizes.by_format == {"BF16": sizes.num_bytes}


def test_one_file_and_shards_are_the_same(llama: LlamaForCausalLM, sharded: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    llama.save_pretrained(whole)
    one, many = all_weights(resolve_model(str(whole))), all_weights(resolve_model(str(sharded)))
    assert one.keys() == many.keys()
    assert all(torch.equal(values(one[name]), values(many[name])) for name in one)


def test_tensors_are_views_of_the_mapped_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.arange(1 << 16, dtype=torch.float32)}, path)
    file = SafetensorsFile(path)
    tensor = file.tensor("a")
    assert tensor.data_ptr() == file.tensor("a").data_ptr()
    tensor.zero_()  # the view is copy-on-write: the file stays as it is
    assert SafetensorsFile(path).tensor("a")[7] == 7


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.bool, torch.float64])
def test_every_dtype_reads_back(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {
        "a": torch.arange(12).reshape(3, 4).to(dtype),
        "scalar": torch.tensor(1).to(dtype),
        "none": torch.zeros(0, 3),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    file = SafetensorsFile(tmp_path / "model.safetensors")
    for name, tensor in tensors.items():
        assert file.tensor(name).dtype == tensor.dtype
        assert file.tensor(name).shape == tensor.shape
        assert torch.equal(file.tensor(name), tensor)


def test_missing_shards_are_named(sharded: Path) -> None:
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(SafetensorsError, match=shard.name):
        resolve_model(str(sharded))


def test_shards_that_hold_other_tensors_than_the_index_says_are_refused(sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.layers.7.extra"] = content["weight_map"].pop("model.norm.weight")
    index.write_text(json.dumps(content))
    with pytest.raises(SafetensorsError, match=r"model\.layers\.7\.extra, model\.norm\.weight"):
        Checkpoint(sharded)


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/x.safetensors", "weights.bin", "a\\b.safetensors", 3])
def test_an_index_leads_nowhere_but_to_its_own_directory(name: Any, sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(SafetensorsError, match="beside it"):
        Checkpoint(sharded)


def test_a_tied_head_that_is_stored_all_the_same_is_left_out(llama: LlamaForCausalLM, tmp_path: Path) -> None:
    llama.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    files = resolve_model(str(tmp_path))
    assert "lm_head.weight" not in all_weights(files)
    num_head = 300 * 64
    everything = sum(p.numel() for p in llama.parameters())
    assert weight_sizes(files, read_model_config(files)).num_parameters == everything - num_head


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_model_within_a_multimodal_checkpoint_has_its_own_names(prefix: str, tmp_path: Path) -> None:
    save_file(
        {
            f"{prefix}embed_tokens.weight": torch.zeros(8, 4),
            f"{prefix}layers.0.mlp.up_proj.weight": torch.zeros(4, 4),
            "vision_tower.x": torch.zeros(3),
            "model.vision_tower.y": torch.zeros(3),
            "multi_modal_projector.z": torch.zeros(3),
        },
        tmp_path / "model.safetensors",
    )
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": {"vocab_size": 300, "num_hidden_layers": 1},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert set(all_weights(resolve_model(str(tmp_path)))) == {
        "model.embed_tokens.weight",
        "model.layers.0.mlp.up_proj.weight",
    }


def with_header(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "short": (b"\x01", "header"),
    "header length": (struct.pack("<Q", 1 << 62) + b"{}", "does not fit"),
    "no JSON": (with_header(b"{nope"), "no JSON"),
    "deep": (with_header(b"[" * 200_000), "no JSON"),
    "no table": (with_header([1]), "no table"),
    "twice": (with_header(b'{"a": 1, "a": 2}'), "twice"),
    "entry": (with_header({"a": 3}), "described by"),
    "dtype": (with_header({"a": entry("F8_E4M3", (8,))}, bytes(8)), "F8_E4M3.*BF16"),
    "shape": (with_header({"a": entry(shape=(-2,))}, bytes(8)), "shape"),
    "shape type": (with_header({"a": entry(shape=(2.0,))}, bytes(8)), "shape"),
    "shape overflow": (with_header({"a": entry(shape=(1 << 61, 1 << 61))}, bytes(8)), "takes"),
    "offsets": (with_header({"a": entry(offsets=(8, 0))}, bytes(8)), "takes"),
    "size": (with_header({"a": entry(shape=(3,))}, bytes(8)), "takes 12 bytes"),
    "overlap": (with_header({"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12)), "starts at"),
    "hole": (with_header({"a": entry(offsets=(4, 12))}, bytes(12)), "starts at"),
    "cut off": (with_header({"a": entry()}, bytes(7)), "cut off"),
    "too long": (with_header({"a": entry()}, bytes(9)), "end at byte"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_with_a_safetensors_file_is_named(name: str, tmp_path: Path) -> None:
    content, expected = BROKEN[name]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(SafetensorsError, match=expected) as caught:
        SafetensorsFile(path)
    assert str(path) in str(caught.value)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_mutated_safetensors_file_is_read_or_refused(data: st.DataObject, tmp_path: Path) -> None:
    content = bytearray(with_header({"a": entry(), "b": entry("BF16", (2, 3), (8, 20))}, bytes(20)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + 1] = data.draw(st.binary(max_size=3))
        if not content:
            break
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    try:
        file = SafetensorsFile(path)
    except SafetensorsError:
        return
    for name in file.tensors:
        assert file.tensor(name).shape == file.tensors[name].shape


# GGUF ---------------------------------------------------------------------------------------------------------------


def test_smollm2_dequantises_to_what_transformers_loads(smollm2: ModelFiles) -> None:
    assert smollm2.gguf is not None
    theirs = AutoModelForCausalLM.from_pretrained(
        str(smollm2.directory), gguf_file=smollm2.gguf.name, dtype=torch.float32, local_files_only=True
    ).state_dict()
    ours = all_weights(smollm2)
    assert theirs.keys() - ours.keys() == {"lm_head.weight"}  # tied
    for name, weight in ours.items():
        assert torch.equal(values(weight).float(), theirs[name]), name


def test_every_tensor_of_a_real_file_is_yielded_as_stored(real_model: ModelFiles, real_reader: gguf.GGUFReader) -> None:
    weights, reader = all_weights(real_model), real_reader
    config = read_model_config(real_model)
    sizes = weight_sizes(real_model, config)
    assert len(weights) == len(reader.tensors)
    assert sizes.num_bytes == sum(t.n_bytes for t in reader.tensors)
    assert sizes.num_parameters == sum(t.n_elements for t in reader.tensors)
    assert sizes.num_parameters == sum(
        w.numel() if isinstance(w, torch.Tensor) else int(np.prod(w.shape)) for w in weights.values()
    )
    packed = {w.ggml_type for w in weights.values() if isinstance(w, QuantizedTensor)}
    assert packed == {t.tensor_type.name for t in reader.tensors} - {"F32"}


def packed(name: str, rows: int, columns: int) -> np.ndarray:
    """Any bytes are a tensor of a block format, but for the scales, which could be NaN: those bytes stay small."""
    kind = gguf.GGMLQuantizationType[name]
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(rows)
    return random.integers(0, 60, (rows, columns // block_size * block_bytes), dtype=np.uint8)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"])
def test_llamas_query_and_key_rows_come_back_in_hf_order_while_packed(kind: str, tmp_path: Path) -> None:
    sizes = {
        **LLAMA,
        "llama.embedding_length": 256,
        "llama.attention.key_length": 64,
        "llama.attention.value_length": 64,
    }
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    for name, value in sizes.items():
        (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(name, value)
    stored = {
        "blk.0.attn_q": packed(kind, 256, 256),
        "blk.0.attn_k": packed(kind, 128, 256),
        "blk.0.attn_v": packed(kind, 128, 256),
    }
    for name, rows in {"token_embd": packed(kind, 48, 256), **stored}.items():
        writer.add_tensor(f"{name}.weight", rows, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    weights = all_weights(ModelFiles("m", tmp_path, tmp_path / "m.gguf"))
    quantised = gguf.GGMLQuantizationType[kind]
    for name, num_heads in (("q", 4), ("k", 2)):
        found = weights[f"model.layers.0.self_attn.{name}_proj.weight"]
        assert isinstance(found, QuantizedTensor)
        assert (found.ggml_type, found.shape) == (kind, (num_heads * 64, 256))
        theirs = torch.from_numpy(gguf.quants.dequantize(stored[f"blk.0.attn_{name}"], quantised))
        # the file has a head's rows as pairs (0, 1), (2, 3), ...; HF has the first ones of all pairs, then the second
        assert torch.equal(found.dequantize(), torch.cat([h[i::2] for h in theirs.split(64) for i in (0, 1)]))
    untouched = weights["model.layers.0.self_attn.v_proj.weight"]
    assert isinstance(untouched, QuantizedTensor)
    assert np.array_equal(untouched.data, stored["blk.0.attn_v"])


@pytest.mark.parametrize(("kind", "dtype"), [("F32", torch.float32), ("F16", torch.float16), ("BF16", torch.bfloat16)])
def test_plain_formats_become_tensors_of_their_dtype(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = llama_tensors(kind)
    write_model(tmp_path / "m.gguf", "llama", LLAMA, tensors)
    weights = all_weights(resolve_model(str(tmp_path / "m.gguf")))
    found = weights["model.layers.1.mlp.down_proj.weight"]
    assert isinstance(found, torch.Tensor)
    assert (found.dtype, tuple(found.shape)) == (dtype, (32, 64))
    assert torch.equal(found, torch.from_numpy(tensors["blk.1.ffn_down.weight"][0]).to(dtype))


def test_query_biases_are_put_in_order_too(tmp_path: Path) -> None:
    bias = np.arange(32, dtype=np.float32)
    write_model(tmp_path / "m.gguf", "llama", LLAMA, {**llama_tensors(), "blk.0.attn_q.bias": bias})
    files = resolve_model(str(tmp_path))
    found = all_weights(files)["model.layers.0.self_attn.q_proj.bias"]
    assert isinstance(found, torch.Tensor)
    assert found[:8].tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert read_model_config(files).attention_bias


def test_names_of_the_other_families(tmp_path: Path) -> None:
    sizes = {key.replace("llama.", "gemma3."): value for key, value in LLAMA.items()}
    one = np.ones(32, np.float32)
    extra = {"blk.0.post_attention_norm.weight": one, "blk.0.post_ffw_norm.weight": one}
    extra |= {"blk.0.attn_q_norm.weight": np.ones(8, np.float32), "output.weight": np.ones((48, 32), np.float32)}
    tensors = {**llama_tensors(), **extra}
    write_model(tmp_path / "m.gguf", "gemma3", {**sizes, "gemma3.attention.sliding_window": 16}, tensors)
    files = resolve_model(str(tmp_path))
    weights = all_weights(files)
    layer = "model.layers.0."
    assert {f"{layer}post_attention_layernorm.weight", f"{layer}pre_feedforward_layernorm.weight"} <= weights.keys()
    assert {f"{layer}post_feedforward_layernorm.weight", f"{layer}self_attn.q_norm.weight"} <= weights.keys()
    assert "lm_head.weight" in weights
    assert read_model_config(files).tie_word_embeddings is False
    stored = torch.from_numpy(tensors["blk.0.attn_q.weight"])
    assert torch.equal(values(weights[f"{layer}self_attn.q_proj.weight"]), stored)  # only Llama's rows are moved


def test_tensors_unknown_to_the_architecture_are_listed(tmp_path: Path) -> None:
    strange = {"blk.0.attn_q_norm.weight": np.ones(8, np.float32), "mm.x": np.ones(4, np.float32)}
    write_model(tmp_path / "m.gguf", "llama", LLAMA, {**llama_tensors(), **strange})
    with pytest.raises(GGUFError, match=r"unknown to LlamaForCausalLM: blk\.0\.attn_q_norm\.weight, mm\.x"):
        all_weights(resolve_model(str(tmp_path)))


def test_formats_that_are_not_computed_are_named_with_those_that_are(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    for name, value in {**LLAMA, "llama.embedding_length": 256}.items():
        (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(name, value)
    writer.add_tensor("token_embd.weight", packed("Q2_K", 48, 256), raw_dtype=gguf.GGMLQuantizationType.Q2_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModelError, match=r"Q2_K \(token_embd\.weight\).*Q4_K"):
        all_weights(resolve_model(str(tmp_path)))


def test_a_file_cut_off_is_refused_before_the_first_weight(smollm2: ModelFiles, tmp_path: Path) -> None:
    assert smollm2.gguf is not None
    with smollm2.gguf.open("rb") as whole:
        (tmp_path / "cut.gguf").write_bytes(whole.read(40 << 20))
    with pytest.raises(ModelError, match="cut off"):
        read_model_config(resolve_model(str(tmp_path / "cut.gguf")))
