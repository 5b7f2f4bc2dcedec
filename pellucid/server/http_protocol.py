"""uvicorn's HTTP protocol with what it leaves open.

A bound on the head of a request in bytes and in time, errors in our shape before there is a request at all, and a way
to cut off a client that does not read.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from pellucid.server.errors import ApiError

# In scope["state"], functions:
CUT_OFF = "pellucid.cut_off"  # closes the connection and drops what is unsent
IS_FULL = "pellucid.is_full"  # whether the next write would wait for the client to read


def limited_protocol(*, max_head_bytes: int, head_timeout_s: float) -> type[asyncio.Protocol]:
    """The protocol class for uvicorn's `http` setting."""

    class LimitedHttpProtocol(HttpToolsProtocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            self._head_bytes = 0
            self._in_head = True
            self._too_large = False
            self._head_timer = self.loop.call_later(head_timeout_s, self._head_timed_out)
            super().connection_made(transport)

        def connection_lost(self, exc: Exception | None) -> None:
            self._head_timer.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._in_head and not self.transport.is_closing():
                self._head_bytes += len(data)  # whatever the parser has made of it so far
                if self._head_bytes > max_head_bytes:
                    self._refuse_head()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._in_head, self._head_bytes = True, 0
            self._head_timer.cancel()
            self._head_timer = self.loop.call_later(head_timeout_s, self._head_timed_out)
            self.scope["state"] |= {CUT_OFF: self.transport.abort, IS_FULL: self._is_full}

        def on_headers_complete(self) -> None:
            self._in_head = False
            self._head_timer.cancel()
            if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > max_head_bytes:
                self._too_large = True
                raise ValueError("request head too large")  # the parser stops, and calls send_400_response
            super().on_headers_complete()

        def send_400_response(self, msg: str) -> None:
            if self._too_large:
                self._refuse_head()
            else:
                self._write_error(ApiError(400, msg))

        def _refuse_head(self) -> None:
            error = ApiError(
                431, f"The head of the request is larger than {max_head_bytes} bytes.", code="head_too_large"
            )
            self._write_error(error)

        def _is_full(self) -> bool:
            return self.flow.write_paused

        def _head_timed_out(self) -> None:
            if not self.transport.is_closing():
                self.transport.close()

        def _write_error(self, error: ApiError) -> None:
            if self.cycle is not None and not self.cycle.response_complete:
                self.transport.close()  # an earlier request of this connection is still being answered
                return
            body = error.encode()
            head: list[Any] = [STATUS_LINE[error.status], b"content-type: application/json\r\nconnection: close\r\n"]
            head += [b"content-length: ", str(len(body)).encode(), b"\r\n\r\n", body]
            self.transport.write(b"".join(head))
            self.transport.close()

    return LimitedHttpProtocol
