"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's dialect."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from pellucid.core.messages import FinishReason
from pellucid.frontend.answer import AnswerDelta
from pellucid.frontend.outputs import CompletionOutput, RequestOutput
from pellucid.sampling.params import SamplingParams
from pellucid.server.anthropic_blocks import ContentBlocks, Event, whole_blocks
from pellucid.server.anthropic_conversation import conversation_of
from pellucid.server.anthropic_errors import anthropic_body
from pellucid.server.conversation import Prepared
from pellucid.server.errors import ApiError, shorten
from pellucid.server.events import encode
from pellucid.server.generation import Generation, Submission, submit
from pellucid.server.middleware.context import RequestRecord, digest_of, record_of
from pellucid.server.preparation import prepare
from pellucid.server.responses import json_response
from pellucid.server.routing import add_post
from pellucid.server.schemas.messages import (
    AnthropicErrorResponse,
    CountTokensRequest,
    MessagesRequest,
    marks_for_caching,
    unknown_fields,
)
from pellucid.server.state import ServerState
from pellucid.server.streaming import EventStream, collect

logger = logging.getLogger(__name__)

MAX_REMEMBERED_FIELDS = 1024


def add_routes(app: FastAPI) -> None:
    add_post(
        app,
        "/v1/messages",
        MessagesRequest,
        create_message,
        generates=True,
        summary="Answer a conversation, as Anthropic does",
        errors=AnthropicErrorResponse,
    )
    add_post(
        app,
        "/v1/messages/count_tokens",
        CountTokensRequest,
        count_tokens,
        generates=False,
        summary="How many tokens the prompt of a message has",
        errors=AnthropicErrorResponse,
    )


async def create_message(state: ServerState, request: Request, body: MessagesRequest) -> Response:
    record = record_of(request.scope)
    if body.metadata is not None and body.metadata.user_id:
        record.user_digest = digest_of(body.metadata.user_id)
    prepared = await _prepare(state, body)
    llm = state.engine()
    generation = submit(
        llm,
        Submission([prepared.prompt_token_ids], _sampling_params(llm.default_sampling, body, prepared), "messages"),
        request_id=f"msg_{uuid.uuid4().hex[:24]}",
        metrics=state.metrics,
        record=record,
        final_only=not body.stream,
    )
    writer = MessageWriter(state, generation, prepared, record, asks_for_caching=marks_for_caching(body))
    if body.stream:
        return EventStream(generation, writer, state.options)
    outputs = await collect(generation, request.receive, record)
    if outputs is None:
        return Response()
    return json_response(writer.message(outputs[0]))


async def count_tokens(state: ServerState, request: Request, body: CountTokensRequest) -> Response:
    prepared = await _prepare(state, body)
    return json_response({"input_tokens": len(prepared.prompt_token_ids)})


async def _prepare(state: ServerState, body: CountTokensRequest) -> Prepared:
    state.check_model(body.model)
    for name in unknown_fields(body):
        _tell_once(state.unknown_fields, name)
    template = state.engine().tokenizer.chat_template
    return await prepare(state, conversation_of(body, takes_late_system=template.takes_late_system))


def _tell_once(told: set[str], name: str) -> None:
    """An agent sends the same fields with every request. (What clients may fill is bounded, also a set.)"""
    if name not in told and len(told) < MAX_REMEMBERED_FIELDS:
        told.add(name)
        logger.warning("/v1/messages: the field %r is not known here, and is ignored", shorten(name))


def _sampling_params(defaults: Mapping[str, float], body: MessagesRequest, prepared: Prepared) -> SamplingParams:
    given = {name: getattr(body, name) for name in ("temperature", "top_p", "top_k")}
    values: dict[str, Any] = {**defaults, **{name: value for name, value in given.items() if value is not None}}
    params = SamplingParams(max_tokens=body.max_tokens, stop=tuple(body.stop_sequences or ()), **values)
    return prepared.applied_to(params)


class MessageWriter:
    """message_start, ping, blocks, message_delta, message_stop; or all of it as one message."""

    def __init__(
        self,
        state: ServerState,
        generation: Generation,
        prepared: Prepared,
        record: RequestRecord,
        *,
        asks_for_caching: bool,
    ) -> None:
        self._generation = generation
        self._model = state.model_name
        self._parser = prepared.parser()
        self._request_id = record.request_id
        caches = asks_for_caching and state.ready.details.get("enable_prefix_caching") != "False"
        self._cached_block = state.ready.block_size if caches else 0
        self._blocks = ContentBlocks()
        self._started = False
        self._ending: dict[str, Any] = {"stop_reason": None, "stop_sequence": None}

    def message(self, output: RequestOutput) -> dict[str, Any]:
        content = whole_blocks(self._read(output.outputs[0]))
        return {**self._head(), "content": content, **self._ending, "usage": self._usage()}

    def output(self, prompt_index: int, output: RequestOutput) -> bytes:
        events: list[Event] = []
        if not self._started:  # not before the first token: only then is it known what came from the cache
            self._started = True
            message = {**self._head(), "content": [], **self._ending, "usage": {**self._usage(), "output_tokens": 0}}
            events += [{"type": "message_start", "message": message}, {"type": "ping"}]
        for choice in output.outputs:
            events += self._read(choice)
        return b"".join(map(_event, events))

    async def end(self) -> bytes:
        last = {"type": "message_delta", "delta": self._ending, "usage": self._usage()}
        return _event(last) + _event({"type": "message_stop"})

    def ping(self) -> bytes:
        return _event({"type": "ping"})

    async def error(self, error: ApiError) -> bytes:
        return _event(anthropic_body(error, self._request_id))

    def _read(self, choice: CompletionOutput) -> list[Event]:
        events = self._say(self._parser.push(choice.text)) if choice.text else []
        if choice.finish_reason is not None:
            events += self._say(self._parser.finish())
            events += self._blocks.finish()
            self._ending = self._why(choice)
        return events

    def _say(self, deltas: Sequence[AnswerDelta]) -> list[Event]:
        return [event for delta in deltas for event in self._blocks.push(delta)]

    def _why(self, choice: CompletionOutput) -> dict[str, Any]:
        if choice.finish_reason is FinishReason.LENGTH:
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        if self._blocks.has_tool_use and not self._parser.in_call:  # one that was cut off is no call to make
            return {"stop_reason": "tool_use", "stop_sequence": None}
        if isinstance(choice.stop_reason, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": choice.stop_reason}
        return {"stop_reason": "end_turn", "stop_sequence": None}

    def _head(self) -> dict[str, Any]:
        return {"id": self._generation.request_id, "type": "message", "role": "assistant", "model": self._model}

    def _usage(self) -> dict[str, Any]:
        """The three kinds of input add up to the prompt: read from the cache, newly kept on request, and the rest."""
        usage = self._generation.usage()
        num_prompt, num_read = usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
        num_kept = max(0, num_prompt // self._cached_block * self._cached_block - num_read) if self._cached_block else 0
        return {
            "input_tokens": num_prompt - num_read - num_kept,
            "cache_creation_input_tokens": num_kept,
            "cache_read_input_tokens": num_read,
            "output_tokens": usage["completion_tokens"],
            "service_tier": "standard",
        }


def _event(event: Event) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), encode(event))
