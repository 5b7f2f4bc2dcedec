"""The request log: a file with a line of JSON for each request, and, only where it is asked for, what was said."""

from __future__ import annotations

import os
import sys
from typing import Any

import msgspec
from starlette.types import Message, Receive, Send

from pellucid.observability.lines import write_line

MAX_CONTENT_BYTES = 1 << 20  # of a request, and of a response, that a line holds
UNLOGGED = frozenset({"/health", "/metrics"})  # asked for every few seconds, by machines


class _Part:
    """One direction of a request, as far as it is kept."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._num_bytes = 0

    def add(self, piece: bytes) -> None:
        if self._num_bytes < MAX_CONTENT_BYTES:
            self._pieces.append(piece[: MAX_CONTENT_BYTES - self._num_bytes])
        self._num_bytes += len(piece)

    def value(self) -> Any:
        """The JSON it is; a stream, or what is cut off, as text; None where there was nothing."""
        raw = b"".join(self._pieces)
        if self._num_bytes <= MAX_CONTENT_BYTES:
            try:
                return msgspec.json.decode(raw) if raw else None
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                pass
        text = raw.decode("utf-8", "replace")
        return text if self._num_bytes <= MAX_CONTENT_BYTES else f"{text}… ({self._num_bytes} bytes)"


class Content:
    """Listens to both directions of a request, and changes nothing."""

    def __init__(self) -> None:
        self.request = _Part()
        self.response = _Part()

    def of_request(self, receive: Receive) -> Receive:
        async def receive_and_keep() -> Message:
            message = await receive()
            self.request.add(message.get("body", b""))
            return message

        return receive_and_keep

    def of_response(self, send: Send) -> Send:
        async def send_and_keep(message: Message) -> None:
            self.response.add(message.get("body", b""))
            await send(message)

        return send_and_keep


class RequestLog:
    """path: appended to; made for its owner alone, since it may hold what users say. Raises OSError.

    with_content: the bodies too. A disk that takes no more is said once on stderr, and ends no request.
    """

    def __init__(self, path: str, with_content: bool) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._path = path
        self._with_content = with_content
        self._failed = False

    def listen(self) -> Content | None:
        return Content() if self._with_content else None

    def write(self, line: dict[str, Any], content: Content | None) -> None:
        """line: what the access log says of the request."""
        if line["route"] in UNLOGGED:
            return
        if content is not None:
            line = {**line, "request": content.request.value(), "response": content.response.value()}
        data = msgspec.json.encode(line) + b"\n"
        try:
            os.write(self._file, data)
            self._failed = False
        except OSError as error:
            if not self._failed:
                write_line(f"the request log {self._path} can't be written: {error}", sys.stderr)
            self._failed = True
