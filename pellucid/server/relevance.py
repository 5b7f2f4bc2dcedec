"""How relevant texts are to queries, by a model that was trained to answer with yes or no."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Request

from pellucid.frontend.chat_template import ChatTemplateError
from pellucid.sampling.params import SamplingParams
from pellucid.server.errors import invalid, unsupported
from pellucid.server.generation import Submission
from pellucid.server.prompts import prompts_of
from pellucid.server.schemas.embeddings import VectorRequest
from pellucid.server.state import ServerState
from pellucid.server.vectors import accounted, computed


@dataclass(frozen=True)
class Relevance:
    """values: one a pair; a model's own are between 0 and 1. num_tokens: of all prompts together."""

    request_id: str
    values: list[float]
    num_tokens: int


async def relevance_of(
    state: ServerState,
    request: Request,
    body: VectorRequest,
    pairs: Sequence[tuple[str, str]],
    *,
    param: str,
    prefix: str,
) -> Relevance | None:
    """pairs: query and document. None where the client has left. Raises ApiError."""
    record = accounted(state, request, body)
    llm, reranker = state.engine(), state.reranker
    assert reranker is not None
    if body.pooling is not None:
        raise unsupported("pooling", "has no meaning for a model that answers with yes or no.")
    try:
        texts = await asyncio.to_thread(lambda: [reranker.prompt(*pair) for pair in pairs])
    except ChatTemplateError as error:
        raise invalid(str(error), param=param) from error
    prompts = await prompts_of(
        llm,
        texts,
        param=param,
        truncate_to=body.truncate_prompt_tokens,
        add_special_tokens=bool(body.add_special_tokens),
    )
    asked = (reranker.yes_id, reranker.no_id)
    params = SamplingParams(
        max_tokens=1, seed=0, temperature=0.0, logprobs=0, logprob_token_ids=asked, allowed_token_ids=asked,
        detokenize=False,
    )  # fmt: skip
    token_ids = [prompt.token_ids for prompt in prompts]
    what = Submission(token_ids, params, param, body.priority or 0, body.cache_salt)
    generation, outputs = await computed(llm, state, request, what, prefix, record)
    if outputs is None:
        return None
    values = [reranker.relevance(output.outputs[0].logprobs[0]) for output in outputs if output.outputs[0].logprobs]
    return Relevance(generation.request_id, values, generation.usage()["prompt_tokens"])
