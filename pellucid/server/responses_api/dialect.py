"""What the routes of /v1/responses do. One object per app; it has the store, and the runs without clients."""

from __future__ import annotations

import sys

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pellucid.observability.lines import write_line
from pellucid.server.conversation import JsonObject
from pellucid.server.errors import invalid, shorten
from pellucid.server.generation import Generation, Submission, submit
from pellucid.server.middleware.context import RequestRecord, digest_of, record_of
from pellucid.server.options import ServerOptions
from pellucid.server.responses import json_response
from pellucid.server.responses_api import records
from pellucid.server.responses_api.answer import AnswerReader
from pellucid.server.responses_api.background import Background
from pellucid.server.responses_api.events import ResponseEvents
from pellucid.server.responses_api.items import item_not_found
from pellucid.server.responses_api.keeper import Keeper
from pellucid.server.responses_api.request import Plan, check, make_plan, own_items
from pellucid.server.responses_api.store import ResponseStore, Retention, response_not_found
from pellucid.server.responses_api.streams import KeptEvents, KeptEventsWriter, ResponseWriter
from pellucid.server.responses_api.tables import default_url, parse_url
from pellucid.server.responses_api.truncation import prepare_within
from pellucid.server.schemas.responses import ResponsesRequest
from pellucid.server.state import ServerState
from pellucid.server.streaming import EventStream, collect

WARNING_HEADER = "x-pellucid-warning"
MAX_PAGE = 100


class Responses:
    """store: None where the server keeps no responses."""

    def __init__(self, state: ServerState) -> None:
        options = state.options
        self._state = state
        self.store = _make_store(options)
        if self.store is not None:
            self._keeper = Keeper(self.store, options.response_lease_s)
            self._background = Background(self.store, self._keeper)

    async def start(self) -> None:
        if self.store is not None:
            self._keeper.start()

    async def close(self) -> None:
        """After the engine, so that what it ended is written."""
        if self.store is not None:
            await self._background.close()
            await self._keeper.close()
            await self.store.close()

    # POST ------------------------------------------------------------------------------------------------------------

    async def create(self, request: Request, body: ResponsesRequest) -> Response:
        state = self._state
        state.check_model(body.model)
        record = record_of(request.scope)
        if user := body.safety_identifier or body.user:
            record.user_digest = digest_of(user)
        keeps = check(body, can_store=self.store is not None)
        previous = body.previous_response_id
        history = [] if previous is None else await self.kept().history(previous)
        plan = make_plan(body, state, history=history, items=await self._resolved(own_items(body)), store=keeps)
        prepared = await prepare_within(state, plan)
        generation = submit(
            state.engine(),
            Submission(
                [prepared.prompt_token_ids],
                plan.sampling(state.engine().default_sampling, prepared),
                "input",
                body.priority or 0,
                body.cache_salt,
            ),
            request_id=plan.response["id"],
            metrics=state.metrics,
            record=record,
            final_only=not (body.stream or body.background),
        )
        reader = AnswerReader(
            ResponseEvents(plan.response, plan.toolbox, plan.options),
            prepared.parser(),
            state.engine().tokenizer,
            state.texts,
            plan.num_top_logprobs,
        )
        headers = _warned(plan, record.request_id)
        if body.background:
            return await self._in_background(plan, generation, reader, record, headers)

        async def keep() -> None:
            if keeps:
                await self.kept().insert(plan.response, plan.items)

        if body.stream:
            return EventStream(generation, ResponseWriter(generation, reader, keep), state.options, headers)
        outputs = await collect(generation, request.receive, record)
        if outputs is None:
            return Response()
        reader.take(outputs[0].outputs[0])
        await reader.end(generation.usage())
        await keep()
        return json_response(plan.response, headers=headers)

    async def _in_background(
        self,
        plan: Plan,
        generation: Generation,
        reader: AnswerReader,
        record: RequestRecord,
        headers: dict[str, str],
    ) -> Response:
        store = self.kept()
        is_streamed = bool(plan.body.stream)
        await self._background.start(generation, reader, plan.items, record, keep_events=is_streamed)
        if not is_streamed:
            return json_response({**plan.response, "output": []}, headers=headers)
        return EventStream(KeptEvents(store, plan.response["id"], -1), KeptEventsWriter(), self._state.options, headers)

    async def _resolved(self, items: list[JsonObject]) -> list[JsonObject]:
        """References replaced by what they refer to. Raises ApiError."""
        resolved = []
        for item in items:
            if item["type"] == "item_reference":
                found = await self.store.find_item(item["id"]) if self.store is not None else None
                if found is None:
                    raise item_not_found(item["id"])
                item = found
            resolved.append(item)
        return resolved

    # what is stored --------------------------------------------------------------------------------------------------

    async def retrieve(self, response_id: str, *, stream: bool, starting_after: int | None) -> Response:
        stored = await self.kept().get(response_id)
        if not stream:
            if starting_after is not None:
                raise invalid("'starting_after' is only allowed when 'stream' is true.", param="starting_after")
            return Response(stored.response, media_type="application/json")
        if not stored.has_events:
            message = "Only a response that was created with 'background' and 'stream' can be streamed again."
            raise invalid(message, param="stream")
        after = -1 if starting_after is None else starting_after
        return EventStream(KeptEvents(self.kept(), response_id, after), KeptEventsWriter(), self._state.options)

    async def cancel(self, response_id: str) -> Response:
        stored = await self.kept().get(response_id)
        if not stored.background:
            raise invalid("Cannot cancel a synchronous response.", code=None, param="response_id")
        if stored.is_active:
            await self._background.cancel(response_id)
        return await self.retrieve(response_id, stream=False, starting_after=None)

    async def delete(self, response_id: str) -> Response:
        store = self.kept()
        stored = await store.get(response_id)
        if stored.is_active:
            await self._background.cancel(response_id)
        await store.call(records.delete, [response_id])
        return json_response({"id": response_id, "object": "response", "deleted": True})

    async def input_items(self, response_id: str, *, after: str | None, limit: int, order: str) -> Response:
        """What the response was made from, its own input and the conversation before it."""
        store = self.kept()
        stored = await store.get(response_id)
        items = await store.history(stored.previous_id) if stored.previous_id is not None else []
        items += msgspec.json.decode(stored.input)
        if order == "desc":
            items.reverse()
        start = 0
        if after is not None:
            found = next((i for i, item in enumerate(items) if item["id"] == after), None)
            if found is None:
                raise invalid(f"Item with id '{shorten(after)}' is not one of this response's.", param="after")
            start = found + 1
        page = items[start : start + limit]
        return json_response(
            {
                "object": "list",
                "data": page,
                "first_id": page[0]["id"] if page else None,
                "last_id": page[-1]["id"] if page else None,
                "has_more": start + limit < len(items),
            }
        )

    def kept(self) -> ResponseStore:
        """Raises ApiError (404, as for a response that is not there) where nothing is stored."""
        if self.store is None:
            raise response_not_found("any")
        return self.store


def _make_store(options: ServerOptions) -> ResponseStore | None:
    if options.response_store == "none":
        return None
    url = parse_url(options.response_store or default_url())
    return ResponseStore(url, Retention(options.response_max_count, options.response_max_age_s))


def _warned(plan: Plan, request_id: str) -> dict[str, str]:
    """Says what of the request has no effect, to the client in a header and to the operator in a line."""
    if not plan.toolbox.warnings:
        return {}
    text = "; ".join(plan.toolbox.warnings)
    line = {"request_id": request_id, "warning": text}
    write_line(msgspec.json.encode(line).decode(), sys.stderr)
    return {WARNING_HEADER: text[:2000]}
