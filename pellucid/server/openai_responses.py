"""/v1/responses: the routes. What they do is in responses_api, which is imported on the side once the server runs:
the models of OpenAI's package take longer to import than all the rest.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from starlette.responses import Response

from pellucid.server.errors import invalid
from pellucid.server.routing import LazyModel, add_delete, add_get, add_post, add_post_without_body
from pellucid.server.state import ServerState

if TYPE_CHECKING:
    from pellucid.server.responses_api.dialect import Responses
    from pellucid.server.schemas.responses import ResponsesRequest


def _request_model() -> type[ResponsesRequest]:
    from pellucid.server.schemas.responses import ResponsesRequest

    return ResponsesRequest


def add_routes(app: FastAPI) -> None:
    _Routes(app.state.server).add_to(app)


class _Routes:
    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._made: asyncio.Task[Responses] | None = None
        state.on_start.append(self._start)
        state.on_end.append(self._end)

    def add_to(self, app: FastAPI) -> None:
        path = "/v1/responses"
        add_post(app, path, LazyModel("ResponsesRequest", _request_model), self.create_response, generates=True,
                 summary="Answer, and keep the answer for the next request")  # fmt: skip
        add_get(app, path + "/{response_id}", self.retrieve, summary="A stored response")
        add_delete(app, path + "/{response_id}", self.delete, summary="Forget a stored response")
        add_post_without_body(app, path + "/{response_id}/cancel", self.cancel, summary="Stop a background response")
        add_get(app, path + "/{response_id}/input_items", self.input_items, summary="What a response was made from")

    async def create_response(self, state: ServerState, request: Request, body: ResponsesRequest) -> Response:
        return await (await self._dialect()).create(request, body)

    async def retrieve(
        self, response_id: str, request: Request, stream: str | None = None, starting_after: str | None = None
    ) -> Response:
        if stream not in (None, "true", "false"):
            raise invalid("Invalid value for 'stream': expected true or false.", param="stream")
        after = None if starting_after is None else _integer("starting_after", starting_after, 0, 2**31 - 1)
        dialect = await self._dialect()
        return await dialect.retrieve(response_id, stream=stream == "true", starting_after=after)

    async def delete(self, response_id: str) -> Response:
        return await (await self._dialect()).delete(response_id)

    async def cancel(self, response_id: str) -> Response:
        return await (await self._dialect()).cancel(response_id)

    async def input_items(
        self, response_id: str, after: str | None = None, limit: str = "20", order: str = "desc"
    ) -> Response:
        if order not in ("asc", "desc"):
            raise invalid("Invalid value for 'order'. Supported values are: 'asc', 'desc'.", param="order")
        count = _integer("limit", limit, 1, 100)
        return await (await self._dialect()).input_items(response_id, after=after, limit=count, order=order)

    async def _dialect(self) -> Responses:
        if self._made is None:
            self._made = asyncio.create_task(self._make())
        return await asyncio.shield(self._made)

    async def _make(self) -> Responses:
        def load() -> type[Responses]:
            from pellucid.server.responses_api.dialect import Responses

            return Responses

        dialect = (await asyncio.to_thread(load))(self._state)
        await dialect.start()
        return dialect

    async def _start(self) -> None:
        await self._dialect()

    async def _end(self) -> None:
        if self._made is None:
            return
        await asyncio.wait({self._made})
        if self._made.exception() is None:  # what could not be made has been said to whoever asked for it
            await self._made.result().close()


def _integer(name: str, text: str, low: int, high: int) -> int:
    if text.isascii() and text.isdigit() and len(text) < 12 and low <= int(text) <= high:
        return int(text)
    raise invalid(f"Invalid '{name}': expected an integer from {low} to {high}.", param=name)
