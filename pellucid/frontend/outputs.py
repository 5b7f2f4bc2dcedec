"""What a caller gets back: vLLM's names, for `LLM` whole and for streams as deltas.

Two of them are made for every token of a stream: structs, which cost a fraction of what a dataclass does.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from pellucid.core.messages import FinishReason, TokenLogprob


class CompletionOutput(msgspec.Struct):
    """One of the n continuations. In a stream, text, token_ids and logprobs are what is new since the last one."""

    index: int
    text: str = ""
    token_ids: list[int] = msgspec.field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None  # one per token id, when asked for
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None  # with FinishReason.ERROR, from `LLM`: a stream raises RequestError instead
    seed: int | None = None  # the seed that was used, drawn or given: with it the text can be had again


@dataclass
class RequestMetrics:
    """Seconds of time.time(); durations follow by subtraction. 0.0: has not happened."""

    arrival_time: float = 0.0
    first_scheduled_time: float = 0.0
    first_token_time: float = 0.0
    last_token_time: float = 0.0
    finished_time: float = 0.0
    num_preemptions: int = 0


class RequestOutput(msgspec.Struct):
    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    prompt_logprobs: list[TokenLogprob | None] | None = None  # first entry None: nothing precedes it
    pooled: bytes | None = None  # with pooling: the vector, float32 little-endian
    num_cached_tokens: int = 0
    metrics: RequestMetrics = msgspec.field(default_factory=RequestMetrics)


class RequestError(Exception):
    """The engine ended this request with an error; str() is what the user should read."""


class RequestTimeoutError(RequestError):
    """The request was not finished at its deadline; all it held is free."""


class ContextLengthExceededError(ValueError):
    """The prompt alone is longer than the context (OpenAI's context_length_exceeded)."""

    def __init__(self, num_prompt_tokens: int, max_model_len: int) -> None:
        super().__init__(
            f"This model's maximum context length is {max_model_len} tokens, of which at least one is for the answer, "
            f"but the prompt has {num_prompt_tokens} tokens. Please shorten the prompt."
        )
        self.num_prompt_tokens = num_prompt_tokens
        self.max_model_len = max_model_len


class ContradictionError(RequestError):
    """What the request asks for excludes every token that might come next; nothing but the request is to blame."""


class EngineUnavailableError(RequestError):
    """No engine can take or finish the request now (starting, restarting, shutting down)."""


class QueueFullError(RequestError):
    """Refused at once: the waiting queue is at its bound. retry_after_s: when it is worth trying again."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
