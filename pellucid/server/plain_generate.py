"""POST /generate: text or token ids in, everything known of the output out, without the shape of any vendor."""

from __future__ import annotations

import uuid
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from pellucid.frontend.outputs import CompletionOutput, RequestOutput
from pellucid.server.constraints import check_constraint, constraint_of
from pellucid.server.errors import ApiError, invalid
from pellucid.server.events import DONE, encode
from pellucid.server.generation import Generation, Submission, submit
from pellucid.server.logprobs import TokenTexts, chat_logprobs, prompt_logprobs
from pellucid.server.middleware.context import record_of
from pellucid.server.prompts import generate_prompt
from pellucid.server.responses import json_response
from pellucid.server.routing import add_post
from pellucid.server.sampling import sampling_params
from pellucid.server.schemas.completions import GenerateRequest
from pellucid.server.state import ServerState
from pellucid.server.streaming import COMMENT_PING, EventStream, collect


def add_routes(app: FastAPI) -> None:
    add_post(app, "/generate", GenerateRequest, generate, generates=True, summary="Continue a prompt, plainly")


async def generate(state: ServerState, request: Request, body: GenerateRequest) -> Response:
    if body.stream_options is not None:
        raise invalid("'stream_options' has no use here: every stream ends with the usage.", param="stream_options")
    record = record_of(request.scope)
    llm = state.engine()
    prompt = await generate_prompt(llm, body)
    constraint = constraint_of(body.structured_outputs)
    await check_constraint(llm, constraint)
    params = sampling_params(
        llm.default_sampling,
        body,
        max_tokens=body.max_tokens,
        logprobs=body.logprobs,
        structured_outputs=constraint,
    )
    generation = submit(
        llm,
        Submission([prompt.token_ids], params, "prompt", body.priority or 0, body.cache_salt),
        request_id=f"gen-{uuid.uuid4().hex}",
        metrics=state.metrics,
        record=record,
        final_only=not body.stream,
    )
    writer = GenerateWriter(generation, body, state.texts)
    if body.stream:
        return EventStream(generation, writer, state.options)
    outputs = await collect(generation, request.receive, record)
    if outputs is None:
        return Response()
    return json_response({**writer.shape(outputs[0]), "usage": generation.usage()})


class GenerateWriter:
    """A stream's events have the shape of the whole answer, each with what is new."""

    def __init__(self, generation: Generation, body: GenerateRequest, texts: TokenTexts) -> None:
        self._generation = generation
        self._body = body
        self._texts = texts

    def shape(self, output: RequestOutput) -> dict[str, Any]:
        shaped: dict[str, Any] = {
            "id": self._generation.request_id,
            "outputs": [self._choice(choice) for choice in output.outputs],
        }
        if self._body.return_token_ids:
            shaped["prompt_token_ids"] = output.prompt_token_ids
        if output.prompt_logprobs is not None:
            shaped["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs, self._texts)
        return shaped

    def output(self, prompt_index: int, output: RequestOutput) -> bytes:
        return b"data: " + encode(self.shape(output)) + b"\n\n"

    async def end(self) -> bytes:
        last = {"id": self._generation.request_id, "outputs": [], "usage": self._generation.usage()}
        return b"data: " + encode(last) + b"\n\n" + DONE

    def ping(self) -> bytes:
        return COMMENT_PING

    async def error(self, error: ApiError) -> bytes:
        return b"data: " + error.encode() + b"\n\n"

    def _choice(self, choice: CompletionOutput) -> dict[str, Any]:
        shaped: dict[str, Any] = {"index": choice.index, "text": choice.text, "token_ids": choice.token_ids}
        if choice.logprobs is not None:
            shaped["logprobs"] = chat_logprobs(choice.logprobs, self._body.logprobs or 0, self._texts)["content"]
        reason = choice.finish_reason
        shaped["finish_reason"] = None if reason is None else reason.value
        if reason is not None:
            shaped |= {"stop_reason": choice.stop_reason, "seed": choice.seed}
        return shaped
