"""The tensors of a step are those of the definition, step after step."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from pellucid.core.request import Request
from pellucid.runner.batch_builder import BatchBuilder
from tests.runner.helpers import make_request, step


def builder(block_size: int = 256, max_num_tokens: int = 512, max_num_reqs: int = 8, max_model_len: int = 1024):
    return BatchBuilder(
        block_size=block_size, max_num_tokens=max_num_tokens, max_num_reqs=max_num_reqs, max_model_len=max_model_len
    )


def test_seed_fact_5_ragged_prefill():
    """Two prompts of 11 and 17 tokens, block_size 256, block tables [0] and [1]."""
    first = make_request("a", list(range(100, 111)), [0])
    second = make_request("b", list(range(200, 217)), [1])
    batch = builder().build(step((first, 0, 11), (second, 0, 17)))
    assert batch.num_tokens == 28
    assert batch.num_reqs == 2
    assert batch.input_ids.tolist() == [*range(100, 111), *range(200, 217)]
    assert batch.positions.tolist() == [*range(11), *range(17)]
    assert batch.query_start_loc.tolist() == [0, 11, 28]
    assert batch.seq_lens.tolist() == [11, 17]
    assert batch.slot_mapping.tolist() == [*range(11), *range(256, 273)]
    assert batch.block_table.tolist() == [[0], [1]]
    assert batch.logits_indices.tolist() == [10, 27]


def test_seed_fact_6_ragged_decode():
    """The next step of the same two."""
    first = make_request("a", list(range(100, 111)), [0])
    second = make_request("b", list(range(200, 217)), [1])
    made = builder()
    made.build(step((first, 0, 11), (second, 0, 17)))
    first.token_ids.append(7)
    second.token_ids.append(8)
    batch = made.build(step((first, 11, 1), (second, 17, 1), number=2))
    assert batch.input_ids.tolist() == [7, 8]
    assert batch.positions.tolist() == [11, 17]
    assert batch.query_start_loc.tolist() == [0, 1, 2]
    assert batch.seq_lens.tolist() == [12, 18]
    assert batch.slot_mapping.tolist() == [11, 273]
    assert batch.block_table.tolist() == [[0], [1]]
    assert batch.logits_indices.tolist() == [0, 1]


def test_every_tensor_is_int32_and_contiguous():
    batch = builder().build(step((make_request("a", [1, 2, 3], [5]), 0, 3)))
    for name in ("input_ids", "positions", "query_start_loc", "seq_lens", "slot_mapping", "block_table"):
        tensor = getattr(batch, name)
        assert tensor.dtype == torch.int32
        assert tensor.is_contiguous()
        assert tensor.data_ptr() % 64 == 0
    assert batch.logits_indices.dtype == torch.int32


def test_a_chunk_that_does_not_reach_the_end_wants_no_logits():
    request = make_request("a", list(range(20)), [3, 4])
    made = builder(block_size=16)
    batch = made.build(step((request, 0, 12)))
    assert batch.logits_indices.shape == (0,)
    batch = made.build(step((request, 12, 8)))
    assert batch.positions.tolist() == list(range(12, 20))
    assert batch.slot_mapping.tolist() == [*range(3 * 16 + 12, 4 * 16), *range(4 * 16, 4 * 16 + 4)]
    assert batch.block_table.tolist() == [[3, 4]]
    assert batch.logits_indices.tolist() == [7]


def test_a_preempted_request_is_seen_with_its_new_blocks():
    request = make_request("a", list(range(40)), [1, 2, 3])
    made = builder(block_size=16)
    made.build(step((request, 0, 40)))
    request.block_table = [7, 8]  # freed, and admitted again to fewer blocks for now
    batch = made.build(step((request, 0, 20)))
    assert batch.block_table.tolist() == [[7, 8]]
    request.block_table.append(9)
    batch = made.build(step((request, 20, 20)))
    assert batch.block_table.tolist() == [[7, 8, 9]]


def test_rows_are_padded_with_zeros_even_where_another_request_has_been():
    made = builder(block_size=16, max_num_reqs=2)
    long, short = make_request("long", list(range(64)), [5, 6, 7, 8]), make_request("short", [1], [9])
    made.build(step((long, 0, 64)))
    made.build(step((short, 0, 1), finished=("long",)))
    made.forget(["long"])
    other = make_request("other", list(range(20)), [3, 4])
    batch = made.build(step((other, 0, 20), (short, 0, 1)))
    assert batch.block_table.tolist() == [[3, 4], [9, 0]]


def test_more_requests_may_be_remembered_than_run_at_once():
    """A preempted request keeps its row while others run in its place."""
    made = builder(block_size=16, max_num_reqs=2)
    requests = [make_request(str(i), [1, 2], [i]) for i in range(9)]
    for first in range(8):
        batch = made.build(step((requests[first], 0, 2), (requests[first + 1], 0, 2)))
        assert batch.block_table.tolist() == [[first], [first + 1]]


def test_while_the_same_requests_decode_no_tensor_is_made_anew():
    made = builder(block_size=16)
    request = make_request("a", list(range(17)), [3, 4])
    first = made.build(step((request, 14, 1)))
    second = made.build(step((request, 15, 1)))
    assert second.positions is first.positions
    assert second.slot_mapping is first.slot_mapping
    assert (second.positions.tolist(), second.slot_mapping.tolist()) == ([15], [3 * 16 + 15])
    third = made.build(step((request, 16, 1)))  # its table is one block longer
    assert third.block_table.tolist() == [[3, 4]]
    assert third.slot_mapping.tolist() == [4 * 16]


def test_a_step_larger_than_prepared_for_is_refused():
    with pytest.raises(ValueError, match="larger than was prepared for"):
        builder(max_num_tokens=4).build(step((make_request("a", [1] * 5, [0]), 0, 5)))


def expected(shares, block_size: int) -> dict[str, list]:
    """ForwardBatch's docstring, token by token."""
    fields: dict[str, list] = {
        "input_ids": [], "positions": [], "query_start_loc": [0], "seq_lens": [], "slot_mapping": [],
        "logits_indices": [],
    }  # fmt: skip
    for request, start, num_tokens in shares:
        for position in range(start, start + num_tokens):
            fields["input_ids"].append(request.token_ids[position])
            fields["positions"].append(position)
            block = request.block_table[position // block_size]
            fields["slot_mapping"].append(block * block_size + position % block_size)
        fields["query_start_loc"].append(len(fields["input_ids"]))
        fields["seq_lens"].append(start + num_tokens)
        if start + num_tokens == request.num_tokens:
            fields["logits_indices"].append(len(fields["input_ids"]) - 1)
    return fields


@pytest.mark.parametrize("seed", range(5))
def test_random_steps_match_the_definition(seed):
    """Requests come, run in chunks, decode, are preempted, finish; one builder sees all of it."""
    rng = random.Random(seed)
    block_size = rng.choice([1, 4, 16])
    made = builder(block_size, max_num_tokens=64, max_num_reqs=6, max_model_len=60)
    requests: dict[Request, int] = {}
    for number in range(1, 200):
        finished = []
        for request in list(requests):
            if rng.random() < 0.05 or request.num_tokens >= 60:
                del requests[request]
                finished.append(request.request_id)
            elif rng.random() < 0.05:
                requests[request] = 0
                request.block_table = []
        while len(requests) < 6 and rng.random() < 0.5:
            prompt = [rng.randrange(1000) for _ in range(rng.randrange(1, 50))]
            requests[make_request(f"{number}-{len(requests)}", prompt)] = 0
        made.forget(finished)
        shares, budget = [], 64
        for request, done in requests.items():
            num_tokens = min(request.num_tokens - done, budget, rng.choice([1, 10, 50]))
            if num_tokens:
                while len(request.block_table) * block_size < done + num_tokens:
                    request.block_table.append(rng.randrange(10_000))
                shares.append((request, done, num_tokens))
                budget -= num_tokens
        if not shares:
            continue
        batch = made.build(step(*shares, number=number, finished=tuple(finished)))
        for name, values in expected(shares, block_size).items():
            assert getattr(batch, name).tolist() == values, name
        for i, (request, start, num_tokens) in enumerate(shares):
            num_blocks = -(-(start + num_tokens) // block_size)
            assert batch.block_table[i, :num_blocks].tolist() == request.block_table[:num_blocks]
            rest = request.block_table[num_blocks:]
            row = batch.block_table[i, num_blocks:].tolist()
            assert row == (rest + [0] * len(row))[: len(row)]
        for request, start, num_tokens in shares:
            requests[request] = start + num_tokens
            if start + num_tokens == request.num_tokens:
                request.token_ids.append(rng.randrange(1000))


def test_positions_do_not_wrap_in_long_contexts():
    request = make_request("a", [1] * 70_000, list(range(4375)))
    made = builder(block_size=16, max_num_tokens=70_000, max_model_len=70_000)
    batch = made.build(step((request, 0, 70_000)))
    np.testing.assert_array_equal(batch.slot_mapping.numpy(), np.arange(70_000))
