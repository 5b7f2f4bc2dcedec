"""POST /v1/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from starlette.responses import Response

from pellucid.core.messages import TokenLogprob
from pellucid.frontend.async_llm import AsyncLLM
from pellucid.frontend.outputs import CompletionOutput, RequestOutput
from pellucid.server.constraints import check_constraint, constraint_of
from pellucid.server.errors import invalid, unsupported
from pellucid.server.events import ChunkWriter, encode
from pellucid.server.generation import Generation, Submission, submit
from pellucid.server.logprobs import CompletionLogprobs, prompt_logprobs
from pellucid.server.middleware.context import digest_of, record_of
from pellucid.server.prompts import Prompt, completion_prompts
from pellucid.server.responses import json_response
from pellucid.server.routing import add_post
from pellucid.server.sampling import sampling_params
from pellucid.server.schemas.completions import CompletionRequest
from pellucid.server.state import ServerState
from pellucid.server.streaming import EventStream, collect


def add_routes(app: FastAPI) -> None:
    add_post(app, "/v1/completions", CompletionRequest, create_completion, generates=True, summary="Continue a text")


async def create_completion(state: ServerState, request: Request, body: CompletionRequest) -> Response:
    state.check_model(body.model)
    llm = state.engine()
    _check(body, llm, state.model_name)
    record = record_of(request.scope)
    if user := body.safety_identifier or body.user:
        record.user_digest = digest_of(user)
    constraint = constraint_of(body.structured_outputs)
    await check_constraint(llm, constraint)
    prompts = await completion_prompts(llm, body)
    max_tokens = 16 if body.max_tokens is None else body.max_tokens
    params = sampling_params(
        llm.default_sampling,
        body,
        max_tokens=max(max_tokens, 1),
        logprobs=body.logprobs,
        structured_outputs=constraint,
    )
    if body.echo and body.logprobs is not None:
        params = msgspec.structs.replace(params, prompt_logprobs=max(body.logprobs, body.prompt_logprobs or 0))
    if body.suffix and llm.fill_in_the_middle is not None:
        stop_token_ids = (*params.stop_token_ids, *llm.fill_in_the_middle.stop_token_ids)
        params = msgspec.structs.replace(params, stop_token_ids=stop_token_ids)
    generation = submit(
        llm,
        Submission([prompt.token_ids for prompt in prompts], params, "prompt", body.priority or 0, body.cache_salt),
        request_id=f"cmpl-{uuid.uuid4().hex}",
        metrics=state.metrics,
        record=record,
        final_only=not body.stream,
    )
    head = {
        "id": generation.request_id,
        "object": "text_completion",
        "created": int(time.time()),
        "model": state.model_name,
        "system_fingerprint": state.fingerprint,
    }
    shape = _Shape(state, body, prompts, params.n, params.skip_special_tokens, only_prompt=max_tokens == 0)
    if body.stream:
        return EventStream(generation, CompletionWriter(generation, head, shape), state.options)
    outputs = await collect(generation, request.receive, record)
    if outputs is None:
        return Response()
    choices = [shape.choice(i, output, choice) for i, output in enumerate(outputs) for choice in output.outputs]
    completion = {**head, "choices": choices, "usage": shape.usage(generation), "service_tier": "default"}
    if body.metadata is not None:
        completion["metadata"] = body.metadata
    return json_response(completion)


def _check(body: CompletionRequest, llm: AsyncLLM, model_name: str) -> None:
    """What a schema can't say. Raises ApiError."""
    if body.suffix:
        if body.echo or body.truncate_prompt_tokens is not None:
            other = "echo" if body.echo else "truncate_prompt_tokens"
            raise invalid(f"'{other}' cannot be used together with 'suffix'.", param=other)
        if llm.fill_in_the_middle is None:
            raise unsupported(
                "suffix",
                f"is not supported by the model {model_name}: its vocabulary has no fill-in-the-middle tokens.",
            )
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise unsupported("best_of", "is not supported with a value other than that of 'n'.")
    if body.stream_options is not None and not body.stream:
        raise invalid(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            code=None,
            param="stream_options",
        )


class _Shape:
    """Outputs to choices. Called once per choice for a whole answer, or for every delta of a stream: the first call for
    a choice brings the prompt along where it is to be echoed.

    only_prompt: the client wants no token (max_tokens 0), but an engine makes at least one; it is not shown.
    """

    def __init__(
        self,
        state: ServerState,
        body: CompletionRequest,
        prompts: Sequence[Prompt],
        num_choices: int,
        skip_special_tokens: bool,
        *,
        only_prompt: bool,
    ) -> None:
        self.include_usage = bool(body.stream_options and body.stream_options.include_usage)
        self.only_prompt = only_prompt
        self._body = body
        self._prompts = prompts
        self._num_choices = num_choices
        self._texts = state.texts
        self._tokenizer = state.engine().tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._logprobs: dict[int, CompletionLogprobs] = {}
        self.begun: set[int] = set()  # indices of choices that something was said of
        self._prompt_logprobs: dict[int, list[TokenLogprob | None]] = {}  # by prompt
        self.is_plain = body.logprobs is None and not body.return_token_ids and not only_prompt

    def index(self, prompt_index: int, choice: CompletionOutput) -> int:
        return prompt_index * self._num_choices + choice.index

    def choice(self, prompt_index: int, output: RequestOutput, choice: CompletionOutput) -> dict[str, Any]:
        body, index = self._body, self.index(prompt_index, choice)
        is_first = index not in self.begun
        self.begun.add(index)
        if output.prompt_logprobs is not None:  # with one output of the prompt; a choice may begin in a later one
            self._prompt_logprobs[prompt_index] = output.prompt_logprobs
        of_prompt = self._prompt_logprobs.get(prompt_index)
        text, token_ids, entries = choice.text, choice.token_ids, choice.logprobs
        if self.only_prompt:
            text, token_ids, entries = "", [], None if entries is None else []
        shown_ids: list[int] = token_ids
        shown: list[TokenLogprob | None] | None = None if entries is None else [*entries]
        if body.echo and is_first:
            text = self._prompt_text(prompt_index) + text
            shown_ids = [*output.prompt_token_ids, *token_ids]
            if shown is not None:
                shown = [*(of_prompt or [None] * len(output.prompt_token_ids)), *shown]
        shaped: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": None if shown is None else self._logprobs_of(index)(shown_ids, shown),
            "finish_reason": None,
        }
        if choice.finish_reason is not None:
            reason = "length" if self.only_prompt else choice.finish_reason.value
            shaped |= {"finish_reason": reason, "stop_reason": choice.stop_reason, "seed": choice.seed}
        if body.return_token_ids:
            shaped["token_ids"] = token_ids
            if is_first:
                shaped["prompt_token_ids"] = output.prompt_token_ids
        if body.prompt_logprobs is not None and is_first and of_prompt is not None:
            shaped["prompt_logprobs"] = prompt_logprobs(of_prompt, self._texts)
        return shaped

    def usage(self, generation: Generation) -> dict[str, Any]:
        usage = generation.usage()
        if self.only_prompt:
            usage |= {"completion_tokens": 0, "total_tokens": usage["prompt_tokens"]}
        return usage

    def _prompt_text(self, prompt_index: int) -> str:
        prompt = self._prompts[prompt_index]
        if prompt.text is not None:
            return prompt.text
        return self._tokenizer.decode(prompt.token_ids, skip_special_tokens=self._skip_special_tokens)

    def _logprobs_of(self, index: int) -> CompletionLogprobs:
        if index not in self._logprobs:
            hidden = self._tokenizer.special_token_ids if self._skip_special_tokens else frozenset()
            self._logprobs[index] = CompletionLogprobs(self._body.logprobs or 0, self._texts, hidden)
        return self._logprobs[index]


class CompletionWriter(ChunkWriter):
    def __init__(self, generation: Generation, head: dict[str, Any], shape: _Shape) -> None:
        super().__init__(generation, head, include_usage=shape.include_usage)
        self._shape = shape

    def choices(self, prompt_index: int, output: RequestOutput) -> list[bytes]:
        shape = self._shape
        chunks: list[bytes] = []
        for choice in output.outputs:
            index = shape.index(prompt_index, choice)
            if shape.is_plain and choice.finish_reason is None and index in shape.begun:
                if choice.text:  # the usual case
                    chunks.append(
                        b'{"index":%d,"text":%b,"logprobs":null,"finish_reason":null}' % (index, encode(choice.text))
                    )
            else:
                chunks.append(encode(shape.choice(prompt_index, output, choice)))
        return chunks

    def usage(self) -> dict[str, Any]:
        return self._shape.usage(self._generation)
