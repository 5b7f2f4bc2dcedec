"""POST /score and /rerank: how near texts are to each other, as the cosine of their vectors; or how relevant one is to
the other, where a reranker is served.
"""

from __future__ import annotations

import time
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from pellucid.server.errors import invalid
from pellucid.server.relevance import Relevance, relevance_of
from pellucid.server.responses import json_response
from pellucid.server.routing import add_post
from pellucid.server.schemas.embeddings import RerankRequest, ScoreRequest, TextDocument, VectorRequest
from pellucid.server.state import ServerState
from pellucid.server.vectors import cosines, normalised, vectors_of


def add_routes(app: FastAPI) -> None:
    for prefix in ("/v1", ""):
        add_post(
            app, f"{prefix}/score", ScoreRequest, score, generates=True, summary="How near two texts are to each other"
        )
        add_post(
            app,
            f"{prefix}/rerank",
            RerankRequest,
            rerank,
            generates=True,
            summary="Texts, the nearest to a query first",
        )


async def score(state: ServerState, request: Request, body: ScoreRequest) -> Response:
    left, right = ([text] if isinstance(text, str) else text for text in (body.text_1, body.text_2))
    if len(left) != len(right) and 1 not in (len(left), len(right)):
        raise invalid(
            f"Invalid 'text_2': {len(left)} texts can't be compared with {len(right)}; give one, or as many.",
            param="text_2",
        )
    scores = await _scores(state, request, body, left, right, param="text_1", prefix="score")
    if scores is None:
        return Response()
    return json_response(
        {
            "id": scores.request_id,
            "object": "list",
            "created": int(time.time()),
            "model": state.model_name,
            "data": [{"index": i, "object": "score", "score": value} for i, value in enumerate(scores.values)],
            "usage": {"prompt_tokens": scores.num_tokens, "total_tokens": scores.num_tokens},
        }
    )


async def rerank(state: ServerState, request: Request, body: RerankRequest) -> Response:
    texts = [item.text if isinstance(item, TextDocument) else item for item in body.documents]
    scores = await _scores(state, request, body, [body.query], texts, param="documents", prefix="rerank")
    if scores is None:
        return Response()
    values = scores.values
    ranking = sorted(range(len(texts)), key=lambda i: (-values[i], i))[: body.top_n]
    results: list[dict[str, Any]] = [{"index": i, "relevance_score": values[i]} for i in ranking]
    if body.return_documents is not False:
        for result in results:
            result["document"] = {"text": texts[result["index"]]}
    return json_response(
        {
            "id": scores.request_id,
            "model": state.model_name,
            "results": results,
            "usage": {"prompt_tokens": scores.num_tokens, "total_tokens": scores.num_tokens},
        }
    )


async def _scores(
    state: ServerState,
    request: Request,
    body: VectorRequest,
    left: list[str],
    right: list[str],
    *,
    param: str,
    prefix: str,
) -> Relevance | None:
    """Of each on the left with the same on the right, or of one with all. None where the client has left."""
    if state.reranker is not None:
        length = max(len(left), len(right))
        pairs = zip(left * (length // len(left)), right * (length // len(right)), strict=True)
        return await relevance_of(state, request, body, list(pairs), param=param, prefix=prefix)
    vectors = await vectors_of(state, request, body, [*left, *right], param=param, prefix=prefix)
    if vectors is None:
        return None
    values = normalised(vectors.values)
    return Relevance(vectors.request_id, cosines(values[: len(left)], values[len(left) :]), vectors.num_tokens)
