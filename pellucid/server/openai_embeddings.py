"""POST /v1/embeddings."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from starlette.responses import Response

from pellucid.server.errors import invalid
from pellucid.server.responses import json_response
from pellucid.server.routing import add_post
from pellucid.server.schemas.embeddings import EmbeddingRequest
from pellucid.server.state import ServerState
from pellucid.server.vectors import normalised, vectors_of


def add_routes(app: FastAPI) -> None:
    add_post(
        app, "/v1/embeddings", EmbeddingRequest, create_embeddings, generates=True, summary="Texts, each as a vector"
    )


async def create_embeddings(state: ServerState, request: Request, body: EmbeddingRequest) -> Response:
    size = state.ready.hidden_size
    if body.dimensions is not None and body.dimensions > size:
        raise invalid(
            f"Invalid 'dimensions': this model's vectors have {size} elements, but got {body.dimensions} instead.",
            code="integer_above_max_value",
            param="dimensions",
        )
    vectors = await vectors_of(state, request, body, body.input, param="input", prefix="embd")
    if vectors is None:
        return Response()
    values = vectors.values[:, : body.dimensions]
    if body.normalize is not False:
        values = normalised(values)
    usage = {"prompt_tokens": vectors.num_tokens, "total_tokens": vectors.num_tokens}
    data = [
        {"object": "embedding", "index": i, "embedding": _encoded(row, body.encoding_format)}
        for i, row in enumerate(values)
    ]
    return json_response({"object": "list", "data": data, "model": state.model_name, "usage": usage})


def _encoded(row: np.ndarray, encoding_format: str | None) -> Any:
    """base64: of the float32 values, little-endian."""
    return base64.b64encode(row.astype("<f4").tobytes()).decode() if encoding_format == "base64" else row.tolist()
