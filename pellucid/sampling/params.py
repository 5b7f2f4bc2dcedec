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
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    detokenize: bool = True
    structured_outputs: StructuredOutputsParams | None = None

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE
