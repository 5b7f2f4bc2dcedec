"""For those who run the server: GET /health, /metrics, /openapi.json, and /."""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.responses import Response

from pellucid import __version__
from pellucid.server.responses import json_response
from pellucid.server.routing import add_get, openapi_document
from pellucid.server.state import ServerState


def add_routes(app: FastAPI) -> None:
    state: ServerState = app.state.server

    async def root() -> Response:
        return json_response({"name": "pellucid", "version": __version__})

    async def health() -> Response:
        status, body = state.health()
        return json_response(body, status)

    async def metrics(request: Request) -> Response:
        content, content_type = state.metrics.expose(request.headers.get("accept", ""))
        return Response(content, headers={"content-type": content_type})

    async def openapi() -> Response:
        return json_response(openapi_document(app))

    add_get(app, "/", root, summary="What answers here", head=True)
    add_get(app, "/health", health, summary="200 when requests are answered, 503 with the reason when not", head=True)
    formats = ("text/plain", "application/openmetrics-text")
    add_get(app, "/metrics", metrics, summary="Prometheus metrics", content_types=formats)
    add_get(app, "/openapi.json", openapi, summary="This document")
