"""Responses as bytes: nothing between an encoded structure and the socket."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Scope, Send

from pellucid.server.anthropic_errors import anthropic_body, is_anthropic
from pellucid.server.errors import ApiError

JSON_TYPE = "application/json"


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, media_type=JSON_TYPE)


def encode_error(error: ApiError, scope: Scope) -> bytes:
    """In the words of the dialect that the path belongs to."""
    if is_anthropic(scope["raw_path"]):
        record = scope.get("state", {}).get("record")
        return msgspec.json.encode(anthropic_body(error, record and record.request_id))
    return error.encode()


def error_response(error: ApiError, scope: Scope) -> Response:
    return Response(encode_error(error, scope), error.status, error.headers, media_type=JSON_TYPE)


async def send_error(error: ApiError, scope: Scope, send: Send) -> None:
    """For where there is no route to return a response from."""
    body = b"" if scope["method"] == "HEAD" else encode_error(error, scope)
    headers = [(name.encode(), value.encode()) for name, value in error.headers.items()]
    headers += [(b"content-type", JSON_TYPE.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
