"""An engine is put together from its configuration, or the configuration is refused with words that help."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from pellucid.config import EngineConfig
from pellucid.core.kv_budget import CPU_KV_SHARE
from pellucid.core.messages import FinishReason
from pellucid.engine.build import build_engine_core
from pellucid.loader.errors import ModelError
from pellucid.runner import kv_memory
from pellucid.runner.machine import choose_device, choose_dtype
from tests.models.tiny import TURN_END_ID, VOCAB_SIZE, make_tiny_checkpoint
from tests.runner.equivalence import request, run
from tests.sampling import processors

GIB = 1 << 30


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_tiny_checkpoint(tmp_path_factory.mktemp("qwen3"), "qwen3"))


def build(model: str, **config):
    values = {"kernels": "torch", "dtype": "float32", "num_kv_blocks": 100, "max_model_len": 512, **config}
    return build_engine_core(EngineConfig(model=model, **values), lambda _: None)


def test_what_is_ready_is_what_was_asked_for(model):
    stages = []
    config = EngineConfig(
        model=model, kernels="torch", dtype="float32", num_kv_blocks=50, max_model_len=512, max_num_seqs=9,
        max_num_batched_tokens=77, block_size=32, seed=1,
    )  # fmt: skip
    core, ready = build_engine_core(config, stages.append)
    assert (ready.num_blocks, ready.block_size, ready.max_model_len) == (50, 32, 512)
    assert (ready.max_num_seqs, ready.max_num_batched_tokens, ready.vocab_size) == (9, 77, VOCAB_SIZE)
    assert (ready.device, ready.dtype, ready.kernels) == ("cpu", "float32", "torch")
    assert "50 blocks x 32 tokens" in ready.details["kv_pool"]
    assert core.stats().num_free_blocks == 50
    assert [stage.stage for stage in stages][:2] == ["finding the model", "loading torch"]
    loading = [stage.fraction for stage in stages if stage.stage == "loading the weights"]
    assert loading == sorted(loading)
    assert loading[-1] == 1.0


def test_the_defaults_take_the_models_length_and_a_modest_pool_and_show_their_arithmetic(model, monkeypatch):
    monkeypatch.setattr(kv_memory, "available_memory_bytes", lambda: 64 * GIB)
    monkeypatch.setattr(kv_memory, "DEFAULT_CPU_KV_BYTES", 8 << 20)
    _, ready = build(model, num_kv_blocks=None, max_model_len=None, max_num_seqs=200)
    assert ready.max_model_len == 1024
    assert ready.max_num_batched_tokens == kv_memory.CPU_STEP_TOKENS
    block_bytes = 2 * 3 * 2 * 32 * 16 * 4  # keys and values, layers, heads, head_dim, block_size, float32
    assert ready.num_blocks == (8 << 20) // block_bytes
    assert "64.0 GiB of RAM is available" in ready.details["kv_memory"]
    assert f"{CPU_KV_SHARE:.0%} of it = 25.6 GiB" in ready.details["kv_memory"]


def test_the_pool_is_no_larger_than_all_sequences_can_use(model):
    _, ready = build(model, num_kv_blocks=None, max_num_seqs=2)
    assert ready.num_blocks == 2 * 512 // 16


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"dtype": "float8"}, "dtype='float8' is not known"),
        ({"device": "tpu9000"}, "device='tpu9000' is not known"),
        ({"device": "meta"}, "device='meta' is not supported"),
        ({"kernels": "magic"}, "kernels='magic' is unknown"),
        ({"max_model_len": 4096}, "max_model_len=4096: the model can do 2 to 1024 tokens"),
        ({"max_model_len": 1}, "max_model_len=1: the model can do 2 to 1024 tokens"),
        ({"num_kv_blocks": 10}, "the largest that fits is 160 (or give --num-kv-blocks 32)"),
        ({"num_kv_blocks": None, "kv_cache_memory": 100_000}, "or give --kv-cache-memory"),
        ({"num_kv_blocks": None, "kv_cache_memory": 100 * GIB, "max_num_seqs": 10**9}, "of memory is free"),
        ({"num_kv_blocks": 10**9}, "num_kv_blocks=1000000000: the KV pool would take"),
        ({"num_threads": 0}, "num_threads=0"),
        ({"max_num_seqs": 0}, "max_num_seqs=0: must be at least 1"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens=0: must be at least 1"),
        ({"block_size": 0}, "block_size=0: must be at least 1"),
        ({"num_kv_blocks": 0}, "num_kv_blocks=0: must be at least 1"),
        ({"kv_cache_dtype": "int3"}, "kv_cache_dtype='int3' is not supported"),
        ({"logits_processors": ("nowhere:Class",)}, "logits processor nowhere:Class: cannot be imported"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_with_the_reason(model, config, words, monkeypatch):
    monkeypatch.setattr(kv_memory, "available_memory_bytes", lambda: 4 * GIB)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        build(model, **config)
    assert words in str(caught.value)


def test_a_model_that_is_not_there_is_refused_by_name():
    with pytest.raises(ModelError, match="no-such-model"):
        build("./no-such-model")


def test_auto_means_what_suits_the_machine(monkeypatch):
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert choose_dtype("auto", "float16", gpu) == torch.float16
    assert choose_dtype("auto", "float32", gpu) == torch.float32
    assert choose_dtype("auto", "something", gpu) == torch.bfloat16
    for able, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr("pellucid.runner.machine._cpu_computes_bfloat16", lambda able=able: able)
        assert choose_dtype("auto", "float16", cpu) == dtype
    assert choose_dtype("bf16", "float32", cpu) == torch.bfloat16


def test_processors_are_made_once_with_the_models_tokenizer_and_scripted_output_comes_out(model):
    processors.Recorder.constructed_with.clear()
    names = ("tests.sampling.processors:Recorder", "tests.sampling.processors:Only7")
    core, ready = build(model, logits_processors=names)
    (tokenizer,) = processors.Recorder.constructed_with
    assert tokenizer.decode(tokenizer.encode("The mill stood")) == "The mill stood"
    assert ready.details["logits_processors"] == ", ".join(names)
    done = run(core, [request("a", [4, 5, 6], max_tokens=5), request("b", [8], max_tokens=3, temperature=1.0)])
    assert done.results["a"].token_ids == [7] * 5
    assert done.results["b"].token_ids == [7] * 3


def test_seed_fact_7_step_count(model):
    """Prompts of 11 and 17 tokens, the first ending on EOS after 148 tokens, the second at max_tokens 256."""
    core, _ = build(model)
    # EOS is all but certain, and kept out until 147 tokens are there
    core.add_request(request("first", range(100, 111), max_tokens=256, min_tokens=147, logit_bias={TURN_END_ID: 100.0}))
    core.add_request(request("second", range(200, 217), max_tokens=256, ignore_eos=True))
    lengths = {"first": 0, "second": 0}
    sizes, tokens, ended = [], [], {}
    while core.has_work():
        outputs = core.step()
        if outputs.outputs:
            sizes.append(len(outputs.outputs))
            tokens.append(outputs.stats.num_scheduled_tokens)
        for output in outputs.outputs:
            lengths[output.request_id] += len(output.new_token_ids)
            if output.finish_reason is not None:
                ended[output.request_id] = (outputs.stats.step, output.finish_reason)
    assert len(sizes) == 256
    assert tokens[0] == 28
    assert sizes[:148] == [2] * 148
    assert sizes[148:] == [1] * 108
    assert tokens[1:148] == [2] * 147
    assert tokens[148:] == [1] * 108
    assert lengths == {"first": 148, "second": 256}
    assert ended == {"first": (148, FinishReason.STOP), "second": (256, FinishReason.LENGTH)}


def test_the_builder_is_importable_without_torch():
    code = "import sys, pellucid.engine.build, pellucid.runner.kv_memory; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
