"""An output by its rules, token by token, without a model: reasoning, budgets, ends, and replays at every point."""

from __future__ import annotations

import numpy as np
import pytest
from constrained_requests import allowed, constrained

from pellucid.core.messages import EngineCoreRequest
from pellucid.sampling.params import ReasoningParams, SamplingParams
from pellucid.structured.compiler import GrammarCompiler
from pellucid.structured.masks import RuledRow, StepMasks
from pellucid.structured.rules import OutputRules, needs_rules

PROMPT = [5, 6, 7]


class Walk:
    """One output. `step` gives the tokens that may follow, None for all."""

    def __init__(self, compiler: GrammarCompiler, params: SamplingParams, tokens: tuple[int, ...] = ()) -> None:
        eos = compiler.vocabulary.eos_token_ids
        value = EngineCoreRequest(request_id="r", prompt_token_ids=PROMPT, sampling_params=params, eos_token_ids=eos)
        self.rules = OutputRules(value, compiler)
        self.tokens = [*PROMPT, *tokens]
        self.row = RuledRow(self.rules, self.tokens, len(PROMPT))
        self.masks = StepMasks(compiler.vocabulary.vocab_size)

    def step(self, *token_ids: int) -> list[int] | None:
        for token_id in token_ids:
            self.tokens.append(token_id)
            self.masks.begin([self.row])
            self.masks.wait()
        if not token_ids:
            self.masks.begin([self.row])
            self.masks.wait()
        return None if self.row.mask is None else allowed(self.row.mask)


def test_the_masks_of_a_step_that_failed_are_no_fault_of_the_next_one(compiler):
    class Broken(RuledRow):
        def catch_up(self) -> bool:
            raise MemoryError("no room for its mask")

    walk = Walk(compiler, constrained(regex="ab"))
    broken = Broken(walk.rules, walk.tokens, len(PROMPT))
    walk.masks.begin([broken])  # and the forward pass failed as well, so that nobody waits
    assert walk.step()
    walk.masks.begin([broken])
    with pytest.raises(MemoryError):
        walk.masks.wait()


@pytest.fixture
def ids(text):
    return lambda string: tuple(text.tokenizer.encode(string, add_special_tokens=False))


@pytest.fixture
def think(ids) -> dict:
    return dict(start_token_ids=ids("<think>"), end_token_ids=ids("</think>"))


def test_what_needs_no_rules_gets_none(think):
    assert not needs_rules(SamplingParams())
    assert not needs_rules(SamplingParams(reasoning=ReasoningParams(**think)))
    assert needs_rules(SamplingParams(reasoning=ReasoningParams(**think, budget=5)))
    assert needs_rules(constrained(regex="a"))


def test_at_the_end_of_a_grammar_only_the_end_is_allowed(compiler, ids):
    walk = Walk(compiler, constrained(regex="ab"))
    eos = compiler.vocabulary.eos_token_ids
    assert len(eos) > 1
    assert not set(eos) & set(walk.step() or [])
    assert walk.step(*ids("ab")) == [eos[0]]
    assert walk.row.state.must_end
    assert walk.step(eos[0]) == [eos[0]]  # and again, where a request ignores it
    assert walk.row.state.error is None


def test_of_the_tokens_that_end_a_text_one_is_left_that_the_request_may_use(compiler, ids):
    first, second = compiler.vocabulary.eos_token_ids[:2]
    for more in (dict(allowed_token_ids=(*ids("ab"), second)), dict(bad_words_token_ids=((first,),))):
        assert Walk(compiler, constrained(regex="ab", **more)).step(*ids("ab")) == [second]
    assert Walk(compiler, constrained(regex="ab", allowed_token_ids=ids("ab"))).step(*ids("ab")) == [first]


def test_where_more_may_follow_so_may_the_end(compiler, ids):
    walk = Walk(compiler, constrained(regex="ab*"))
    follows = walk.step(*ids("ab"))
    assert {*compiler.vocabulary.eos_token_ids, *ids("b")} <= set(follows or [])
    assert not walk.row.state.must_end


def test_a_token_against_the_grammar_is_an_error_and_stays_one(compiler, ids):
    walk = Walk(compiler, constrained(regex="ab"))
    assert walk.step(*ids("x")) is None
    assert "constraint" in (walk.row.state.error or "")
    walk.step(*ids("ab"))
    assert walk.row.state.error is not None


def test_a_constraint_begins_where_the_reasoning_ends(compiler, ids, think):
    walk = Walk(compiler, constrained(regex="ab", reasoning=ReasoningParams(**think)))
    free = walk.step(*ids("so it is, "))
    assert set(ids("x<{ ")) <= set(free or [])
    assert not set(compiler.vocabulary.eos_token_ids) & set(free or []), "an answer without its content"
    assert walk.step(*ids("</think>")) == Walk(compiler, constrained(regex="ab")).step()


def test_the_token_that_ends_the_reasoning_ends_with_it(compiler, text, ids, think):
    """ ">\\n" would put a line break in front of the content, which the constraint has not allowed."""
    beyond = [i for i, data in enumerate(compiler.vocabulary.token_bytes) if data.startswith(b">") and len(data) > 1]
    assert beyond
    walk = Walk(compiler, constrained(regex="ab", reasoning=ReasoningParams(**think)))
    assert set(beyond) <= set(walk.step(*ids("a")) or [])
    assert not set(beyond) & set(walk.step(*ids("</think")) or [])
    unconstrained = Walk(compiler, SamplingParams(reasoning=ReasoningParams(**think, budget=100)))
    assert unconstrained.step(*ids("</think")) is None


def test_an_answer_may_begin_with_reasoning_or_without(compiler, ids, think):
    params = constrained(regex="ab", reasoning=ReasoningParams(**think, starts_inside=False))
    begins = Walk(compiler, params).step()
    assert set(begins or []) == {*(Walk(compiler, constrained(regex="ab")).step() or []), ids("<think>")[0]}
    without = Walk(compiler, params)
    assert without.step(*ids("a")) == Walk(compiler, constrained(regex="ab")).step(*ids("a"))
    reasons = Walk(compiler, params)
    start = ids("<think>")
    for i in range(1, len(start)):
        assert reasons.step(start[i - 1]) == [start[i]]
    assert len(reasons.step(start[-1]) or []) > 1000
    assert reasons.step(*ids("hm</think>")) == Walk(compiler, constrained(regex="ab")).step()


@pytest.mark.parametrize("budget", [0, 1, 5])
@pytest.mark.parametrize("with_constraint", [False, True])
def test_after_the_budget_the_reasoning_is_ended(compiler, ids, think, budget, with_constraint):
    reasoning = ReasoningParams(**think, budget=budget)
    params = constrained(regex="ab", reasoning=reasoning) if with_constraint else SamplingParams(reasoning=reasoning)
    walk = Walk(compiler, params)
    follows = walk.step()
    for _ in range(budget):
        assert follows is None or len(follows) > 1000
        follows = walk.step(*ids("x"))
    for token_id in ids("</think>"):
        assert follows == [token_id]
        follows = walk.step(token_id)
    assert follows == (Walk(compiler, constrained(regex="ab")).step() if with_constraint else None)


def test_reasoning_that_ends_in_time_is_left_alone(compiler, ids, think):
    walk = Walk(compiler, SamplingParams(reasoning=ReasoningParams(**think, budget=20)))
    walk.step(*ids("ok</think>"))
    assert walk.step(*ids("and so on and so forth until there are a good many more than twenty tokens of it")) is None


def test_a_state_made_anew_at_any_point_goes_on_the_same(compiler, ids, think):
    params = constrained(json_object=True, reasoning=ReasoningParams(**think, starts_inside=False, budget=4))
    output = (*ids("<think>hm, let"), *ids("</think>"), *ids('{"a": [1, 2]}'))
    whole = Walk(compiler, params)
    expected = [whole.step(), *(whole.step(token_id) for token_id in output)]
    for i in range(len(output) + 1):
        assert Walk(compiler, params, output[:i]).step() == expected[i], f"after {i} tokens"


def test_each_row_of_a_step_gets_its_own_mask(compiler, ids):
    vocabulary = compiler.vocabulary
    walks = [Walk(compiler, constrained(regex=f"{c}+")) for c in "abcdefgh" * 8]
    masks = StepMasks(vocabulary.vocab_size)
    masks.begin([walk.row for walk in walks])
    masks.wait()
    for walk, char in zip(walks, "abcdefgh" * 8, strict=True):
        assert walk.row.mask is not None
        spelled = {vocabulary.token_bytes[i] for i in allowed(walk.row.mask)}
        assert spelled
        assert all(set(data) == {ord(char)} for data in spelled)
        assert np.shares_memory(walk.row.mask, masks._masks)


# what must follow ----------------------------------------------------------------------------------------------------


def run_ahead(walk: Walk) -> list[int]:
    """What must follow, from where the masks of the last step were."""
    forced: list[int] = []
    while len(forced) < 50 and (token_id := walk.row.only_next()) is not None:
        forced.append(token_id)
        walk.row.push(token_id)
    return forced


SCHEMA = (
    '{"type":"object","properties":{"temperature":{"const":"a constant text, quite long"}},"required":["temperature"]}'
)


@pytest.mark.parametrize(
    ("more", "output", "at_least"),
    [
        (dict(regex="ab"), "ab", 50),
        (dict(choice=("Copenhagen", "Warsaw")), "C", 1),
        (dict(json=SCHEMA), '{"', 1),
        (dict(json=SCHEMA), '{"temperature":', 0),
        (dict(json=SCHEMA), '{"temperature": "a', 4),
        (dict(regex="[a-z]+"), "a", 0),
    ],
)
def test_what_must_follow_is_what_every_mask_leaves_alone(compiler, ids, more, output, at_least):
    """A mask at a time, made from the tokens alone, as a step does without going ahead."""
    fast = Walk(compiler, constrained(**more))
    fast.step(*ids(output))
    forced = run_ahead(fast)
    for i in range(len(forced)):
        assert Walk(compiler, constrained(**more), (*ids(output), *forced[:i])).step() == forced[i : i + 1]
    end = compiler.vocabulary.eos_token_ids[0]
    follows = Walk(compiler, constrained(**more), (*ids(output), *forced)).step()
    assert len(forced) == 50 or len(follows or []) > 1
    assert (len(forced) == 50) == (set(forced[-20:]) == {end})
    assert len(forced) >= at_least
    assert at_least or not forced


def test_what_must_follow_of_reasoning_is_its_markers(compiler, ids, think):
    budget = Walk(compiler, SamplingParams(reasoning=ReasoningParams(**think, budget=2)))
    budget.step(*ids("x"))
    assert run_ahead(budget) == []
    budget.step(*ids("x"))
    assert tuple(run_ahead(budget)) == ids("</think>")
    begins = Walk(compiler, constrained(regex="ab", reasoning=ReasoningParams(**think, starts_inside=False)))
    begins.step()
    assert run_ahead(begins) == []
    begins.step(ids("<think>")[0])
    assert tuple(run_ahead(begins)) == ids("<think>")[1:]


def test_the_mask_that_ended_a_run_is_the_next_steps(compiler, ids):
    walk = Walk(compiler, constrained(json=SCHEMA))
    walk.step(*ids('{"'))
    forced = run_ahead(walk)
    made = walk.row.mask
    assert made is not None
    assert walk.step(*forced) == Walk(compiler, constrained(json=SCHEMA), (*ids('{"'), *forced)).step()


def test_a_row_that_went_ahead_in_a_step_that_is_made_again_goes_back(compiler, ids):
    walk = Walk(compiler, constrained(json=SCHEMA))
    expected = walk.step(*ids('{"'))
    forced = run_ahead(walk)
    assert forced
    assert walk.step() == expected
    assert run_ahead(walk) == forced
