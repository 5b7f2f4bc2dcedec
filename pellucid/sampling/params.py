"""What a caller may ask of sampling: one frozen value, the same for every front door."""

from __future__ import annotations

import msgspec

GREEDY_TEMPERATURE = 1e-5  # below this, temperature sampling is numerically the argmax; we say greedy


class StructuredOutputsParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A constraint on the output text. Exactly one of the fields is set."""

    json: str | None = None  # a JSON schema, as JSON text
    json_object: bool = False
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None


class ReasoningParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the reasoning of an answer ends: there a constraint and stop strings begin to apply.

    end_token_ids: the marker that ends it (of "</think>"), as the tokens that are forced when the budget is used up. It
    is recognised by its text, so that other tokens that spell it end the reasoning too.
    start_token_ids: the marker that begins it. starts_inside: the prompt ends within the reasoning, or the answer
    always begins with it; otherwise the answer may begin with start_token_ids, and does not reason where it does not.
    budget: so many tokens of reasoning, the markers not counted; then it is ended. None: no limit.
    """

    end_token_ids: tuple[int, ...]
    start_token_ids: tuple[int, ...] = ()
    starts_inside: bool = True
    budget: int | None = None


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to continue a prompt. Field names and meanings are vLLM's and OpenAI's.

    The checks live in `pellucid.sampling.validate`, which every front door and the engine itself call.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 (or -1): all tokens
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] | None = None  # as given; the front end fills bad_words_token_ids
    bad_words_token_ids: tuple[tuple[int, ...], ...] | None = None
    seed: int | None = None  # None: the front door draws one, and reports it
    max_tokens: int | None = 16  # None: whatever the context leaves
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None  # how many alternatives beside the sampled token; None: none at all
    logprob_token_ids: tuple[int, ...] = ()  # with logprobs: tell those of these tokens, too
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    shown_special_token_ids: tuple[int, ...] = ()  # these are not skipped: markers that a parser looks for
    detokenize: bool = True
    structured_outputs: StructuredOutputsParams | None = None
    reasoning: ReasoningParams | None = None  # None: every token is content

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE
