"""The worked examples of the articles this engine descends from, with their literal numbers.

Here are those that need no model: block accounting, memory arithmetic, the step count, the state machine, continuous
batching. The tensors of a step (the ragged prefill and decode) are in tests/runner, the statistics line in tests/cli,
backpressure over HTTP in tests/server.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from fake_engine import FakeEngine, assert_idle, make_request

from pellucid.bench.blocks import block_report
from pellucid.core.kv_budget import accelerator_kv_bytes, kv_block_bytes, kv_cache_bytes, weight_bytes
from pellucid.core.kv_cache_manager import KVCacheManager
from pellucid.core.messages import FinishReason
from pellucid.core.request import Request, RequestStatus
from pellucid.observability.events import RequestFinished, RequestPreempted, RequestScheduled, StepStarted

GIB = 2**30
QWEN3_0_6B_BLOCK_BYTES = 29_360_128
BLOCK_REPORT = {
    "block_usage": {
        "allocated_tokens": 117,
        "block_utilization": 0.6647727272727273,
        "free_blocks": 53,
        "internal_fragmentation_tokens": 59,
        "reserved_tokens": 176,
        "used_blocks": 11,
    },
    "contiguous_fixed_slot_baseline": {
        "internal_fragmentation_tokens": 129,
        "reserved_tokens": 246,
        "utilization": 0.47560975609756095,
    },
    "fragmentation_tokens_saved_vs_contiguous": 70,
}


def test_1_block_accounting() -> None:
    assert block_report([9, 17, 33, 5, 41, 12], block_size=16, total_blocks=64) == BLOCK_REPORT


def test_1_block_accounting_from_the_command_line() -> None:
    command = [sys.executable, "-m", "pellucid", "bench", "blocks", "--block-size", "16", "--total-blocks", "64"]
    printed = subprocess.run(
        [*command, "--request-tokens", "9,17,33,5,41,12"], capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(printed.stdout) == BLOCK_REPORT


def test_1_growing_from_48_to_49_tokens_takes_one_more_block() -> None:
    kv = KVCacheManager(num_blocks=64, block_size=16)
    request = Request(make_request("r", range(48)))
    kv.admit(request, [])
    assert len(request.block_table) == 3
    request.token_ids.append(48)
    assert kv.allocate_slots(request, 49)
    assert len(request.block_table) == 4


def test_2_kv_block_bytes() -> None:
    size = kv_block_bytes(num_layers=28, num_kv_heads=8, head_dim=128, block_size=256, bytes_per_value=2)
    assert size == QWEN3_0_6B_BLOCK_BYTES


def test_3_kv_budget() -> None:
    available = accelerator_kv_bytes(
        total_bytes=int(95.085 * GIB),
        free_bytes=int(93.426 * GIB),
        peak_bytes=int(1.599 * GIB),
        current_bytes=int(1.16 * GIB),
        memory_utilization=0.9,
    )
    assert available // QWEN3_0_6B_BLOCK_BYTES == pytest.approx(3052, abs=1)


def test_4_kv_size_formula() -> None:
    assert kv_cache_bytes(32, 32, 128, seq_len=2048, batch_size=16, bytes_per_value=2) == 17_179_869_184


def test_5_and_6_ragged_batches_as_the_scheduler_decides_them() -> None:
    """What the scheduler contributes: starts, counts and block tables; slots follow from them."""
    engine = FakeEngine(num_blocks=8, block_size=256, max_model_len=2048)
    engine.add(make_request("a", range(11), max_tokens=9), make_request("b", range(100, 117), max_tokens=9))

    def slots(request: Request, start: int, num_tokens: int) -> list[int]:
        return [request.block_table[p // 256] * 256 + p % 256 for p in range(start, start + num_tokens)]

    prefill = engine.scheduler.schedule()
    assert [(share.start, share.num_tokens) for share in prefill.requests] == [(0, 11), (0, 17)]
    assert [share.request.block_table for share in prefill.requests] == [[0], [1]]
    assert prefill.num_tokens == 28
    slot_mapping = [slot for share in prefill.requests for slot in slots(share.request, share.start, share.num_tokens)]
    assert slot_mapping == [*range(11), *range(256, 273)]

    engine.scheduler.update_from_output(prefill, engine.runner.execute(prefill))
    decode = engine.scheduler.schedule()
    assert [share.start for share in decode.requests] == [11, 17]
    assert [share.start + share.num_tokens for share in decode.requests] == [12, 18]
    assert [share.request.block_table for share in decode.requests] == [[0], [1]]
    assert [slot for share in decode.requests for slot in slots(share.request, share.start, 1)] == [11, 273]


def test_7_step_count() -> None:
    eos = 5

    def sample(request: Request) -> int:
        return eos if request.request_id == "first" and request.num_output_tokens == 147 else 6

    engine = FakeEngine(num_blocks=8, block_size=256, max_model_len=2048, sample=sample)
    first = make_request("first", range(11), max_tokens=256, eos_token_ids=(eos,))
    second = make_request("second", range(100, 117), max_tokens=256, eos_token_ids=(eos,))
    engine.add(first, second)
    engine.run()

    assert len(engine.runner.steps) == engine.core.stats().step == 256
    assert engine.runner.steps[0] == [("first", 0, 11), ("second", 0, 17)]
    for step in range(2, 149):
        shares = engine.runner.steps[step - 1]
        assert shares == [("first", 11 + step - 2, 1), ("second", 17 + step - 2, 1)]
    for step in range(149, 257):
        assert engine.runner.steps[step - 1] == [("second", 17 + step - 2, 1)]
    assert len(engine.tokens["first"]) == 148
    assert engine.last["first"].finish_reason is FinishReason.STOP
    assert len(engine.tokens["second"]) == 256
    assert engine.last["second"].finish_reason is FinishReason.LENGTH
    assert_idle(engine)


def test_8_state_machine() -> None:
    engine = FakeEngine(num_blocks=6, block_size=4, max_num_seqs=2)
    engine.add(make_request("old", [1] * 7, 12), make_request("new", [2] * 7, 12), make_request("waits", [3] * 3, 2))
    requests = dict(engine.scheduler.requests)
    seen: dict[str, list[RequestStatus]] = {name: [request.status] for name, request in requests.items()}
    preempted: list[str] = []
    head_of_queue: list[str] = []
    while engine.core.has_work():
        events = engine.step().events
        for event in events:
            if isinstance(event, RequestPreempted):
                preempted.append(event.request_id)
                head_of_queue.append(engine.scheduler.waiting.peek().request_id)
        for name, request in requests.items():
            if seen[name][-1] is not request.status:
                seen[name].append(request.status)
    waiting, running, gave_way = RequestStatus.WAITING, RequestStatus.RUNNING, RequestStatus.PREEMPTED
    finished = RequestStatus.FINISHED_LENGTH
    assert seen["old"] == [waiting, running, finished]
    assert seen["new"] == [waiting, running, gave_way, running, finished]
    assert seen["waits"] == [waiting, running, finished]
    assert preempted == head_of_queue == ["new"], "the newest running gives way, and goes before those that wait"


def test_9_weights() -> None:
    size = weight_bytes(8 * 10**9, 2)
    assert size == 16 * 10**9
    assert round(size / GIB, 1) == 14.9


@pytest.mark.parametrize("max_batch_size", [1, 2, 3])
def test_10_continuous_batching_with_arrivals(max_batch_size: int) -> None:
    """Arrivals before steps 0 and 2; a finished request's place is taken in the next step."""
    arrivals = {0: [("a", 2), ("b", 4), ("c", 3)], 2: [("d", 2), ("e", 1)]}
    engine = FakeEngine(max_num_seqs=max_batch_size)
    engine.bus.subscribe(lambda event: record[-1].setdefault("running", event.request_ids), {StepStarted})
    record: list[dict[str, list[str]]] = []
    while engine.core.has_work() or len(record) <= 2:
        for name, max_tokens in arrivals.get(len(record), []):
            engine.add(make_request(name, [ord(name)] * 3, max_tokens=max_tokens))
        record.append({})
        events = engine.step().events
        record[-1]["admitted"] = [event.request_id for event in events if isinstance(event, RequestScheduled)]
        record[-1]["completed"] = [event.request_id for event in events if isinstance(event, RequestFinished)]

    sizes = {1: [1] * 12, 2: [2] * 6, 3: [3, 3, 3, 3]}
    running = {
        1: [*"aa", *"bbbb", *"ccc", *"dd", *"e"],
        2: ["ab", "ab", "bc", "bc", "cd", "de"],
        3: ["abc", "abc", "bcd", "bde"],
    }
    admitted = {
        1: ["a", "", "b", "", "", "", "c", "", "", "d", "", "e"],
        2: ["ab", "", "c", "", "d", "e"],
        3: ["abc", "", "d", "e"],
    }
    completed = {
        1: ["", "a", "", "", "", "b", "", "", "c", "", "d", "e"],
        2: ["", "a", "", "b", "c", "de"],
        3: ["", "a", "c", "bde"],
    }
    assert [len(step["running"]) for step in record] == sizes[max_batch_size]
    for name, expected in (("running", running), ("admitted", admitted), ("completed", completed)):
        assert [sorted(step[name]) for step in record] == [sorted(ids) for ids in expected[max_batch_size]], name
    assert_idle(engine)
