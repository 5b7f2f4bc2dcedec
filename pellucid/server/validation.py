"""A request body from bytes to a checked model, with every failure in OpenAI's words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from pellucid.server.errors import ApiError, invalid, shorten

# the decoder takes the lone half for an early end of the data and says so
_HALF_A_PAIR = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")

Model = TypeVar("Model", bound=BaseModel)

_KINDS: dict[str, str] = {
    "string_type": "a string",
    "string_sub_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing_size": "a 64-bit integer",
    "float_type": "a number",
    "bool_type": "a boolean",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "none_required": "null",
    "wrong_type": "something else",  # ours: its context says what is wanted
}


async def read_body(request: Request, model: type[Model], *, max_depth: int) -> Model:
    """Raises ApiError: 415 for another content type, 400 for what is not JSON or not what `model` says."""
    content_type = request.headers.get("content-type", "")
    subtype = content_type.partition(";")[0].strip().lower()
    # a page in a browser can send text/plain to a server on this machine without asking first, but not this
    if subtype != "application/json" and not (subtype.startswith("application/") and subtype.endswith("+json")):
        raise ApiError(
            415,
            f"Unsupported content type: '{shorten(content_type)}'. This API method only accepts 'application/json' "
            "requests, but you specified the header 'Content-Type: "
            f"{shorten(content_type)}'.",
            code="unsupported_content_type",
        )
    return parse_body(await request.body(), model, max_depth=max_depth)


def parse_body(raw: bytes, model: type[Model], *, max_depth: int) -> Model:
    try:
        value = msgspec.json.decode(raw)
        check_depth(value, max_depth)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        detail = str(error)
        if isinstance(error, RecursionError):
            detail = "it is nested too deeply"
        elif _HALF_A_PAIR.search(raw):
            detail = "it holds half of a surrogate pair, or ends early"
        message = f"We could not parse the JSON body of your request: {shorten(detail, 200)}."
        raise invalid(message, code=None) from None
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise to_api_error(error.errors(include_url=False), value) from None


def check_depth(value: Any, max_depth: int) -> None:
    """Raises RecursionError where containers are nested deeper than max_depth."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(max_depth):
        if not level:
            return
        children = (child for item in level for child in (item.values() if isinstance(item, dict) else item))
        level = [child for child in children if isinstance(child, (dict, list))]
    if level:
        raise RecursionError


def to_api_error(errors: Sequence[Any], value: Any) -> ApiError:
    """One error, as OpenAI gives one: of the first field that is wrong, the most deeply placed fault.

    A union fails once per member, so that several of pydantic's errors can mean one mistake; the member that the
    value came furthest with is the one that was meant.
    """
    placed = [(_place(error, value), error) for error in errors]
    first_field = placed[0][0][:1]
    group = [item for item in placed if item[0][:1] == first_field]
    deepest = max(len(place) for place, _ in group)
    group = [item for item in group if len(item[0]) == deepest]
    for place, error in group:
        if error["type"] not in _KINDS:  # the right kind, and yet wrong
            return _ERRORS.get(error["type"], _other)(error, _param(place))
    place = group[0][0]
    return _wrong_type([error for other, error in group if other == place], _param(place))


def _place(error: Any, value: Any) -> tuple[str | int, ...]:
    """Pydantic's location without the names of the union members that it puts between the keys."""
    place: list[str | int] = []
    location = error["loc"]
    for i, step in enumerate(location):
        is_missing_key = i == len(location) - 1 and error["type"] == "missing"
        if isinstance(value, dict) and (step in value or is_missing_key):
            place.append(step)
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            place.append(step)
            value = value[step]
    context = error.get("ctx", {})
    if error["type"] in ("union_tag_invalid", "union_tag_not_found"):
        discriminator = context["discriminator"].strip("'")
        place.append("type" if discriminator.endswith("()") else discriminator)  # a function of ours reads the type
    return (*place, *context.get("place", ()))


def _input(error: Any) -> Any:
    """The value that is wrong."""
    value = error["input"]
    for step in error.get("ctx", {}).get("place", ()):
        value = value[step]
    return value


def _param(place: tuple[str | int, ...]) -> str | None:
    """("messages", 0, "role") -> messages[0].role"""
    text = ""
    for step in place:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return shorten(text) or None


def _kind_of(value: Any) -> str:
    if value is None:
        return "null"
    kinds: dict[type, str] = {
        bool: "a boolean",
        int: "an integer",
        float: "a decimal",
        str: "a string",
        list: "an array",
    }
    return kinds.get(type(value), "an object")


def _wrong_type(errors: Sequence[Any], param: str | None) -> ApiError:
    expected = list(dict.fromkeys(error.get("ctx", {}).get("wanted") or _KINDS[error["type"]] for error in errors))
    wanted = expected[0] if len(expected) == 1 else f"one of {', '.join(expected[:-1])} or {expected[-1]}"
    got = _kind_of(_input(errors[0]))
    if param is None:
        return invalid(f"Invalid type for the request body: expected {wanted}, but got {got} instead.",
                       code="invalid_type")  # fmt: skip
    message = f"Invalid type for '{param}': expected {wanted}, but got {got} instead."
    return invalid(message, code="invalid_type", param=param)


def _missing(error: Any, param: str | None) -> ApiError:
    return invalid(f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param)


def _unknown(error: Any, param: str | None) -> ApiError:
    return invalid(f"Unknown parameter: '{param}'.", code="unknown_parameter", param=param)


def _choice(error: Any, param: str | None) -> ApiError:
    context = error["ctx"]
    supported = context.get("expected") or context["expected_tags"]
    if error["type"] == "union_tag_invalid":
        got = context["tag"]
    else:
        got = _as_json(error["input"])
        supported = supported.replace(" or ", ", ").replace("False", "false")
    message = f"Invalid value: '{shorten(got)}'. Supported values are: {supported}."
    return invalid(message, param=param)


def _as_json(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _bound(relation: str, key: str, side: str) -> Callable[[Any, str | None], ApiError]:
    def convert(error: Any, param: str | None) -> ApiError:
        limit, got = error["ctx"][key], _input(error)
        kind = "integer" if isinstance(got, int) and isinstance(limit, int) else "decimal"
        message = (
            f"Invalid '{param}': {kind} {side} {'minimum' if side == 'below' else 'maximum'} value. "
            f"Expected a value {relation} {limit}, but got {shorten(str(got))} instead."
        )
        code = f"{kind}_{side}_{'min' if side == 'below' else 'max'}_value"
        return invalid(message, code=code, param=param)

    return convert


def _too_short(error: Any, param: str | None) -> ApiError:
    limit, what = error["ctx"]["min_length"], "string" if isinstance(_input(error), str) else "array"
    message = (
        f"Invalid '{param}': empty {what}. Expected {_a(what)} with minimum length {limit}, "
        f"but got an empty {what} instead."
    )
    return invalid(message, code=f"empty_{what}", param=param)


def _too_long(error: Any, param: str | None) -> ApiError:
    limit, got = error["ctx"]["max_length"], error["input"]
    what = "string" if isinstance(got, str) else "object" if isinstance(got, dict) else "array"
    message = (
        f"Invalid '{param}': {what} too long. Expected {_a(what)} with maximum length {limit}, "
        f"but got {_a(what)} with length {len(got)} instead."
    )
    return invalid(message, code=f"{what}_above_max_length", param=param)


def _a(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


def _other(error: Any, param: str | None) -> ApiError:
    message = f"Invalid '{param}': {error['msg']}." if param else f"Invalid request: {error['msg']}."
    return invalid(message, param=param)


_ERRORS: dict[str, Callable[[Any, str | None], ApiError]] = {
    "missing": _missing,
    "union_tag_not_found": _missing,
    "extra_forbidden": _unknown,
    "union_tag_invalid": _choice,
    "literal_error": _choice,
    "greater_than": _bound(">", "gt", "below"),
    "greater_than_equal": _bound(">=", "ge", "below"),
    "less_than": _bound("<", "lt", "above"),
    "less_than_equal": _bound("<=", "le", "above"),
    "too_short": _too_short,
    "string_too_short": _too_short,
    "too_long": _too_long,
    "string_too_long": _too_long,
}
