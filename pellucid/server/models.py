"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from fastapi import FastAPI
from starlette.responses import Response

from pellucid.server.responses import json_response
from pellucid.server.routing import add_get
from pellucid.server.state import ServerState


def add_routes(app: FastAPI) -> None:
    state: ServerState = app.state.server

    async def list_models() -> Response:
        cards = [_card(state)]
        ends = {"first_id": cards[0]["id"], "last_id": cards[-1]["id"], "has_more": False}  # Anthropic's pages
        return json_response({"object": "list", "data": cards, **ends})

    async def retrieve_model(model: str) -> Response:
        state.check_model(model)
        return json_response(_card(state))

    add_get(app, "/v1/models", list_models, summary="The models served here")
    add_get(app, "/v1/models/{model:path}", retrieve_model, summary="One of them")


def _card(state: ServerState) -> dict[str, Any]:
    """OpenAI's and Anthropic's in one: the fields they share have one meaning, and both let the others be."""
    created_at = datetime.fromtimestamp(state.created, timezone.utc)
    return {
        "id": state.model_name,
        "object": "model",
        "created": state.created,
        "owned_by": "pellucid",
        "root": state.model_name,
        "parent": None,
        "type": "model",
        "display_name": state.model_name,
        "created_at": created_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "max_model_len": state.ready.max_model_len,  # Continue and others size their prompts by it
    }
