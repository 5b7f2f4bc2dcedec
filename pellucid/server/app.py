"""The web application: routes inside, layers around them."""

from __future__ import annotations

import sys

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from pellucid.server import (
    anthropic_messages,
    engine_room,
    explanations,
    models,
    openai_chat,
    openai_completions,
    openai_embeddings,
    openai_responses,
    operations,
    plain_generate,
    similarity,
    tokenization,
)
from pellucid.server.errors import ApiError, method_not_supported, unknown_url
from pellucid.server.middleware.auth import ApiKeyAuth
from pellucid.server.middleware.body_limit import BodyLimit
from pellucid.server.middleware.context import RequestContext
from pellucid.server.middleware.request_log import RequestLog
from pellucid.server.responses import error_response
from pellucid.server.state import ServerState

ROUTES = (
    openai_chat,
    openai_completions,
    openai_responses,
    anthropic_messages,
    openai_embeddings,
    similarity,
    plain_generate,
    tokenization,
    models,
    operations,
    explanations,
    engine_room,
)


def build_app(state: ServerState) -> FastAPI:
    """state.llm may still be None: routes that need it answer 503 until `state.attach`."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.server = state
    app.state.schemas = []  # the request models, for /openapi.json
    for module in ROUTES:
        module.add_routes(app)
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(HTTPException, _on_http_exception)

    options = state.options  # the last one added is the outermost
    app.add_middleware(BodyLimit, max_bytes=options.max_body_bytes, timeout_s=options.body_timeout_s)
    open_paths = {"/health", *(engine_room.assets() if options.ui else ())}
    app.add_middleware(ApiKeyAuth, api_keys=options.api_keys, open_paths=open_paths)
    app.add_middleware(
        RequestContext,
        access_log=sys.stderr if options.access_log else None,
        request_log=RequestLog(options.request_log, options.request_log_content) if options.request_log else None,
        spans=state.observers.spans,
    )
    return app


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error, request.scope)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """What the router itself raises: no such path, or not with this method."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return error_response(unknown_url(request.method, request.url.path), request.scope)
    if error.status_code == 405:
        return error_response(method_not_supported(request.method, request.url.path, _allowed(request)), request.scope)
    return error_response(ApiError(error.status_code, str(error.detail)), request.scope)


def _allowed(request: Request) -> str:
    """The methods of every route of this path; the router itself names those of the first one."""
    routes = (route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE)
    return ", ".join(sorted({method for route in routes for method in getattr(route, "methods", None) or ()}))
