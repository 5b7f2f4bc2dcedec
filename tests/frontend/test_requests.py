"""What a caller leaves open is filled in; what cannot be is refused, with the numbers."""

from __future__ import annotations

import pytest
from test_output_processor import READY, TABLE

from pellucid.frontend.outputs import ContextLengthExceededError
from pellucid.frontend.requests import PreparedRequest, RequestPreparer, derive_seed
from pellucid.sampling.params import SamplingParams
from pellucid.sampling.validate import InvalidParameterError


def prepare(prompt: str | list[int] = "ab", default_seed: int | None = None, **params: object) -> PreparedRequest:
    return RequestPreparer(TABLE, [1, 2, 10**6], READY, default_seed).prepare("r", prompt, SamplingParams(**params))  # type: ignore[arg-type]


def test_max_tokens_is_what_the_context_leaves_and_no_more() -> None:
    for asked in (None, 10**6):
        [child] = prepare([5] * 100, max_tokens=asked).children
        assert child.value.sampling_params.max_tokens == 900
    [child] = prepare([5] * 100, max_tokens=7).children
    assert child.value.sampling_params.max_tokens == 7


def test_a_prompt_that_leaves_no_room_is_refused_with_both_numbers() -> None:
    assert prepare([5] * 999).children[0].value.sampling_params.max_tokens == 1
    with pytest.raises(ContextLengthExceededError, match=r"1000 tokens.*1000 tokens"):
        prepare([5] * 1000)


@pytest.mark.parametrize("prompt", [[300], [-1], [True], [1.0], ["a"], []])
def test_a_prompt_that_is_no_list_of_tokens_is_refused(prompt: list[int]) -> None:
    with pytest.raises(ValueError, match="prompt"):
        prepare(prompt)


def test_text_that_is_no_text_is_refused() -> None:
    with pytest.raises(ValueError, match="surrogate"):
        prepare("a\ud800")


def test_parameters_are_checked_before_anything_runs() -> None:
    with pytest.raises(InvalidParameterError, match="temperature"):
        prepare(temperature=-1.0)
    with pytest.raises(InvalidParameterError, match="min_tokens"):
        prepare([5] * 999, max_tokens=None, min_tokens=5)


def test_every_continuation_has_its_own_seed_and_the_first_the_requests() -> None:
    children = prepare(n=4, seed=7, prompt_logprobs=1).children
    assert [c.seed for c in children] == [derive_seed(7, i) for i in range(4)]
    assert children[0].seed == 7
    assert len({c.seed for c in children}) == 4
    assert [c.value.request_id for c in children] == ["r#0", "r#1", "r#2", "r#3"]
    assert {c.value.sampling_params.n for c in children} == {1}
    assert [c.value.sampling_params.prompt_logprobs for c in children] == [1, None, None, None]


def test_a_seed_is_drawn_or_the_engines_where_none_is_given() -> None:
    assert prepare().children[0].seed != prepare().children[0].seed
    assert prepare(default_seed=3).children[0].seed == prepare(default_seed=3).children[0].seed == 3
    assert prepare(default_seed=3, seed=-5).children[0].seed == -5


def test_bad_words_are_given_as_tokens_with_and_without_their_space() -> None:
    [child] = prepare(bad_words=("ab",), bad_words_token_ids=((7,),)).children
    assert child.value.sampling_params.bad_words_token_ids == ((7,), (97, 98), (32, 97, 98))


def test_only_tokens_that_can_be_sampled_end_a_request() -> None:
    assert prepare().children[0].value.eos_token_ids == (1, 2)


def test_text_and_deadline_are_kept() -> None:
    prepared = RequestPreparer(TABLE, [], READY).prepare("r", "ab", SamplingParams(), timeout_s=5.0)
    assert (prepared.prompt, prepared.prompt_token_ids) == ("ab", [97, 98])
    assert prepared.children[0].value.deadline == prepared.arrival_time + 5.0
