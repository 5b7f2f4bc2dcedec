"""Penalties, biases and masks: what each does to the logits, and in which order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pellucid.sampling.penalties import TokenCounts
from pellucid.sampling.sampler import Sampler
from tests.sampling.helpers import EOS, V, adjusted, random_logits, state


@pytest.mark.parametrize("penalty", [0.3, 1.3, 2.0])
def test_the_repetition_penalty_is_that_of_transformers(penalty):
    from transformers import RepetitionPenaltyLogitsProcessor

    logits = random_logits()
    prompt, output = [5, 6, 7, 5], [8, 9, 8]
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([prompt + output]), logits.clone())
    got = adjusted(state(prompt, output, repetition_penalty=penalty), logits)
    np.testing.assert_array_equal(got, expected[0].numpy())


def test_presence_and_frequency_penalties_look_at_the_output_alone():
    logits = random_logits()
    got = adjusted(state([5, 6, 5], [6, 8, 8, 8], presence_penalty=0.5, frequency_penalty=0.25), logits)
    expected = logits[0].numpy().copy()
    expected[6] -= np.float32(0.25 * 1 + 0.5)
    expected[8] -= np.float32(0.25 * 3 + 0.5)
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    np.testing.assert_array_equal(got[5], logits[0, 5])


def test_counts_kept_over_steps_equal_counts_made_at_once():
    tokens = np.random.default_rng(1).integers(0, 150, 1000).tolist()
    grown, whole = TokenCounts(), TokenCounts()
    for token in tokens:
        grown.add([token])
    whole.add(tokens)
    for counts in (grown, whole):
        assert dict(zip(counts.ids.tolist(), counts.counts.tolist(), strict=True)) == {
            token: tokens.count(token) for token in set(tokens)
        }


def test_penalties_follow_a_request_as_it_grows():
    params = dict(presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=1.2)
    kept = state([5, 6], [], **params)
    logits = random_logits()
    for step in range(20):
        fresh = state([5, 6], kept.token_ids[2:], **params)
        np.testing.assert_array_equal(adjusted(kept, logits), adjusted(fresh, logits))
        kept.token_ids.append(step % 7)
    skipped = state([5, 6], kept.token_ids[2:], **params)
    np.testing.assert_array_equal(adjusted(kept, logits), adjusted(skipped, logits))


def test_logit_bias_is_added():
    logits = random_logits()
    got = adjusted(state(logit_bias={4: 5.5, 9: -100.0}), logits)
    expected = logits[0].numpy().copy()
    expected[4] += 5.5
    expected[9] -= 100.0
    np.testing.assert_array_equal(got, expected)


def test_only_allowed_tokens_are_left():
    logits = random_logits()
    got = adjusted(state(allowed_token_ids=(7, 4)), logits)
    assert np.flatnonzero(np.isfinite(got)).tolist() == [4, 7]
    assert got[4] == logits[0, 4]


@pytest.mark.parametrize(
    ("words", "output", "banned"),
    [
        ([[5]], [], [5]),
        ([[5]], [5], [5]),
        ([[1, 2]], [], []),  # the prompt, [1, 2], does not count
        ([[7, 8]], [7], [8]),
        ([[7, 8]], [7, 8], []),
        ([[7, 8, 9]], [8], []),
        ([[7, 8, 9]], [6, 7, 8], [9]),
        ([[7, 8, 9], [8, 4], [6]], [7, 8], [9, 4, 6]),
    ],
)
def test_a_bad_word_is_kept_from_being_completed(words, output, banned):
    request = state([1, 2], output, bad_words_token_ids=tuple(tuple(word) for word in words))
    got = adjusted(request, random_logits())
    assert sorted(np.flatnonzero(~np.isfinite(got)).tolist()) == sorted(banned)


def test_what_would_end_the_request_is_kept_out_until_min_tokens():
    params = dict(min_tokens=2, stop_token_ids=(9,))
    logits = random_logits()
    for output, banned in (([], [EOS, 9]), ([5], [EOS, 9]), ([5, 6], []), ([5, 6, 7], [])):
        got = adjusted(state([1], output, **params), logits)
        assert np.flatnonzero(~np.isfinite(got)).tolist() == banned
    got = adjusted(state([1], [], ignore_eos=True, **params), logits)
    assert np.flatnonzero(~np.isfinite(got)).tolist() == [9]  # EOS would not end it


def test_a_bitmask_leaves_the_tokens_whose_bits_are_set():
    request = state()
    allowed = [0, 31, 32, 63, 100, 199]
    bitmask = np.zeros(-(-V // 32), np.int32)
    for token_id in allowed:
        bitmask[token_id // 32] |= np.array(1 << token_id % 32, np.uint32).astype(np.int32)
    assert not request.adjusts
    request.obey(bitmask)
    assert request.adjusts
    logits = random_logits()
    sampler = Sampler(V)
    for seed in range(20):
        asked = state(seed=seed, temperature=5.0)
        asked.obey(bitmask)
        assert sampler.sample(logits, [asked])[0].token_id in allowed


def test_a_bias_counts_before_the_repetition_penalty_as_in_vllm():
    logits = torch.full((1, V), 1.0)
    got = adjusted(state([4], [], logit_bias={4: 3.0}, repetition_penalty=2.0), logits)
    assert got[4] == (1.0 + 3.0) / 2.0


def test_a_request_that_asks_for_nothing_leaves_the_logits_alone():
    assert not state(temperature=0.7, top_k=5, top_p=0.5, min_p=0.1, logprobs=5).adjusts
    assert not state(ignore_eos=True, min_tokens=5).adjusts
