"""Texts to vectors, for every route that wants some: one submission, one vector a text."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import numpy as np
from fastapi import Request

from pellucid.frontend.async_llm import AsyncLLM
from pellucid.frontend.outputs import RequestOutput
from pellucid.sampling.params import SamplingParams
from pellucid.server.errors import invalid
from pellucid.server.generation import Generation, Submission, submit
from pellucid.server.middleware.context import RequestRecord, digest_of, record_of
from pellucid.server.prompts import prompts_of
from pellucid.server.schemas.embeddings import VectorRequest
from pellucid.server.state import ServerState
from pellucid.server.streaming import collect

_ONE_TOKEN = SamplingParams(max_tokens=1, seed=0, detokenize=False)  # what a request has to say; nothing is sampled


@dataclass(frozen=True)
class Vectors:
    """values: float32 [texts, hidden_size], as the model has them. num_tokens: of all texts together."""

    request_id: str
    values: np.ndarray
    num_tokens: int


async def vectors_of(
    state: ServerState, request: Request, body: VectorRequest, given: str | list[Any], *, param: str, prefix: str
) -> Vectors | None:
    """given: one text or many, as text or token ids; param: the field that holds them. None where the client has left.
    Raises ApiError."""
    record = accounted(state, request, body)
    llm = state.engine()
    if not state.ready.hidden_size:
        raise invalid("This model gives no vectors.", param="model")
    prompts = await prompts_of(
        llm,
        given,
        param=param,
        truncate_to=body.truncate_prompt_tokens,
        add_special_tokens=body.add_special_tokens is not False,
    )
    token_ids = [prompt.token_ids for prompt in prompts]
    what = Submission(token_ids, _ONE_TOKEN, param, body.priority or 0, body.cache_salt, pooling=body.pooling or "last")
    generation, outputs = await computed(llm, state, request, what, prefix, record)
    if outputs is None:
        return None
    values = np.stack([np.frombuffer(output.pooled or b"", "<f4") for output in outputs])
    return Vectors(generation.request_id, values, generation.usage()["prompt_tokens"])


def accounted(state: ServerState, request: Request, body: VectorRequest) -> RequestRecord:
    """The request's record, with its user noted. Raises ApiError where the model is another."""
    state.check_model(body.model)
    record = record_of(request.scope)
    if user := body.safety_identifier or body.user:
        record.user_digest = digest_of(user)
    return record


async def computed(
    llm: AsyncLLM, state: ServerState, request: Request, what: Submission, prefix: str, record: RequestRecord
) -> tuple[Generation, list[RequestOutput] | None]:
    """Submits it under an id that begins with `prefix`, and waits. The outputs are None where the client has left.
    Raises ApiError."""
    generation = submit(
        llm,
        what,
        request_id=f"{prefix}-{uuid.uuid4().hex}",
        metrics=state.metrics,
        record=record,
        final_only=True,
    )
    return generation, await collect(generation, request.receive, record)


def normalised(values: np.ndarray) -> np.ndarray:
    """Rows of length 1; a row of zeros stays one."""
    lengths = np.linalg.norm(values.astype(np.float64), axis=-1, keepdims=True)
    return (values / np.where(lengths == 0, 1.0, lengths)).astype(np.float32)


def cosines(left: np.ndarray, right: np.ndarray) -> list[float]:
    """Of each row of one with the same row of the other; rows of length 1."""
    return np.clip((left.astype(np.float64) * right).sum(-1), -1.0, 1.0).tolist()
