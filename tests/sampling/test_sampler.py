"""The sampler: rows independent of each other, log-probabilities of the model's own distribution, errors by row."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pellucid.sampling.sampler import Sampler, _greedy_on_device
from tests.sampling.helpers import EOS, V, random_logits, state

# One request of every kind, as keyword arguments of state().
KINDS = [
    dict(),
    dict(logprobs=3),
    dict(temperature=1.0),
    dict(temperature=0.7, top_k=10, logprobs=0),
    dict(temperature=1.3, top_p=0.9, logprobs=20),
    dict(temperature=0.9, min_p=0.05, top_p=0.95, top_k=50),
    dict(output=[5, 6, 5], repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.1, logprobs=2),
    dict(output=[5, 6, 5], temperature=1.0, repetition_penalty=1.2, presence_penalty=-0.3),
    dict(min_tokens=4, logit_bias={5: 2.0}, temperature=0.5),
    dict(allowed_token_ids=(1, 50, 199), temperature=2.0, logprobs=1),
    dict(bad_words_token_ids=((5,), (6, 7)), output=[6], temperature=1.0),
]


@pytest.mark.parametrize("vocab_size", [V, 1003, 49152])
def test_a_row_gives_the_same_bits_alone_and_in_any_batch(vocab_size):
    logits = random_logits(len(KINDS), vocab_size)
    sampler = Sampler(vocab_size)
    states = [state(seed=i, **kind) for i, kind in enumerate(KINDS)]
    together = sampler.sample(logits, states)
    assert all(token.error is None for token in together)
    order = np.random.default_rng(0).permutation(len(KINDS)).tolist()
    shuffled = sampler.sample(logits[order], [states[i] for i in order])
    for i, kind in enumerate(KINDS):
        (alone,) = Sampler(vocab_size).sample(logits[i : i + 1].clone(), [state(seed=i, **kind)])
        assert alone == together[i] == shuffled[order.index(i)]


def test_a_token_is_a_function_of_seed_and_index():
    logits = random_logits().repeat(40, 1) / 3
    sampler = Sampler(V)

    def tokens(seeds, indices):
        states = [state(output=[5] * index, seed=seed, temperature=1.0) for seed, index in zip(seeds, indices)]  # noqa: B905
        return [sampled.token_id for sampled in sampler.sample(logits, states)]

    across_seeds = tokens(range(40), [0] * 40)
    across_indices = tokens([7] * 40, range(40))
    assert across_seeds == tokens(range(40), [0] * 40)
    assert across_indices == tokens([7] * 40, range(40))
    assert len(set(across_seeds)) > 10
    assert len(set(across_indices)) > 10


def test_greedy_takes_the_lowest_id_among_equals():
    logits = torch.zeros(1, V)
    logits[0, [20, 10, 30]] = 1.0
    assert Sampler(V).sample(logits, [state()])[0].token_id == 10
    assert Sampler(V).sample(logits, [state(temperature=1e-6)])[0].token_id == 10
    assert _greedy_on_device(logits)[0].token_id == 10


def test_logprobs_are_of_the_unmodified_distribution():
    logits = random_logits()
    exact = torch.log_softmax(logits[0].double(), -1)
    request = state(temperature=2.0, top_k=1, logit_bias={50: 100.0}, output=[50], presence_penalty=1.0, logprobs=4)
    (sampled,) = Sampler(V).sample(logits, [request])
    entry = sampled.logprobs
    assert sampled.token_id == entry.token_ids[0] == 50
    order = exact.argsort(descending=True).tolist()
    assert entry.token_ids[1:] == [i for i in order[:4] if i != 50]
    assert entry.ranks == [order.index(i) + 1 for i in entry.token_ids]
    assert entry.logprobs == pytest.approx(exact[entry.token_ids].tolist(), abs=1e-5)


def test_logprobs_of_certain_tokens_are_told_after_the_likeliest():
    logits = random_logits()
    exact = torch.log_softmax(logits[0].double(), -1)
    order = exact.argsort(descending=True).tolist()
    asked = (order[150], order[1], order[0], order[90])
    neighbour = state(logprobs=1)
    first, second = Sampler(V).sample(logits.repeat(2, 1), [state(logprobs=2, logprob_token_ids=asked), neighbour])
    assert first.logprobs.token_ids == [order[0], order[1], order[150], order[90]]
    assert first.logprobs.ranks == [1, 2, 151, 91]
    assert first.logprobs.logprobs == pytest.approx(exact[first.logprobs.token_ids].tolist(), abs=1e-5)
    assert second.logprobs.token_ids == order[:1]


def test_the_sampled_token_is_not_told_twice():
    (sampled,) = Sampler(V).sample(random_logits(), [state(logprobs=5)])
    assert sampled.logprobs.ranks == [1, 2, 3, 4, 5]
    assert len(set(sampled.logprobs.token_ids)) == 5
    (sampled,) = Sampler(V).sample(random_logits(), [state(logprobs=0)])
    assert sampled.logprobs.ranks == [1]


def test_minus_infinity_is_told_as_a_finite_number():
    logits = torch.full((1, V), -math.inf)
    logits[0, 4] = 0.0
    (sampled,) = Sampler(V).sample(logits, [state(logprobs=3)])
    assert sampled.logprobs.logprobs == [0.0, -9999.0, -9999.0]
    assert sampled.logprobs.ranks == [1, 2, 3]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_logits_that_are_not_finite_end_that_request_and_leave_its_mates_bit_identical(kind, poison):
    logits = random_logits(3)
    states = [state(seed=1, temperature=1.0, logprobs=3), state(**kind), state(logprobs=3)]
    healthy = Sampler(V).sample(logits, states)
    logits[1, 50] = poison
    first, poisoned, last = Sampler(V).sample(logits, states)
    assert "not finite" in poisoned.error
    assert poisoned.model_failed
    assert poisoned.logprobs is None
    assert (first, last) == (healthy[0], healthy[2])


def test_a_nan_among_tokens_that_are_not_allowed_never_reaches_the_logprobs():
    logits = random_logits()
    logits[0, 9] = math.nan
    request = state(allowed_token_ids=(5,), logprobs=3)
    assert "not finite" in Sampler(V).sample(logits, [request])[0].error


def test_a_request_that_excludes_every_token_is_told_so():
    (sampled,) = Sampler(V).sample(random_logits(), [state(allowed_token_ids=(EOS,), min_tokens=1)])
    assert "no token is left to sample" in sampled.error
    assert not sampled.model_failed


def test_a_model_that_fails_is_told_beside_a_request_that_excludes_every_token():
    request = state()
    request.obey(None, error="the output cannot be continued by its constraint")
    logits = random_logits()
    assert [Sampler(V).sample(logits, [request])[0].model_failed] == [False]
    logits[0, 9] = math.nan
    assert [Sampler(V).sample(logits, [request])[0].model_failed] == [True]


def test_on_a_device_greedy_rows_are_judged_alike():
    logits = random_logits(4)
    logits[1, 3] = math.nan
    logits[2, 3] = math.inf
    assert _greedy_on_device(logits) == Sampler(V).sample(logits, [state() for _ in range(4)])


def test_the_logits_are_not_written_to():
    logits = random_logits(len(KINDS))
    before = logits.clone()
    Sampler(V).sample(logits, [state(**kind) for kind in KINDS])
    assert torch.equal(logits, before)


def test_logits_of_the_wrong_shape_are_refused():
    with pytest.raises(ValueError, match="logits of shape"):
        Sampler(V).sample(random_logits(2), [state()])
    with pytest.raises(ValueError, match="logits of shape"):
        Sampler(V + 1).sample(random_logits(1), [state()])
