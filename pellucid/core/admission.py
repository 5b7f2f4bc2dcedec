"""What the engine refuses at its own door, whatever a front end has let through. Every refusal is a ValueError."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pellucid.core.kv_cache_manager import KVCacheManager
from pellucid.core.messages import EngineCoreRequest
from pellucid.core.request import Request
from pellucid.sampling.validate import ENGINE_LIMITS, SamplingLimits, validate_sampling_params


def check_value(value: EngineCoreRequest, vocab_size: int, limits: SamplingLimits = ENGINE_LIMITS) -> None:
    """Is this a request at all: tokens of the vocabulary, finite numbers, parameters that make sense together?"""
    if not value.prompt_token_ids:
        raise ValueError("the prompt is empty: at least one token is needed")
    _check_token_ids("prompt_token_ids", value.prompt_token_ids, vocab_size)
    _check_token_ids("output_token_ids", value.output_token_ids, vocab_size)
    for name, number in (("arrival_time", value.arrival_time), ("deadline", value.deadline)):
        if number is not None and not math.isfinite(number):
            raise ValueError(f"{name}={number}: must be finite")
    if value.pooling is not None and value.output_token_ids:
        raise ValueError(f"pooling={value.pooling!r}: a request for a vector has no output tokens")
    params = value.sampling_params
    if params.n != 1:
        raise ValueError(f"n={params.n}: the engine takes one continuation a request; the front end makes n requests")
    if params.seed is None or params.max_tokens is None:
        raise ValueError("seed and max_tokens must be set by the front end before a request reaches the engine")
    validate_sampling_params(params, vocab_size, limits=limits)


def check_whole_life(request: Request, kv: KVCacheManager, max_model_len: int) -> None:
    """Can it run to its end, alone in the pool if need be? A request that never could must not wait for ever."""
    num_prompt = request.num_prompt_tokens
    if num_prompt >= max_model_len:
        raise ValueError(
            f"the prompt has {num_prompt} tokens; max_model_len={max_model_len} leaves no room for an answer"
        )
    num_tokens = min(request.max_total_tokens, max_model_len)
    if not kv.can_ever_fit(num_tokens):
        raise ValueError(
            f"{num_prompt} prompt tokens and up to {num_tokens - num_prompt} generated ones need "
            f"{kv.num_blocks_for(num_tokens - 1)} KV blocks of {kv.block_size} tokens; the pool has "
            f"{kv.pool.num_blocks}, enough for {kv.pool.num_blocks * kv.block_size + 1} tokens in all (lower "
            f"max_tokens, or start the engine with a larger --num-kv-blocks or --kv-cache-memory)"
        )


def _check_token_ids(name: str, token_ids: Sequence[int], vocab_size: int) -> None:
    if not set(map(type, token_ids)) <= {int}:
        raise ValueError(f"{name} must hold integers only")
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        wrong = next(token for token in token_ids if not 0 <= token < vocab_size)
        raise ValueError(f"{name} holds {wrong}: the vocabulary is 0 to {vocab_size - 1}")
