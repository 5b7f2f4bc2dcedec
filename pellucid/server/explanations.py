"""GET /explain/...: why a request waited, what a step did, what the prefix cache holds. Numbers, no text of anyone."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from fastapi import FastAPI, Request
from starlette.responses import Response

from pellucid.observability.explain import (
    Explanation,
    UnknownSubjectError,
    explain_cache,
    explain_request,
    explain_step,
)
from pellucid.server.errors import ApiError, invalid, shorten, unavailable
from pellucid.server.responses import json_response
from pellucid.server.routing import add_get
from pellucid.server.state import ServerState

SNAPSHOT_TIMEOUT_S = 10.0


def add_routes(app: FastAPI) -> None:
    state: ServerState = app.state.server

    async def request_story(request_id: str) -> Response:
        return _found(lambda: explain_request(state.observers.history.events(), shorten(request_id, 200)))

    async def step_story(step: str) -> Response:
        if not re.fullmatch(r"[0-9]{1,15}", step):
            raise invalid(f"Invalid 'step': '{shorten(step)}' is not the number of a step.", param="step")
        return _found(lambda: explain_step(state.observers.history.events(), int(step)))

    async def cache_story(request: Request) -> Response:
        try:
            snapshot = await state.engine().watchers.snapshot(SNAPSHOT_TIMEOUT_S)
        except (TimeoutError, asyncio.TimeoutError):
            raise unavailable("The engine does not answer now; its present step takes long.") from None
        return _found(lambda: explain_cache(state.observers.history.events(), snapshot))

    add_get(app, "/explain/requests/{request_id}", request_story, summary="The story of a request, in sentences")
    add_get(app, "/explain/steps/{step}", step_story, summary="What a step computed, and what held others back")
    add_get(app, "/explain/cache", cache_story, summary="What the prefix cache holds, how often it helped")


def _found(explain: Callable[[], Explanation]) -> Response:
    try:
        explanation = explain()
    except UnknownSubjectError as error:
        message = str(error)
        raise ApiError(404, message[:1].upper() + message[1:] + ".", code="not_found") from None
    return json_response(
        {
            "object": "explanation",
            "subject": explanation.subject,
            "lines": [{"time": line.time, "text": line.text} for line in explanation.lines],
            "text": explanation.text(),
        }
    )
