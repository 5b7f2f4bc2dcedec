"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.responses import Response

from pellucid.server.responses import json_response
from pellucid.server.routing import add_get
from pellucid.server.state import ServerState


def add_routes(app: FastAPI) -> None:
    state: ServerState = app.state.server

    async def list_models() -> Response:
        return json_response({"object": "list", "data": [_card(state)]})

    async def retrieve_model(model: str) -> Response:
        state.check_model(model)
        return json_response(_card(state))

    add_get(app, "/v1/models", list_models, summary="The models served here")
    add_get(app, "/v1/models/{model:path}", retrieve_model, summary="One of them")


def _card(state: ServerState) -> dict[str, Any]:
    return {
        "id": state.model_name,
        "object": "model",
        "created": state.created,
        "owned_by": "pellucid",
        "root": state.model_name,
        "parent": None,
        "max_model_len": state.ready.max_model_len,  # Continue and others size their prompts by it
    }
