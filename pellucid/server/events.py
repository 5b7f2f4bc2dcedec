"""What the streams of the OpenAI dialects have in common: one JSON object a data line, built around prepared bytes."""

from __future__ import annotations

from typing import Any

import msgspec

from pellucid.frontend.outputs import RequestOutput
from pellucid.server.errors import ApiError
from pellucid.server.generation import Generation
from pellucid.server.streaming import COMMENT_PING

encode = msgspec.json.encode
DONE = b"data: [DONE]\n\n"


class ChunkWriter:
    """A dialect gives `choices`: the JSON of the choice of each chunk that an output makes.

    head: the fields that every chunk repeats (id, object, created, model). Where usage is asked for, every chunk has
    the key and only the last one, without choices, fills it.
    """

    def __init__(self, generation: Generation, head: dict[str, Any], *, include_usage: bool) -> None:
        self._generation = generation
        self._include_usage = include_usage
        self._before = b"data: " + encode(head)[:-1] + b',"choices":['
        self._after = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"

    def choices(self, prompt_index: int, output: RequestOutput) -> list[bytes]:
        raise NotImplementedError

    def output(self, prompt_index: int, output: RequestOutput) -> bytes:
        before, after = self._before, self._after
        choices = self.choices(prompt_index, output)
        if len(choices) == 1:
            return before + choices[0] + after
        return b"".join([before + choice + after for choice in choices])

    def usage(self) -> dict[str, Any]:
        return self._generation.usage()

    async def end(self) -> bytes:
        if not self._include_usage:
            return DONE
        return self._before + b'],"usage":' + encode(self.usage()) + b"}\n\n" + DONE

    def ping(self) -> bytes:
        return COMMENT_PING

    async def error(self, error: ApiError) -> bytes:
        """No [DONE] after it: the text is not whole, and a client must not take it so."""
        return b"data: " + error.encode() + b"\n\n"
