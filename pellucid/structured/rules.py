"""What one request's output has to obey: a grammar, where its reasoning ends, how long it may reason."""

from __future__ import annotations

from typing import Any

import numpy as np

from pellucid.core.messages import EngineCoreRequest
from pellucid.sampling.errors import CANNOT_CONTINUE
from pellucid.sampling.params import ReasoningParams, SamplingParams
from pellucid.sampling.reasoning import Phase, ReasoningTracker
from pellucid.structured.compiler import CompiledGrammar, GrammarCompiler, error_of
from pellucid.structured.vocabulary import GrammarVocabulary


def needs_rules(params: SamplingParams) -> bool:
    """Reasoning without a budget and without a constraint after it is nothing that decoding has to know of."""
    has_budget = params.reasoning is not None and params.reasoning.budget is not None
    return has_budget or params.structured_outputs is not None


class OutputRules:
    """Made before a request is queued, on a thread of the compiler; the same for every life of the request."""

    def __init__(self, value: EngineCoreRequest, compiler: GrammarCompiler) -> None:
        """Raises ConstraintError."""
        params = value.sampling_params
        self.vocabulary: GrammarVocabulary = compiler.vocabulary
        self.eos_token_ids = value.eos_token_ids
        self.end_token_ids = _end_token_ids(value)
        self.stop_token_ids = (*value.eos_token_ids, *params.stop_token_ids)
        self.reasoning: ReasoningParams | None = params.reasoning
        constraint = params.structured_outputs
        self.grammar: CompiledGrammar | None = None if constraint is None else compiler.compile(constraint)

    def new_state(self) -> OutputState:
        """For an output without any tokens."""
        return OutputState(self)


def _end_token_ids(value: EngineCoreRequest) -> tuple[int, ...]:
    """What follows where nothing but the end may: of several tokens that end a text, which all say the same, one. So
    the end of a grammar leaves no choice, and costs no step.
    """
    params = value.sampling_params
    bad = {word[0] for word in params.bad_words_token_ids or () if len(word) == 1}
    allowed = params.allowed_token_ids
    fit = [token_id for token_id in value.eos_token_ids if token_id not in bad and (not allowed or token_id in allowed)]
    return tuple(fit or value.eos_token_ids)[:1]


class OutputState:
    """How far one output has come by its rules. It follows from the tokens, which `advance` is told.

    After `advance`: `error` is why there can't be a next token; `must_end` is set where only the end may follow;
    `matcher_to_ask` is the one whose mask is wanted; `finish_mask` completes or makes the mask.
    """

    def __init__(self, rules: OutputRules) -> None:
        self._rules = rules
        self.num_taken = 0
        self._matcher: Any = None if rules.grammar is None else rules.grammar.new_matcher()
        self._ended = False  # by the end-of-text token
        self._num_opened = 0  # tokens of the marker that begins the reasoning
        token_bytes = rules.vocabulary.token_bytes
        self._tracker = None if rules.reasoning is None else ReasoningTracker(rules.reasoning, token_bytes.__getitem__)
        self.error: str | None = None
        self.must_end = False

    @property
    def phase(self) -> Phase:
        return Phase.CONTENT if self._tracker is None else self._tracker.phase

    def advance(self, token_ids: list[int], num_prompt_tokens: int) -> None:
        """token_ids: the request's prompt and output; what was taken before is not looked at again."""
        for token_id in token_ids[num_prompt_tokens + self.num_taken :]:
            self.take(token_id)

    def take(self, token_id: int) -> None:
        """The output's next token."""
        self.num_taken += 1
        phase, tracker = self.phase, self._tracker
        if tracker is not None:
            tracker.push(token_id)
        if self._matcher is None or phase is Phase.REASONING:
            return
        if phase is Phase.OPENING and self._opens(token_id):
            return
        self._feed(token_id)

    def _opens(self, token_id: int) -> bool:
        """Whether it is one of the tokens that begin the reasoning. Once the first has come the others must follow."""
        assert self._rules.reasoning is not None
        start = self._rules.reasoning.start_token_ids
        if self._num_opened == 0 and token_id != start[0]:
            assert self._tracker is not None
            self._tracker.phase = Phase.CONTENT
            return False
        self._num_opened += 1
        return True

    def _feed(self, token_id: int) -> None:
        if token_id in self._rules.eos_token_ids:
            self._ended = True
        elif not self._ended and not self._matcher.consume_token(token_id):
            self.error = f"{CANNOT_CONTINUE}: {error_of(self._matcher)}"

    # the mask of the next step ---------------------------------------------------------------------------------------

    def may_be_forced(self) -> bool:
        """False where more than one token may follow, as far as that can be told for less than a mask."""
        phase, matcher, reasoning = self.phase, self._matcher, self._rules.reasoning
        if self.error is not None:
            return False
        if phase is Phase.REASONING:
            assert reasoning is not None
            assert self._tracker is not None
            return reasoning.budget is not None and self._tracker.num_tokens >= reasoning.budget
        if matcher is None or phase is Phase.OPENING:
            return self._num_opened > 0
        # A token is the only one where its first byte is (but for bytes that no token begins with: then a step is made)
        return self._ended or matcher.is_stopped() or bool(matcher.compute_ff_bytes())

    @property
    def matcher_to_ask(self) -> Any:
        """None where the mask does not depend on the grammar, or there is none."""
        asks = (self.phase is not Phase.REASONING and self._num_opened == 0) or self.phase is Phase.CONTENT
        return self._matcher if asks and not self._ended and self.error is None else None

    def finish_mask(self, mask: np.ndarray) -> bool:
        """Returns whether there is a mask at all. mask: as filled by matcher_to_ask, or of any content without one.

        bit i % 32 of word i // 32 of the int32 array is 1 where token i may follow.
        """
        self.must_end = False
        if self.phase is Phase.REASONING:
            return self._mask_reasoning(mask)
        if self._matcher is None:
            return False
        if self.phase is Phase.OPENING and self._num_opened:
            assert self._rules.reasoning is not None
            _only(mask, (self._rules.reasoning.start_token_ids[self._num_opened],))
            return True
        self._mask_content(mask)
        if self.phase is Phase.OPENING:
            assert self._rules.reasoning is not None
            _allow(mask, self._rules.reasoning.start_token_ids[:1])
            self.must_end = False
        return True

    def _mask_content(self, mask: np.ndarray) -> None:
        if not self._ended and self._matcher.is_error():
            self.error = f"{CANNOT_CONTINUE}: {error_of(self._matcher)}"
            return
        self.must_end = self._ended or self._matcher.is_stopped()
        if self.must_end:
            _only(mask, self._rules.end_token_ids)
            return
        _forbid(mask, self._rules.vocabulary.eos_token_ids)
        if self._matcher.is_accepting():
            _allow(mask, self._rules.eos_token_ids)

    def _mask_reasoning(self, mask: np.ndarray) -> bool:
        tracker, reasoning = self._tracker, self._rules.reasoning
        assert tracker is not None
        assert reasoning is not None
        if reasoning.budget is not None and tracker.num_tokens >= reasoning.budget:
            _only(mask, (reasoning.end_token_ids[tracker.num_tokens - reasoning.budget],))
            return True
        if self._matcher is None:
            return False
        # An answer that ended here would have no content, and content must begin where a token begins.
        mask.fill(-1)
        _forbid(mask, self._rules.stop_token_ids)
        _forbid(mask, self._rules.vocabulary.tokens_beyond(tracker.end, tracker.matched))
        return True


def _only(mask: np.ndarray, token_ids: Any) -> None:
    mask.fill(0)
    _allow(mask, token_ids)


def _allow(mask: np.ndarray, token_ids: Any) -> None:
    words = mask.view(np.uint32)
    for token_id in token_ids:
        words[token_id >> 5] |= np.uint32(1 << (token_id & 31))


def _forbid(mask: np.ndarray, token_ids: Any) -> None:
    words = mask.view(np.uint32)
    for token_id in token_ids:
        words[token_id >> 5] &= np.uint32(~(1 << (token_id & 31)) & 0xFFFFFFFF)
