"""A forward pass replayed from its tape: the bits of the eager operations, for any batch, schedule and thread count."""

from __future__ import annotations

import threading

import pytest
import torch

from pellucid.kernels.cpu.kernels import CpuKernels
from pellucid.kernels.cpu.recording import ReplayedForward
from pellucid.kernels.forward_batch import ForwardBatch
from pellucid.kernels.torch_kernels import TorchKernels
from tests.kernels.cpu_batches import block_tables, make_batch
from tests.kernels.native_module import native_or_skip
from tests.kernels.tiny_models import CONFIGS, tiny_model

native = native_or_skip()

LENGTHS = [200, 1, 33, 90]
TABLES = block_tables([256] * len(LENGTHS))
TOKENS = [torch.randint(0, 211, (256,), generator=torch.Generator().manual_seed(i)).tolist() for i in range(4)]


def batch_of(spans: list[tuple[int, int]], requests: list[int] | None = None) -> ForwardBatch:
    requests = list(range(len(spans))) if requests is None else requests
    return make_batch(spans, [TABLES[r] for r in requests], [TOKENS[r] for r in requests])


WHOLE = batch_of([(0, length) for length in LENGTHS])


def replayed(forward, kernels: CpuKernels) -> ReplayedForward:
    compiled = kernels.compile_forward(forward, 512, 8)
    assert isinstance(compiled, ReplayedForward)
    return compiled


@pytest.mark.parametrize("isa", native.available_isas())
@pytest.mark.parametrize("family", CONFIGS)
def test_replay_gives_the_bits_of_the_eager_operations(family: str, isa: str) -> None:
    kernels = CpuKernels(torch.bfloat16, num_threads=2, isa=isa)
    model = tiny_model(family, kernels)
    replay = replayed(model, kernels)
    for batch in (WHOLE, batch_of([(200, 1), (1, 1), (33, 1), (90, 1)]), batch_of([(201, 20)])):
        assert torch.equal(replay(batch), model(batch))


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_a_requests_logits_do_not_depend_on_batch_chunks_or_threads(
    family: str, quantization: str | None, kv_dtype: str
) -> None:
    one, two = (CpuKernels(torch.bfloat16, num_threads=n) for n in (1, 2))
    first, second = (replayed(tiny_model(family, kernels, kv_dtype, quantization), kernels) for kernels in (one, two))
    together = first(WHOLE)
    assert torch.equal(second(WHOLE), together)
    for request, length in enumerate(LENGTHS):
        alone = second(batch_of([(0, length)], [request]))
        assert torch.equal(alone[0], together[request])
    for start, count in [(0, 48), (48, 48), (96, 103), (199, 1)]:  # the last token is decoded
        chunk = second(batch_of([(start, count)], [0]))
    assert torch.equal(chunk[0], together[0])


@pytest.mark.parametrize("family", CONFIGS)
def test_replay_in_float32_is_the_torch_oracle(family: str) -> None:
    kernels = CpuKernels(torch.float32, num_threads=2)
    replay = replayed(tiny_model(family, kernels), kernels)
    expected = tiny_model(family, TorchKernels())(WHOLE)
    assert (replay(WHOLE) - expected).abs().max() <= 1e-5 * max(1.0, expected.abs().max().item())


@pytest.mark.parametrize("family", CONFIGS)
def test_the_hidden_stream_alone_can_be_replayed_too(family: str) -> None:
    """For embeddings and prompt log-probabilities: [T, hidden], no rows selected."""
    kernels = CpuKernels(torch.bfloat16, num_threads=2)
    model = tiny_model(family, kernels)
    hidden = replayed(model.forward, kernels)(WHOLE)
    assert torch.equal(hidden, model.forward(WHOLE))
    assert torch.equal(model.compute_logits(hidden, WHOLE), model(WHOLE))
    normed = replayed(lambda batch: model.final_hidden(model.forward(batch), batch), kernels)
    assert torch.equal(normed(WHOLE), model.final_hidden(hidden, WHOLE))


def test_any_rows_may_have_logits() -> None:
    kernels = CpuKernels(torch.bfloat16, num_threads=2)
    model = tiny_model("llama", kernels)
    replay = replayed(model, kernels)
    every = ForwardBatch(**{**WHOLE.__dict__, "logits_indices": torch.arange(sum(LENGTHS), dtype=torch.int32)})
    none = ForwardBatch(**{**WHOLE.__dict__, "logits_indices": torch.arange(0, dtype=torch.int32)})
    assert torch.equal(replay(every)[WHOLE.logits_indices], replay(WHOLE))
    assert torch.equal(replay(every), model(every))
    assert replay(none).shape == (0, 211)


def test_results_are_the_callers_own() -> None:
    kernels = CpuKernels(torch.bfloat16, num_threads=1)
    replay = replayed(tiny_model("llama", kernels), kernels)
    first = replay(WHOLE)
    kept = first.clone()
    others = [replay(batch_of([(0, 5)])) for _ in range(5)]
    assert torch.equal(first, kept)
    first.fill_(0)
    assert all(torch.equal(other, others[0]) for other in others)
    del first, kept, replay, kernels
    assert others[0].isfinite().all()  # outlives the tape


def test_what_is_no_kernel_operation_is_run_step_by_step(caplog: pytest.LogCaptureFixture) -> None:
    kernels = CpuKernels(torch.bfloat16, num_threads=1)
    model = tiny_model("llama", kernels)

    def doubled(batch: ForwardBatch) -> torch.Tensor:
        return model.compute_logits(model.forward(batch) * 2, batch)

    seen: list[int] = []

    def looks_inside(batch: ForwardBatch) -> torch.Tensor:
        seen.append(int(batch.positions.max()))
        return model(batch)

    for forward in (doubled, looks_inside):
        assert kernels.compile_forward(forward, 512, 8) is forward
        assert "step by step" in caplog.text
        caplog.clear()
        forward(WHOLE)


def test_a_batch_that_does_not_fit_the_pool_is_refused() -> None:
    kernels = CpuKernels(torch.bfloat16, num_threads=1)
    replay = replayed(tiny_model("llama", kernels), kernels)
    good = replay(batch_of([(0, 5)]))
    for field, value in [("input_ids", 211), ("positions", 1024), ("slot_mapping", 128 * 16), ("block_table", 128)]:
        batch = batch_of([(0, 5)])
        wrong = ForwardBatch(**{**batch.__dict__, field: torch.full_like(getattr(batch, field), value)})
        with pytest.raises(IndexError, match=field):
            replay(wrong)
    with pytest.raises(TypeError):
        replay(ForwardBatch(**{**batch.__dict__, "positions": batch.positions.long()}))
    assert torch.equal(replay(batch_of([(0, 5)])), good)


def test_two_models_in_two_threads_do_not_disturb_each_other() -> None:
    def run(family: str, results: list[torch.Tensor]) -> None:
        kernels = CpuKernels(torch.bfloat16, num_threads=2)
        replay = replayed(tiny_model(family, kernels), kernels)
        results.extend(replay(WHOLE) for _ in range(10))

    results: dict[str, list[torch.Tensor]] = {"llama": [], "gemma3": []}
    threads = [threading.Thread(target=run, args=item) for item in results.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for family, logits in results.items():
        kernels = CpuKernels(torch.bfloat16, num_threads=1)
        assert len(logits) == 10
        assert all(torch.equal(other, tiny_model(family, kernels)(WHOLE)) for other in logits[:1])
        assert all(torch.equal(other, logits[0]) for other in logits)


def test_an_idle_backend_burns_no_cpu() -> None:
    import resource
    import time

    kernels = CpuKernels(torch.bfloat16, num_threads=2)
    tiny_model("llama", kernels)(WHOLE)
    time.sleep(0.05)
    before = resource.getrusage(resource.RUSAGE_SELF)
    time.sleep(0.5)
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime) < 0.25
