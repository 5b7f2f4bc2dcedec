"""POST /v1/chat/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from pellucid.frontend.answer import AnswerDelta
from pellucid.frontend.outputs import CompletionOutput, RequestOutput
from pellucid.server.constraints import constraint_of
from pellucid.server.conversation import Prepared
from pellucid.server.errors import invalid
from pellucid.server.events import ChunkWriter, encode
from pellucid.server.generation import Generation, Submission, submit
from pellucid.server.logprobs import TokenTexts, chat_logprobs, prompt_logprobs
from pellucid.server.middleware.context import digest_of, record_of
from pellucid.server.openai_answer import ChatAnswer, chunk_deltas
from pellucid.server.preparation import check_thinking_budget, prepare
from pellucid.server.prompts import conversation_of
from pellucid.server.responses import json_response
from pellucid.server.routing import add_post
from pellucid.server.sampling import sampling_params
from pellucid.server.schemas.chat import ChatCompletionRequest
from pellucid.server.schemas.structured import JsonSchemaFormat
from pellucid.server.state import ServerState
from pellucid.server.streaming import EventStream, collect
from pellucid.server.tool_choice import tool_choice_of, tools_of


def add_routes(app: FastAPI) -> None:
    add_post(
        app,
        "/v1/chat/completions",
        ChatCompletionRequest,
        create_chat_completion,
        generates=True,
        summary="Answer a conversation",
    )


async def create_chat_completion(state: ServerState, request: Request, body: ChatCompletionRequest) -> Response:
    state.check_model(body.model)
    _check(body)
    check_thinking_budget(state, body.thinking_token_budget)
    record = record_of(request.scope)
    if user := body.safety_identifier or body.user:
        record.user_digest = digest_of(user)
    llm = state.engine()
    tools = tools_of(body.tools)
    conversation = replace(
        conversation_of(body, truncate_to=body.truncate_prompt_tokens, reasoning_effort=body.reasoning_effort),
        tools=tools,
        tool_choice=tool_choice_of(body, tools),
        thinking_budget=body.thinking_token_budget,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        **_constraint(body),
    )
    prepared = await prepare(state, conversation)
    max_tokens = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    params = sampling_params(
        llm.default_sampling,
        body,
        max_tokens=max_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    params = prepared.applied_to(params)
    generation = submit(
        llm,
        Submission([prepared.prompt_token_ids], params, "messages", body.priority or 0, body.cache_salt),
        request_id=f"chatcmpl-{uuid.uuid4().hex}",
        metrics=state.metrics,
        record=record,
        final_only=not body.stream,
    )
    head = {
        "id": generation.request_id,
        "object": "chat.completion.chunk" if body.stream else "chat.completion",
        "created": int(time.time()),
        "model": state.model_name,
        "system_fingerprint": state.fingerprint,
    }
    if body.stream:
        return EventStream(generation, ChatWriter(generation, head, body, state.texts, prepared), state.options)
    outputs = await collect(generation, request.receive, record)
    if outputs is None:
        return Response()
    return json_response(_completion(head, generation, outputs[0], body, state.texts, prepared))


def _constraint(body: ChatCompletionRequest) -> dict[str, Any]:
    """Fields of the Conversation."""
    response_format = body.response_format
    constraint = None if response_format is None else response_format.constraint()
    if constraint is None:
        return {"constraint": constraint_of(body.structured_outputs)}
    if body.structured_outputs is not None:
        raise invalid("'structured_outputs' and 'response_format' cannot both be given.", param="structured_outputs")
    source = "response_format"
    if isinstance(response_format, JsonSchemaFormat):
        source += f" '{response_format.json_schema.name}'"
    return {"constraint": constraint, "constraint_source": source}


def _check(body: ChatCompletionRequest) -> None:
    """What a schema can't say. Raises ApiError."""
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise invalid(
            "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.", param="max_tokens"
        )
    if body.stream_options is not None and not body.stream:
        raise invalid(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            code=None,
            param="stream_options",
        )
    if body.top_logprobs and not body.logprobs:
        raise invalid("'top_logprobs' is only allowed when 'logprobs' is true.", param="top_logprobs")
    if body.add_generation_prompt and body.continue_final_message:
        raise invalid(
            "'add_generation_prompt' and 'continue_final_message' cannot both be true.", param="continue_final_message"
        )


def _completion(
    head: dict[str, Any],
    generation: Generation,
    output: RequestOutput,
    body: ChatCompletionRequest,
    texts: TokenTexts,
    prepared: Prepared,
) -> dict[str, Any]:
    choices = []
    for choice in output.outputs:
        assert choice.finish_reason is not None
        answer = ChatAnswer(prepared.parser())
        shaped = {
            "index": choice.index,
            "message": answer.whole(choice.text),
            "logprobs": _logprobs(choice, body, texts),
            "finish_reason": answer.finish_reason(choice.finish_reason),
            "stop_reason": choice.stop_reason,
            "seed": choice.seed,
        }
        if body.return_token_ids:
            shaped |= {"token_ids": choice.token_ids, "prompt_token_ids": output.prompt_token_ids}
        choices.append(shaped)
    completion = {**head, "choices": choices, "usage": generation.usage(), "service_tier": "default"}
    if output.prompt_logprobs is not None:
        completion["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs, texts)
    if body.return_token_ids:
        completion["prompt_token_ids"] = output.prompt_token_ids
    if body.metadata is not None:
        completion["metadata"] = body.metadata
    return completion


def _logprobs(choice: CompletionOutput, body: ChatCompletionRequest, texts: TokenTexts) -> dict[str, Any] | None:
    if choice.logprobs is None:
        return None
    return chat_logprobs(choice.logprobs, body.top_logprobs or 0, texts)


class ChatWriter(ChunkWriter):
    """chat.completion.chunk: the role first and alone, then text as it comes, then why it ended."""

    def __init__(
        self,
        generation: Generation,
        head: dict[str, Any],
        body: ChatCompletionRequest,
        texts: TokenTexts,
        prepared: Prepared,
    ) -> None:
        options = body.stream_options
        super().__init__(generation, head, include_usage=bool(options and options.include_usage))
        self._body = body
        self._texts = texts
        self._plain = body.logprobs is not True and not body.return_token_ids
        self._parser = prepared.parser
        self._answers: dict[int, ChatAnswer] = {}
        self._told_prompt = False

    def choices(self, prompt_index: int, output: RequestOutput) -> list[bytes]:
        chunks: list[bytes] = []
        for choice in output.outputs:
            answer = self._answers.get(choice.index)
            if answer is None:
                answer = self._answers[choice.index] = ChatAnswer(self._parser())
                chunks.append(self._first(choice, output))
            deltas = answer.push(choice.text)
            if self._plain:
                chunks += self._deltas(choice.index, deltas)
            elif choice.text or choice.token_ids:
                chunks += self._detailed(choice, deltas)
            if choice.finish_reason is not None:
                chunks += self._deltas(choice.index, answer.finish())
                chunks.append(self._last(choice, answer.finish_reason(choice.finish_reason)))
        return chunks

    def _deltas(self, index: int, deltas: Sequence[AnswerDelta]) -> list[bytes]:
        if len(deltas) == 1 and not deltas[0].reasoning and not deltas[0].tool_calls:  # the usual case
            return [
                b'{"index":%d,"delta":{"content":%b},"logprobs":null,"finish_reason":null}'
                % (index, encode(deltas[0].content))
            ]
        return [
            encode({"index": index, "delta": shaped, "logprobs": None, "finish_reason": None})
            for shaped in chunk_deltas(deltas)
        ]

    def _first(self, choice: CompletionOutput, output: RequestOutput) -> bytes:
        delta = {"role": "assistant", "content": ""}
        chunk: dict[str, Any] = {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}
        if self._body.return_token_ids:
            chunk["prompt_token_ids"] = output.prompt_token_ids
        if output.prompt_logprobs is not None and not self._told_prompt:
            chunk["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs, self._texts)
        self._told_prompt = True
        return encode(chunk)

    def _detailed(self, choice: CompletionOutput, deltas: Sequence[AnswerDelta]) -> list[bytes]:
        """What is known of the tokens comes with the first of the chunks that their text makes."""
        first, *others = chunk_deltas(deltas) or [{"content": ""}]
        chunk = {
            "index": choice.index,
            "delta": first,
            "logprobs": _logprobs(choice, self._body, self._texts),
            "finish_reason": None,
        }
        if self._body.return_token_ids:
            chunk["token_ids"] = choice.token_ids
        rest = [{"index": choice.index, "delta": shaped, "logprobs": None, "finish_reason": None} for shaped in others]
        return [encode(chunk), *map(encode, rest)]

    def _last(self, choice: CompletionOutput, finish_reason: str) -> bytes:
        return encode(
            {
                "index": choice.index,
                "delta": {},
                "logprobs": None,
                "finish_reason": finish_reason,
                "stop_reason": choice.stop_reason,
                "seed": choice.seed,
            }
        )
