"""From a caller's prompt and parameters to what the engine is sent: checked, complete, one request per continuation."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from pellucid.core.messages import EngineCoreRequest, EngineReady, Pooling
from pellucid.frontend.outputs import ContextLengthExceededError
from pellucid.sampling.params import SamplingParams
from pellucid.sampling.validate import SamplingLimits, validate_sampling_params

MAX_SEED = 2**63 - 1


class PromptTokenizer(Protocol):
    """What making a request needs of the tokenizer."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...


@dataclass(frozen=True)
class ChildRequest:
    """One of the n continuations, as the engine sees it: a request of its own."""

    index: int
    value: EngineCoreRequest

    @property
    def seed(self) -> int:
        seed = self.value.sampling_params.seed
        if seed is None:
            raise ValueError("a request for the engine has a seed")
        return seed


@dataclass(frozen=True)
class PreparedRequest:
    """prompt: the text, where it was given as text. arrival_time: seconds of time.time()."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    children: list[ChildRequest]
    arrival_time: float


class RequestPreparer:
    """Fills in what a caller may leave open, by what this engine and this model are.

    default_seed: for requests that bring no seed; None: each gets one of its own, drawn.
    """

    def __init__(
        self,
        tokenizer: PromptTokenizer,
        eos_token_ids: Sequence[int],
        ready: EngineReady,
        default_seed: int | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        # a tokenizer and a model need not agree on the size of the vocabulary; what cannot be sampled ends nothing
        self._eos_token_ids = tuple(i for i in eos_token_ids if 0 <= i < ready.vocab_size)
        self._ready = ready
        self._default_seed = default_seed

    def prepare(
        self,
        request_id: str,
        prompt: str | Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        timeout_s: float | None = None,
        pooling: Pooling | None = None,
    ) -> PreparedRequest:
        """Raises ContextLengthExceededError, InvalidParameterError, or ValueError for a prompt that is none."""
        arrival_time = time.time()
        self._check(params)
        token_ids = self._prompt_token_ids(prompt)
        seed = self._seed_of(params)
        params = self._completed(params, len(token_ids))
        children = []
        for index in range(params.n):
            child_params = msgspec.structs.replace(
                params,
                n=1,
                seed=derive_seed(seed, index),
                prompt_logprobs=params.prompt_logprobs if index == 0 else None,  # they are the same for all
            )
            value = EngineCoreRequest(
                request_id=request_id if params.n == 1 else f"{request_id}#{index}",
                prompt_token_ids=token_ids,
                sampling_params=child_params,
                eos_token_ids=self._eos_token_ids,
                arrival_time=arrival_time,
                deadline=None if timeout_s is None else arrival_time + timeout_s,
                priority=priority,
                cache_salt=cache_salt,
                pooling=pooling,
            )
            children.append(ChildRequest(index, value))
        return PreparedRequest(
            request_id=request_id,
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=token_ids,
            children=children,
            arrival_time=arrival_time,
        )

    def _prompt_token_ids(self, prompt: str | Sequence[int]) -> list[int]:
        token_ids = self._tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        if not token_ids:
            raise ValueError("the prompt is empty: at least one token is needed")
        vocab_size = self._ready.vocab_size
        for position, token_id in enumerate(token_ids):
            if type(token_id) is not int or not 0 <= token_id < vocab_size:
                raise ValueError(
                    f"the prompt holds {str(token_id)[:40]!r} at position {position}: token ids are integers from 0 to "
                    f"{vocab_size - 1}"
                )
        if len(token_ids) >= self._ready.max_model_len:
            raise ContextLengthExceededError(len(token_ids), self._ready.max_model_len)
        return token_ids

    def _completed(self, params: SamplingParams, num_prompt_tokens: int) -> SamplingParams:
        """max_tokens within what the context and the pool leave, bad words as token ids too."""
        ready = self._ready
        pool = ready.num_blocks * ready.block_size + 1  # the last token is sampled, and never computed
        # a prompt that does not fit into the pool is refused by the engine, with the numbers
        room = min(ready.max_model_len, max(pool, num_prompt_tokens + 1)) - num_prompt_tokens
        max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        completed = msgspec.structs.replace(params, max_tokens=max_tokens)
        if params.bad_words:
            words = [*(params.bad_words_token_ids or ()), *self._bad_words_token_ids(params.bad_words)]
            completed = msgspec.structs.replace(completed, bad_words_token_ids=tuple(dict.fromkeys(words)))
        if completed.min_tokens > max_tokens or params.bad_words:
            self._check(completed)
        return completed

    def _check(self, params: SamplingParams) -> None:
        ready = self._ready
        limits = SamplingLimits(structured_outputs=ready.structured_outputs)
        validate_sampling_params(params, ready.vocab_size, ready.max_model_len, limits=limits)

    def _seed_of(self, params: SamplingParams) -> int:
        if params.seed is not None:
            return params.seed
        return self._default_seed if self._default_seed is not None else secrets.randbelow(MAX_SEED + 1)

    def _bad_words_token_ids(self, words: Sequence[str]) -> list[tuple[int, ...]]:
        """Each word as it is written at the start of a text and in the middle of one."""
        ids = [
            tuple(self._tokenizer.encode(prefix + word.lstrip(" "), add_special_tokens=False))
            for word in words
            for prefix in ("", " ")
        ]
        return [word for word in ids if word]


def derive_seed(seed: int, index: int) -> int:
    """Of the continuation `index` of a request: the request's own for the first, unrelated ones for the rest."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") & MAX_SEED
