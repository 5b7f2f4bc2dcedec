"""How a dialect's handler becomes a route: admission, the body, then the handler; and its place in /openapi.json."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from pellucid import __version__
from pellucid.server.generation import check_admission
from pellucid.server.middleware.context import record_of
from pellucid.server.schemas.common import ErrorResponse
from pellucid.server.state import ServerState
from pellucid.server.validation import read_body

Model = TypeVar("Model", bound=BaseModel)
Handler = Callable[[ServerState, Request, Model], Awaitable[Response]]

REF = "#/components/schemas/{model}"


@dataclass(frozen=True)
class LazyModel(Generic[Model]):
    """A request model whose module is slow to import: it is loaded for the first request, or for /openapi.json."""

    name: str
    load: Callable[[], type[Model]]


def add_post(
    app: FastAPI,
    path: str,
    model: type[Model] | LazyModel[Model],
    handler: Handler[Model],
    *,
    generates: bool,
    summary: str,
    errors: type[BaseModel] = ErrorResponse,
    more_errors: Mapping[int, str] | None = None,
) -> None:
    """generates: the route makes the engine work, so it is refused before its body is read when the queue is full.
    errors: the shape of its error bodies. more_errors: statuses beyond the usual ones, and what they mean."""
    state: ServerState = app.state.server
    name = model.name if isinstance(model, LazyModel) else model.__name__
    max_depth = state.options.max_json_depth

    async def endpoint(request: Request) -> Response:
        if generates:
            check_admission(state.engine(), state.metrics, record_of(request.scope))
        loaded = await asyncio.to_thread(model.load) if isinstance(model, LazyModel) else model
        return await handler(state, request, await read_body(request, loaded, max_depth=max_depth))

    app.add_api_route(
        path,
        endpoint,
        methods=["POST"],
        summary=summary,
        description=None if isinstance(model, LazyModel) else (model.__doc__ or "").strip() or None,
        name=handler.__name__,
        response_model=None,
        responses=_error_responses(errors, {**_ERRORS, **(more_errors or {})}) | _OK,
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": {"$ref": REF.format(model=name)}}},
            }
        },
    )
    app.state.schemas += (item for item in (model, errors) if item not in app.state.schemas)


def add_get(
    app: FastAPI,
    path: str,
    endpoint: Callable[..., Any],
    *,
    summary: str,
    head: bool = False,
    content_types: Sequence[str] = ("application/json",),
) -> None:
    _add_without_body(app, "GET", path, endpoint, summary, content_types)
    if head:
        app.add_api_route(path, endpoint, methods=["HEAD"], response_model=None, include_in_schema=False)


def add_delete(app: FastAPI, path: str, endpoint: Callable[..., Any], *, summary: str) -> None:
    _add_without_body(app, "DELETE", path, endpoint, summary)


def add_post_without_body(app: FastAPI, path: str, endpoint: Callable[..., Any], *, summary: str) -> None:
    _add_without_body(app, "POST", path, endpoint, summary)


def _add_without_body(
    app: FastAPI,
    method: str,
    path: str,
    endpoint: Callable[..., Any],
    summary: str,
    content_types: Sequence[str] = ("application/json",),
) -> None:
    """With the classes of errors documented, FastAPI adds none of its own (a 422, which nothing here ever sends)."""
    done = {"description": "Done.", "content": {content_type: {} for content_type in content_types}}
    refused = {
        "description": "It is wrong, not allowed, or names what is not there.",
        "content": {"application/json": {"schema": {"$ref": REF.format(model=ErrorResponse.__name__)}}},
    }
    app.add_api_route(
        path,
        endpoint,
        methods=[method],
        summary=summary,
        response_model=None,
        response_class=Response,
        responses={200: done, "4XX": refused, "5XX": {"description": "The server is not ready, or failed."}},
    )


_ERRORS = {
    400: "The request is wrong; `param` and `code` say where and how.",
    401: "No API key, or a wrong one.",
    404: "There is no such model.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    500: "The server failed.",
    503: "Loading, overloaded or shutting down; see Retry-After.",
    504: "The request took longer than the server allows.",
}


def _error_responses(model: type[BaseModel], errors: Mapping[int, str]) -> dict[int | str, dict[str, Any]]:
    content = {"application/json": {"schema": {"$ref": REF.format(model=model.__name__)}}}
    return {status: {"description": description, "content": content} for status, description in errors.items()}


_OK: dict[int | str, dict[str, Any]] = {200: {"description": "Done."}}


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """FastAPI's own, with the bodies that the handlers read themselves. Made once."""
    if app.openapi_schema is None:
        document = get_openapi(title="Pellucid", version=__version__, routes=app.routes)
        loaded = (model.load() if isinstance(model, LazyModel) else model for model in app.state.schemas)
        models = [(model, "validation") for model in loaded]
        _, definitions = models_json_schema(models, ref_template=REF)  # type: ignore[arg-type]
        document.setdefault("components", {})["schemas"] = definitions["$defs"]
        app.openapi_schema = document
    return app.openapi_schema
