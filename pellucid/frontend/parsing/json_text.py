"""JSON as it arrives: where a value ends, and its text made fit to be read by others."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pellucid.frontend.parsing.stream import WHITE_SPACE, Steps, TextInput

_OUTSIDE_STRINGS = frozenset('{}[]:,"+-.0123456789eEtruefalsn' + WHITE_SPACE)


class JsonObjectScanner:
    """Follows one object or array from its opening bracket to the one that closes it."""

    def __init__(self) -> None:
        self.is_done = False
        self.is_broken = False  # a character that JSON does not have there
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def scan(self, text: str) -> tuple[int, str]:
        """How many characters of the text belong to the value, and these as valid JSON writes them.

        Control characters within strings, which models write and JSON forbids, come out escaped.
        """
        shown: list[str] = []
        for i, char in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == '"':
                    self._in_string = False
                elif char < " ":
                    shown.append(json.dumps(char)[1:-1])
                    continue
            elif char not in _OUTSIDE_STRINGS:
                self.is_broken = True
                return i, "".join(shown)
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.is_done = True
                    return i + 1, "".join([*shown, char])
            shown.append(char)
        return len(text), "".join(shown)


def read_container(source: TextInput, emit: Callable[[str], None]) -> Steps[bool]:
    """An object or array, whose bracket comes next, to `emit` as it comes. False where it breaks off or is no JSON."""
    scanner = JsonObjectScanner()
    while True:
        count, shown = scanner.scan(source.rest)
        source.take(count)
        emit(shown)
        if scanner.is_done or scanner.is_broken or source.at_end:
            return scanner.is_done
        yield


def read_string(source: TextInput) -> Steps[str | None]:
    """A string, whose quote comes next, decoded; None where it is none."""
    if (yield from source.accept('"')) is None:
        return None
    raw = ""
    escaped = False
    while True:
        char = yield from source.peek()
        if not char:
            return None
        source.take(1)
        if char == '"' and not escaped:
            try:
                return json.loads(f'"{raw}"', strict=False)
            except ValueError:
                return None
        escaped = char == "\\" and not escaped
        raw += char


def copy_string(source: TextInput, emit: Callable[[str], None]) -> Steps[bool]:
    """A string, whose quote comes next, to `emit` as it comes, fit for JSON. False where the text ends within it."""
    emit(source.take(1))
    escaped = False
    while char := (yield from source.peek()):
        source.take(1)
        emit(char if char >= " " else json.dumps(char)[1:-1])
        if char == '"' and not escaped:
            return True
        escaped = char == "\\" and not escaped
    return False


def read_value(source: TextInput) -> Steps[str | None]:
    """Any value as text; None where none comes."""
    char = yield from source.peek()
    if char == '"':
        text = yield from read_string(source)
        return None if text is None else json.dumps(text, ensure_ascii=False)
    if char and char in "{[":
        pieces: list[str] = []
        whole = yield from read_container(source, pieces.append)
        return "".join(pieces) if whole else None
    word = ""
    while (char := (yield from source.peek())) and (char.isalnum() or char in "+-."):
        word += source.take(1)
    return word if is_json(word) else None


def as_json_string(emit: Callable[[str], None]) -> Callable[[str], None]:
    """Text goes on as the inside of a JSON string."""
    return lambda text: emit(json.dumps(text, ensure_ascii=False)[1:-1])


def is_json(text: str) -> bool:
    return kind_of_text(text) is not None


def kind_of_text(text: str) -> str | None:
    """The type of a JSON text; None where it is no JSON. (Python also reads NaN and Infinity.)"""
    try:
        return kind_of(json.loads(text, parse_constant=_no_json))
    except (ValueError, RecursionError):
        return None


def kind_of(value: Any) -> str:
    """What JSON schemas call the type of a value."""
    return _KINDS[type(value)]


_KINDS = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}


def _no_json(word: str) -> None:
    raise ValueError(word)


def object_text(text: str) -> str | None:
    """A JSON value as the arguments of a call: an object, or an object in a string, or nothing; None for others."""
    try:
        value = json.loads(text)
        if isinstance(value, str):
            text = value
            value = json.loads(value) if value.strip() else None
    except (ValueError, RecursionError):
        return None
    if value is None:
        return "{}"
    return text if isinstance(value, dict) else None
