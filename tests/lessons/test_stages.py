"""The stages differ in what they compute in vain and in what they hold, and in nothing else: not in one bit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from pellucid.config import EngineConfig
from pellucid.engine.build import LoadedModel, load_model_parts
from pellucid.kernels.cpu.native import load_native
from pellucid.lessons.engine_run import run_engine
from pellucid.lessons.ladder import STAGES, Measurement, percentile, run_stage
from pellucid.lessons.task import Queue, Task
from pellucid.lessons.workbench import Row, Workbench
from pellucid.lessons.workloads import mixed_lengths
from tests.models.tiny import VOCAB_SIZE, make_tiny_checkpoint

NATIVE, WHY_NOT = load_native()
PACKAGE = Path(__file__).parents[2] / "pellucid" / "lessons"
NUM_BLOCKS = 96


class RecordingWorkbench(Workbench):
    """Keeps the bits of the logits that each token was chosen from, and how many tokens each step computed."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.bits: dict[tuple[Task, int], bytes] = {}
        self.step_tokens: list[int] = []

    def step(self, rows: Sequence[Row], keeps_kv: bool = True) -> list[int | None]:
        self.step_tokens.append(sum(row.end - row.start + row.padding for row in rows))
        return super().step(rows, keeps_kv)

    def _sample(self, logits: torch.Tensor, rows: Sequence[Row]) -> list[int]:
        for row, row_logits in zip(rows, logits, strict=True):
            self.bits[row.task, row.end] = row_logits.float().numpy().tobytes()
        return super()._sample(logits, rows)

    def bits_of(self, tasks: Sequence[Task]) -> list[list[bytes]]:
        """By task and output token; a token that was computed twice has given the same bits or the test fails."""
        return [
            [self.bits[task, task.num_prompt_tokens + index] for index in range(len(task.output))] for task in tasks
        ]


def load(directory: Path, kernels: str, **changed: object) -> LoadedModel:
    make_tiny_checkpoint(directory, "qwen3")
    config = EngineConfig(model=str(directory), kernels=kernels, num_threads=1, **changed)  # type: ignore[arg-type]
    return load_model_parts(config, lambda _: None)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(tmp_path_factory.mktemp("model"), "auto", num_kv_blocks=NUM_BLOCKS, max_num_batched_tokens=40)


def measure(bench: Workbench, number: int, tasks: Sequence[Task]) -> tuple[Measurement, list[Task]]:
    return run_stage(bench, *STAGES[number], tasks)


@pytest.mark.parametrize(
    "kernels", ["torch", pytest.param("cpu", marks=pytest.mark.skipif(NATIVE is None, reason=WHY_NOT or "there"))]
)
def test_all_stages_and_the_engine_give_the_same_tokens_from_the_same_bits(tmp_path: Path, kernels: str) -> None:
    loaded = load(tmp_path, kernels, num_kv_blocks=NUM_BLOCKS, max_num_batched_tokens=40, max_num_seqs=3)
    workload = mixed_lengths(5, VOCAB_SIZE)
    bench = RecordingWorkbench(loaded.model, num_blocks=NUM_BLOCKS, max_batch=3, token_budget=24)
    outputs, bits = {}, {}
    for number in STAGES:
        bench.bits.clear()
        _, tasks = measure(bench, number, workload)
        outputs[number] = [task.output for task in tasks]
        bits[number] = bench.bits_of(tasks)
    assert all(len(output) == task.max_tokens for output, task in zip(outputs[1], workload, strict=True))
    assert len({token for output in outputs[1] for token in output}) > 20, "a model that says one thing proves nothing"
    core, _, _ = loaded.engine_core()
    _, tasks = run_engine(core, workload)
    outputs[0] = [task.output for task in tasks]
    for number in STAGES:
        assert bits[number] == bits[1], STAGES[number][0]
        assert outputs[number] == outputs[0], STAGES[number][0]


@pytest.mark.parametrize("number", [6, 7, 8])
def test_a_pool_that_is_too_small_costs_recomputation_and_no_token(loaded: LoadedModel, number: int) -> None:
    workload = [Task([7 + index, *range(20, 40)], max_tokens=30) for index in range(5)]
    roomy = Workbench(loaded.model, num_blocks=NUM_BLOCKS, token_budget=24)
    expected = [task.output for task in measure(roomy, 1, workload)[1]]
    tight = Workbench(loaded.model, num_blocks=7, token_budget=24)
    measurement, tasks = measure(tight, number, workload)
    assert measurement.recomputed > 0, "somebody had to give way"
    assert [task.output for task in tasks] == expected


@pytest.mark.parametrize("number", [5, 6, 7, 8])
def test_a_request_that_can_never_fit_is_an_error_and_no_endless_loop(loaded: LoadedModel, number: int) -> None:
    bench = Workbench(loaded.model, num_blocks=2)
    with pytest.raises(ValueError, match="blocks"):
        measure(bench, number, [Task(list(range(1, 40)), 4)])


# what each stage wastes, by hand --------------------------------------------------------------------------------------

PAIR = (Task(list(range(1, 11)), 2), Task(list(range(1, 31)), 6))  # prompts of 10 and 30 tokens


def test_1_naive_recomputation_computes_everything_every_time(loaded: LoadedModel) -> None:
    measurement, _ = measure(Workbench(loaded.model, num_blocks=8), 1, PAIR)
    assert measurement.computed_tokens == (10 + 11) + sum(range(30, 36))
    assert measurement.recomputed == pytest.approx((10 + sum(range(30, 35))) / measurement.computed_tokens)
    assert measurement.kv_waste is None


def test_2_a_kv_cache_computes_every_token_once(loaded: LoadedModel) -> None:
    measurement, _ = measure(Workbench(loaded.model, num_blocks=8, max_batch=2), 2, PAIR)
    assert measurement.computed_tokens == (10 + 1) + (30 + 5)
    assert (measurement.recomputed, measurement.padding) == (0, 0)
    assert measurement.kv_held == measurement.kv_held_peak == 4 * 16, "one buffer, as large as may ever be needed"


def test_3_a_static_batch_pads_prompts_and_computes_rows_that_are_done(loaded: LoadedModel) -> None:
    measurement, _ = measure(Workbench(loaded.model, num_blocks=8, max_batch=2), 3, PAIR)
    assert measurement.steps == 6
    assert measurement.computed_tokens == 2 * 30 + 2 * 5
    assert measurement.padding == pytest.approx((20 + 4) / 70)
    assert measurement.kv_held == 2 * 3 * 16, "two rows of 30 + 6 tokens, in whole blocks"


def test_4_continuous_batching_takes_a_free_place_at_once_and_computes_everybody_again(loaded: LoadedModel) -> None:
    workload = [*PAIR, Task(list(range(1, 21)), 1)]
    measurement, _ = measure(Workbench(loaded.model, num_blocks=8, max_batch=2), 4, workload)
    assert measurement.steps == 6, "the third request takes the first one's place in step 3, and is done in it"
    assert measurement.computed_tokens == 2 * 30 + 2 + 2 * 32 + 3
    assert measurement.recomputed == pytest.approx(31 / measurement.computed_tokens)


def test_5_paged_blocks_need_no_padding_and_hold_little_more_than_is_used(loaded: LoadedModel) -> None:
    measurement, _ = measure(Workbench(loaded.model, num_blocks=8, max_batch=2), 5, PAIR)
    assert measurement.computed_tokens == 11 + 35
    assert measurement.padding == 0
    assert measurement.kv_held == pytest.approx(16 * (3 + 3 + 2 + 3 + 3 + 3) / 6)


def test_6_paged_continuous_batching_recomputes_nothing_when_somebody_joins(loaded: LoadedModel) -> None:
    workload = [*PAIR, Task(list(range(1, 21)), 1)]
    measurement, _ = measure(Workbench(loaded.model, num_blocks=8, max_batch=2), 6, workload)
    assert measurement.steps == 6
    assert measurement.computed_tokens == 11 + 35 + 20


def test_7_a_prefix_that_somebody_has_computed_is_not_computed_again(loaded: LoadedModel) -> None:
    workload = [Task([*range(1, 37), 50 + index], 2) for index in range(3)]
    bench = Workbench(loaded.model, num_blocks=16, max_batch=1)
    measurement, _ = measure(bench, 7, workload)
    assert measurement.computed_tokens == 3 * 38 - 2 * 32, "two full blocks are shared, twice"
    whole = [Task(list(range(1, 33)), 1)] * 2
    assert measure(bench, 7, whole)[0].computed_tokens == 32 + 16, "the last token is always computed"


def test_8_a_step_stays_within_its_budget_and_decodes_go_first(loaded: LoadedModel) -> None:
    bench = RecordingWorkbench(loaded.model, num_blocks=16, max_batch=2, token_budget=8)
    workload = [Task([1, 2, 3], 6), Task(list(range(1, 31)), 1)]
    measurement, tasks = measure(bench, 8, workload)
    assert max(bench.step_tokens) == 8
    assert measurement.computed_tokens == (3 + 5) + 30
    short, long = tasks
    assert short.token_times[3] < long.token_times[0], "the short answer goes on while the long prompt comes in"


# the ladder itself ----------------------------------------------------------------------------------------------------


def test_every_stage_is_short_enough_to_read_at_once() -> None:
    names = {run.__module__.rpartition(".")[2] for _, run in STAGES.values()}
    assert len(names) == len(STAGES) == 8
    assert {name: n for name in names if (n := len((PACKAGE / f"{name}.py").read_text().splitlines())) >= 150} == {}


def test_no_stage_brings_a_model_of_its_own() -> None:
    for _, run in STAGES.values():
        source = (PACKAGE / (run.__module__.rpartition(".")[2] + ".py")).read_text()
        assert "import torch" not in source, run.__module__


def test_nobody_sees_a_task_before_it_arrives() -> None:
    queue = Queue([Task([1], 1, arrival_s=0.05), Task([2], 1)])
    assert [task.token_ids for task in queue.take(2)] == [[2]]
    assert queue
    assert queue.peek() is None
    queue.wait()
    assert [task.token_ids for task in queue.take(2)] == [[1]]
    assert not queue


def test_percentiles_are_values_that_occurred() -> None:
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([3.0, 1.0, 2.0], 99) == 3.0
    assert percentile([5.0], 1) == 5.0
