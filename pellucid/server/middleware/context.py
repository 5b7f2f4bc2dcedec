"""The outermost layer: an id for every request, an answer to every failure, and the logs."""

from __future__ import annotations

import hashlib
import sys
import time
import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TextIO

import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pellucid.observability.lines import write_line
from pellucid.observability.otel import RequestSpan, SpanExporter
from pellucid.server.anthropic_errors import is_anthropic
from pellucid.server.errors import ApiError, internal
from pellucid.server.middleware.request_log import Content, RequestLog
from pellucid.server.responses import send_error

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
CLIENT_LEFT = 499  # for the log only: nobody is there to read it


@dataclass
class RequestRecord:
    """What is known of a request when it ends. Holds no text of the client's: that goes to a log.

    on_end: called once, when the response is sent and whoever called `hold` has called `release`.
    """

    request_id: str
    method: str
    start: float
    status: int | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    finish_reasons: list[str] = field(default_factory=list)
    user_digest: str | None = None
    send: Send | None = None  # past the layers that only look at the start of a response
    send_span: Callable[[RequestSpan], None] | None = None  # where traces are exported
    outcome: str | None = None  # where the status does not say it: client_left, write_timeout, stream_error
    on_end: Callable[[], None] = lambda: None
    num_holders: int = 1  # the response itself

    def hold(self) -> None:
        """The request goes on after its response: it has not ended before `release`."""
        self.num_holders += 1

    def release(self) -> None:
        self.num_holders -= 1
        if not self.num_holders:
            self.on_end()


def record_of(scope: Scope) -> RequestRecord:
    return scope["state"]["record"]


def digest_of(text: str) -> str:
    """Enough to tell the requests of one user from another's, and nothing of who it is."""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=6).hexdigest()


class RequestContext:
    def __init__(
        self,
        app: ASGIApp,
        access_log: TextIO | None = None,
        request_log: RequestLog | None = None,
        spans: SpanExporter | None = None,
    ) -> None:
        self.app = app
        self.spans = spans
        self.access_log = access_log
        self.request_log = request_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in METHODS else "OTHER"
        record = RequestRecord(f"req_{uuid.uuid4().hex}", method, time.monotonic())
        scope.setdefault("state", {})["record"] = record
        if self.spans is not None:
            record.send_span = partial(self.spans.export, caller=self.spans.caller(scope["headers"]))
        names = (b"x-request-id", b"request-id") if is_anthropic(scope["raw_path"]) else (b"x-request-id",)
        content = self.request_log.listen() if self.request_log is not None else None
        if content is not None:
            receive, send = content.of_request(receive), content.of_response(send)
        record.send = send
        record.on_end = partial(self._log, record, scope, content)
        id_headers = [(name, record.request_id.encode()) for name in names]

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message["headers"] = [*message.get("headers", ()), *id_headers]
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except ClientDisconnect:
            record.outcome = "client_left"
        except Exception as error:
            await self._answer_failure(error, record, scope, send_with_id)
        finally:
            record.release()

    def _log(self, record: RequestRecord, scope: Scope, content: Content | None) -> None:
        line = _line(record, scope)
        if self.access_log is not None:
            write_line(msgspec.json.encode(line).decode(), self.access_log)
        if self.request_log is not None:
            self.request_log.write(line, content)

    async def _answer_failure(self, error: Exception, record: RequestRecord, scope: Scope, send: Send) -> None:
        if not isinstance(error, ApiError):
            line = {"request_id": record.request_id, "unexpected": "".join(traceback.format_exception(error))}
            write_line(msgspec.json.encode(line).decode(), sys.stderr)
            error = internal()
        if record.status is None:
            await send_error(error, scope, send)
        else:
            record.outcome = "stream_error"  # too late for another status; the connection is closed unfinished


def _line(record: RequestRecord, scope: Scope) -> dict[str, Any]:
    """What both logs say of a request: nothing of its words."""
    return {
        "time": round(time.time(), 3),
        "request_id": record.request_id,
        "method": record.method,
        "route": getattr(scope.get("route"), "path", None),  # the route's own words, never the client's
        "status": record.status if record.status is not None else CLIENT_LEFT,
        "duration_ms": round((time.monotonic() - record.start) * 1000, 1),
        "prompt_tokens": record.num_prompt_tokens,
        "cached_tokens": record.num_cached_tokens,
        "output_tokens": record.num_output_tokens,
        "finish_reasons": record.finish_reasons,
        "user": record.user_digest,
        "outcome": record.outcome,
    }
