"""Where in an output the reasoning ends and the content begins: by its text, token by token. Torch-free."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

from pellucid.sampling.params import ReasoningParams


class Phase(enum.Enum):
    """OPENING: the output may still turn out to begin with the reasoning's marker."""

    OPENING = enum.auto()
    REASONING = enum.auto()
    CONTENT = enum.auto()


class Marker:
    """Looks for a sequence of bytes in a stream of them (Knuth, Morris and Pratt 1977)."""

    def __init__(self, marker: bytes) -> None:
        if not marker:
            raise ValueError("a marker must not be empty")
        self.marker = marker
        self.borders = [0]  # of each prefix: how much of it is at its end again
        for i in range(1, len(marker)):
            length = self.borders[-1]
            while length and marker[i] != marker[length]:
                length = self.borders[length - 1]
            self.borders.append(length + (marker[i] == marker[length]))

    def advance(self, matched: int, data: bytes) -> tuple[int, int | None]:
        """matched: bytes of the marker at the end of what came before. Returns the same after data, and the index in
        data just past the marker where it is complete."""
        for i, byte in enumerate(data):
            while matched and byte != self.marker[matched]:
                matched = self.borders[matched - 1]
            matched += byte == self.marker[matched]
            if matched == len(self.marker):
                return 0, i + 1
        return matched, None


class ReasoningTracker:
    """One output's. What it says follows from the tokens it was told, so that it can be made anew at any time.

    num_tokens: of reasoning so far, without the marker that begins it.
    """

    def __init__(self, params: ReasoningParams, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._start = _spell(params.start_token_ids, token_bytes)
        self.end = Marker(_spell(params.end_token_ids, token_bytes))
        self.matched = 0  # bytes of the end marker
        self.phase = Phase.REASONING if params.starts_inside else Phase.OPENING
        self.num_tokens = 0
        self._opening = b""

    def push(self, token_id: int) -> None:
        """What a token holds beyond the marker that it completes is content already."""
        if self.phase is Phase.OPENING:
            self._open(self._token_bytes(token_id))
        elif self.phase is Phase.REASONING:
            self.num_tokens += 1
            self._reason(self._token_bytes(token_id))

    def _open(self, data: bytes) -> None:
        self._opening += data
        text = self._opening.lstrip()
        if text.startswith(self._start):
            self.phase = Phase.REASONING
            self._reason(text[len(self._start) :])
        elif not self._start.startswith(text):
            self.phase = Phase.CONTENT

    def _reason(self, data: bytes) -> None:
        self.matched, end = self.end.advance(self.matched, data)
        if end is not None:
            self.phase = Phase.CONTENT


def _spell(token_ids: Sequence[int], token_bytes: Callable[[int], bytes]) -> bytes:
    return b"".join(map(token_bytes, token_ids))
