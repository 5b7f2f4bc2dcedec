"""The text of a custom tool's call, out of the JSON arguments that the model writes, as it writes them."""

from __future__ import annotations

import json
import re

from pellucid.server.responses_api.tools import INPUT

_BEGIN = re.compile(rf'^\s*\{{\s*"{INPUT}"\s*:\s*"')
# what a piece may end with and not be whole: a backslash, part of \\uXXXX, the first half of a pair of them
_TAIL = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?$|\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?$")
_CHUNK = re.compile(r'(?:[^"\\]|\\.)*', re.DOTALL)


class CustomInput:
    """Pieces of `{"input": "TEXT"}` in, pieces of TEXT out. Whatever the pieces, their sum is the same.

    Arguments of another shape (a model may write anything where nothing constrains it) are given as they
    are, at the end.
    """

    def __init__(self) -> None:
        self._arguments: list[str] = []
        self._pending = ""  # not decoded yet
        self._begun = False
        self._ended = False

    def push(self, piece: str) -> str:
        self._arguments.append(piece)
        if self._ended:
            return ""
        self._pending += piece
        if not self._begun:
            begin = _BEGIN.match(self._pending)
            if begin is None:
                return ""
            self._begun = True
            self._pending = self._pending[begin.end() :]
        return self._decode()

    def finish(self) -> str:
        if self._begun:
            return ""
        return "".join(self._arguments)

    def _decode(self) -> str:
        pending = self._pending
        held = _TAIL.search(pending) if _is_open(pending) else None
        usable = pending if held is None else pending[: held.start()]
        chunk = _CHUNK.match(usable)
        assert chunk is not None  # it matches the empty text too
        raw = chunk[0]
        if len(raw) < len(usable) and usable[len(raw)] == '"':
            self._ended = True
            self._pending = ""
        else:
            self._pending = pending[len(raw) :]
        try:
            text: str = json.loads(f'"{raw}"', strict=False)
        except ValueError:  # an escape that JSON does not have
            text = raw
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # half of a pair is no character


def _is_open(pending: str) -> bool:
    """Does an escape begin at the end? A backslash that an even number of others precede begins one."""
    match = _TAIL.search(pending)
    if match is None:
        return False
    before = pending[: match.start()]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 0
