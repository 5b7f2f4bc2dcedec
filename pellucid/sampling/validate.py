"""The one check of SamplingParams: every front door calls it, and the engine again where it admits a request.

Types are checked too, since a value may come from Python as well as from a decoder. Torch-free.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pellucid.sampling.params import ReasoningParams, SamplingParams, StructuredOutputsParams

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
MAX_COUNT = 2**31 - 1  # of tokens
MIN_REPETITION_PENALTY = 1e-3  # logits are divided by it: below, they would overflow
MAX_MARKER_TOKENS = 64  # of what begins or ends reasoning


class InvalidParameterError(ValueError):
    """param: the field; code: the word for it that OpenAI's clients know; str() is the sentence for the user."""

    def __init__(self, param: str, message: str, code: str) -> None:
        super().__init__(message)
        self.param = param
        self.message = message
        self.code = code


@dataclass(frozen=True)
class SamplingLimits:
    """How much one request may ask for. The defaults are the engine's; a front door may be stricter."""

    max_n: int = 128
    max_temperature: float = 100.0  # beyond, the logits are all equal
    max_logprobs: int = 128  # also of prompt_logprobs
    max_stop_strings: int = 64
    max_stop_string_length: int = 4096
    max_stop_token_ids: int = 1024
    max_logit_bias: int = 4096
    max_bad_words: int = 1024
    max_bad_word_length: int = 4096  # in characters, and in tokens
    structured_outputs: bool = False  # whether the engine at hand can constrain output


ENGINE_LIMITS = SamplingLimits()
OPENAI_LIMITS = SamplingLimits(max_temperature=2.0, max_logprobs=20, max_stop_strings=4, max_logit_bias=1024)


def validate_sampling_params(
    params: SamplingParams,
    vocab_size: int | None = None,
    max_model_len: int | None = None,
    *,
    limits: SamplingLimits = ENGINE_LIMITS,
) -> None:
    """Raises InvalidParameterError for the first field that is wrong; nothing is changed or filled in.

    vocab_size: with it, every token id is checked against it. max_model_len: with it, min_tokens must be reachable.
    """
    _check_numbers(params, limits)
    _check_lists(params, limits)
    _check_token_ids(params, vocab_size)
    _check_together(params, vocab_size, max_model_len)
    if params.structured_outputs is not None:
        _check_structured_outputs(params.structured_outputs, limits)
    if params.reasoning is not None:
        _check_reasoning(params.reasoning, vocab_size, limits)


# field by field ------------------------------------------------------------------------------------------------------


def _check_numbers(params: SamplingParams, limits: SamplingLimits) -> None:
    _integer("n", params.n, 1, limits.max_n)
    _decimal("temperature", params.temperature, 0.0, limits.max_temperature)
    _decimal("top_p", params.top_p, 0.0, 1.0, above_low=True)
    _integer("top_k", params.top_k, -1, MAX_COUNT)
    _decimal("min_p", params.min_p, 0.0, 1.0)
    _decimal("presence_penalty", params.presence_penalty, -2.0, 2.0)
    _decimal("frequency_penalty", params.frequency_penalty, -2.0, 2.0)
    _decimal("repetition_penalty", params.repetition_penalty, MIN_REPETITION_PENALTY, 1000.0)
    if params.seed is not None:
        _integer("seed", params.seed, INT64_MIN, INT64_MAX)
    if params.max_tokens is not None:
        _integer("max_tokens", params.max_tokens, 1, MAX_COUNT)
    _integer("min_tokens", params.min_tokens, 0, MAX_COUNT)
    if params.logprobs is not None:
        _integer("logprobs", params.logprobs, 0, limits.max_logprobs)
    if params.prompt_logprobs is not None:
        _integer("prompt_logprobs", params.prompt_logprobs, 0, limits.max_logprobs)
    for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "detokenize"):
        if not isinstance(getattr(params, name), bool):
            raise _wrong_type(name, "a boolean", getattr(params, name))


def _check_lists(params: SamplingParams, limits: SamplingLimits) -> None:
    _strings("stop", params.stop, limits.max_stop_strings, limits.max_stop_string_length)
    _list("stop_token_ids", params.stop_token_ids, limits.max_stop_token_ids)
    _list("logprob_token_ids", params.logprob_token_ids, limits.max_logprobs)
    _list("shown_special_token_ids", params.shown_special_token_ids, limits.max_stop_token_ids)
    if params.allowed_token_ids is not None:
        _list("allowed_token_ids", params.allowed_token_ids, MAX_COUNT, at_least_one=True)
    if params.bad_words is not None:
        _strings("bad_words", params.bad_words, limits.max_bad_words, limits.max_bad_word_length)
    if params.bad_words_token_ids is not None:
        # a word may be written in several ways ("word" and " word"): the front end gives each its ids
        _list("bad_words_token_ids", params.bad_words_token_ids, 4 * limits.max_bad_words)
        for i, word in enumerate(params.bad_words_token_ids):
            _list(f"bad_words_token_ids[{i}]", word, limits.max_bad_word_length, at_least_one=True)
    if params.logit_bias is not None:
        if not isinstance(params.logit_bias, Mapping):
            raise _wrong_type("logit_bias", "an object", params.logit_bias)
        _check_length("logit_bias", "object", len(params.logit_bias), limits.max_logit_bias)
        for token_id, bias in params.logit_bias.items():
            _decimal(f"logit_bias[{_show(token_id)}]", bias, -100.0, 100.0)


def _check_token_ids(params: SamplingParams, vocab_size: int | None) -> None:
    _token_ids("stop_token_ids", params.stop_token_ids, vocab_size)
    _token_ids("logprob_token_ids", params.logprob_token_ids, vocab_size)
    _token_ids("shown_special_token_ids", params.shown_special_token_ids, vocab_size)
    _token_ids("allowed_token_ids", params.allowed_token_ids or (), vocab_size)
    _token_ids("logit_bias", params.logit_bias or (), vocab_size)
    for i, word in enumerate(params.bad_words_token_ids or ()):
        _token_ids(f"bad_words_token_ids[{i}]", word, vocab_size)


def _check_together(params: SamplingParams, vocab_size: int | None, max_model_len: int | None) -> None:
    most_tokens = params.max_tokens if params.max_tokens is not None else max_model_len
    if most_tokens is not None and params.min_tokens > most_tokens:
        limit = "max_tokens" if params.max_tokens is not None else "max_model_len"
        raise InvalidParameterError(
            "min_tokens",
            f"Invalid 'min_tokens': integer above maximum value. Expected a value <= {limit} ({most_tokens}), "
            f"but got {params.min_tokens} instead.",
            "integer_above_max_value",
        )
    if params.stop and not params.detokenize:
        raise InvalidParameterError(
            "stop",
            "Invalid 'stop': stop strings are looked for in the text, and 'detokenize' is false. "
            "Use stop_token_ids, or leave detokenize on.",
            "invalid_value",
        )
    if params.logprob_token_ids and params.logprobs is None:
        raise InvalidParameterError(
            "logprob_token_ids",
            "Invalid 'logprob_token_ids': these are told with the log-probabilities, and 'logprobs' is not set.",
            "invalid_value",
        )
    allowed = params.allowed_token_ids
    if allowed is not None and params.bad_words_token_ids:
        banned = {word[0] for word in params.bad_words_token_ids if len(word) == 1}
        if banned.issuperset(allowed):
            raise InvalidParameterError(
                "allowed_token_ids",
                "Invalid 'allowed_token_ids': every allowed token is a bad word, so that nothing can be sampled.",
                "invalid_value",
            )


def _check_structured_outputs(constraint: Any, limits: SamplingLimits) -> None:
    if not isinstance(constraint, StructuredOutputsParams):
        raise _wrong_type("structured_outputs", "an object", constraint)
    if not limits.structured_outputs:
        raise _unsupported("structured_outputs")
    given = [name for name in constraint.__struct_fields__ if getattr(constraint, name) not in (None, False)]
    if len(given) != 1:
        raise InvalidParameterError(
            "structured_outputs",
            "Invalid 'structured_outputs': exactly one of json, json_object, regex, choice and grammar must be given, "
            f"but got {', '.join(given) or 'none'}.",
            "invalid_value",
        )


def _check_reasoning(reasoning: Any, vocab_size: int | None, limits: SamplingLimits) -> None:
    if not isinstance(reasoning, ReasoningParams):
        raise _wrong_type("reasoning", "an object", reasoning)
    for name, at_least_one in (("end_token_ids", True), ("start_token_ids", not reasoning.starts_inside)):
        token_ids = getattr(reasoning, name)
        _list(f"reasoning.{name}", token_ids, MAX_MARKER_TOKENS, at_least_one=at_least_one)
        _token_ids(f"reasoning.{name}", token_ids, vocab_size)
    if not isinstance(reasoning.starts_inside, bool):
        raise _wrong_type("reasoning.starts_inside", "a boolean", reasoning.starts_inside)
    if reasoning.budget is not None:
        _integer("reasoning.budget", reasoning.budget, 0, MAX_COUNT)
        if not limits.structured_outputs:
            raise _unsupported("reasoning.budget")


# kinds of values -----------------------------------------------------------------------------------------------------


def _integer(param: str, value: Any, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong_type(param, "an integer", value)
    if value < low:
        raise _out_of_range(param, "integer", "below", f">= {low}", value)
    if value > high:
        raise _out_of_range(param, "integer", "above", f"<= {high}", value)


def _decimal(param: str, value: Any, low: float, high: float, *, above_low: bool = False) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise _wrong_type(param, "a number", value)
    if isinstance(value, float) and not math.isfinite(value):
        message = f"Invalid '{param}': expected a finite number, but got {value}."
        raise InvalidParameterError(param, message, "invalid_value")
    if value < low or (above_low and value == low):
        raise _out_of_range(param, "decimal", "below", f"{'>' if above_low else '>='} {low:g}", value)
    if value > high:
        raise _out_of_range(param, "decimal", "above", f"<= {high:g}", value)


def _list(param: str, value: Any, max_length: int, *, at_least_one: bool = False) -> None:
    if not isinstance(value, (tuple, list)):
        raise _wrong_type(param, "an array", value)
    if at_least_one and not value:
        raise InvalidParameterError(
            param,
            f"Invalid '{param}': empty array. Expected an array with minimum length 1, but got an empty array instead.",
            "empty_array",
        )
    _check_length(param, "array", len(value), max_length)


def _strings(param: str, value: Any, max_count: int, max_length: int) -> None:
    _list(param, value, max_count)
    for i, text in enumerate(value):
        name = f"{param}[{i}]"
        if not isinstance(text, str):
            raise _wrong_type(name, "a string", text)
        if not text:
            raise InvalidParameterError(
                name,
                f"Invalid '{name}': empty string. Expected a string with minimum length 1, "
                "but got an empty string instead.",
                "empty_string",
            )
        _check_length(name, "string", len(text), max_length)


def _token_ids(param: str, token_ids: Iterable[Any], vocab_size: int | None) -> None:
    high = MAX_COUNT if vocab_size is None else vocab_size - 1
    for i, token_id in enumerate(token_ids):
        if type(token_id) is not int or not 0 <= token_id <= high:  # quick for the long lists that are right
            _integer(f"{param}[{i}]", token_id, 0, high)


def _check_length(param: str, kind: str, length: int, max_length: int) -> None:
    if length > max_length:
        an = "a" if kind == "string" else "an"
        raise InvalidParameterError(
            param,
            f"Invalid '{param}': {kind} too long. Expected {an} {kind} with maximum length {max_length}, "
            f"but got {an} {kind} with length {length} instead.",
            f"{kind}_above_max_length",
        )


# words ---------------------------------------------------------------------------------------------------------------


def _wrong_type(param: str, expected: str, value: Any) -> InvalidParameterError:
    message = f"Invalid type for '{param}': expected {expected}, but got {_show(value)} instead."
    return InvalidParameterError(param, message, "invalid_type")


def _unsupported(param: str) -> InvalidParameterError:
    message = f"Unsupported parameter: '{param}' is not supported by this engine."
    return InvalidParameterError(param, message, "unsupported_parameter")


def _out_of_range(param: str, kind: str, side: str, expected: str, value: Any) -> InvalidParameterError:
    bound = {"below": "min", "above": "max"}[side]
    return InvalidParameterError(
        param,
        f"Invalid '{param}': {kind} {side} {bound}imum value. Expected a value {expected}, "
        f"but got {_show(value)} instead.",
        f"{kind}_{side}_{bound}_value",
    )


def _show(value: Any) -> str:
    """The value as the user wrote it, short; one that is too large to print is named by its size."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
