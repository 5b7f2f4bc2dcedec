"""A request body has a size and a pace."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pellucid.server.errors import ApiError, body_too_large
from pellucid.server.responses import send_error


class BodyLimit:
    """Refuses a body that says it is larger than max_bytes, stops reading one that turns out to be, or that stalls."""

    def __init__(self, app: ASGIApp, max_bytes: int, timeout_s: float) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self.timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if _content_length(scope) > self.max_bytes:
            await send_error(body_too_large(self.max_bytes), scope, send)
            return
        num_bytes, complete = 0, False

        async def receive_limited() -> Message:
            nonlocal num_bytes, complete
            if complete:  # what is awaited from here on is the client's leaving
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), self.timeout_s)
            except asyncio.TimeoutError:
                raise ApiError(
                    408,
                    "The request body did not arrive in time.",
                    code="request_timeout",
                    headers={"connection": "close"},
                ) from None
            num_bytes += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if num_bytes > self.max_bytes:
                raise body_too_large(self.max_bytes)
            return message

        await self.app(scope, receive_limited, send)


def _content_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return 0
