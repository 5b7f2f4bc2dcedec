"""The engine room: the page at /ui, and what feeds it: GET /engine/events and POST /engine/control.

The page itself holds nothing of anyone and is open; its data asks for the key like every other route. The engine tells
what is shown only while somebody has a stream open.
"""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI, Request
from starlette.responses import Response

from pellucid import __version__
from pellucid.core.messages import ControlAction
from pellucid.server.engine_stream import MAX_STREAMS, EngineStream
from pellucid.server.errors import ApiError, unavailable
from pellucid.server.responses import json_response
from pellucid.server.routing import add_get, add_post
from pellucid.server.schemas.control import ControlRequest
from pellucid.server.state import ServerState

FOLDER = Path(__file__).parent.parent / "ui"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Nothing from elsewhere, nothing inline: what a model writes can't become a script.
_SECURITY = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def assets() -> dict[str, Path]:
    """Path of the URL to file: these, and nothing that a path could be bent to."""
    files = [path for path in sorted(FOLDER.rglob("*")) if path.suffix in _TYPES]
    found = {f"/ui/{path.relative_to(FOLDER).as_posix()}": path for path in files}
    return {"/ui": FOLDER / "index.html", "/ui/": FOLDER / "index.html", **found}


def add_routes(app: FastAPI) -> None:
    state: ServerState = app.state.server
    if not state.options.ui:
        return
    for url, path in assets().items():
        _add_asset(app, url, path)

    async def events(request: Request) -> Response:
        if state.num_engine_streams >= MAX_STREAMS:
            raise unavailable(f"{MAX_STREAMS} pages watch this engine already.", code="too_many_watchers")
        hello = {
            "model": state.model_name,
            "version": __version__,
            "control": state.options.ui_control,
            "num_blocks": state.ready.num_blocks,
            "block_size": state.ready.block_size,
        }
        return EngineStream(state, hello)

    add_get(app, "/engine/events", events, summary="Everything the engine decides, as server-sent events")
    add_post(
        app,
        "/engine/control",
        ControlRequest,
        control_engine,
        generates=False,
        summary="Pause the scheduler, make a single step, go on",
        more_errors={403: "This server was not started with --ui-control."},
    )


async def control_engine(state: ServerState, request: Request, body: ControlRequest) -> Response:
    if not state.options.ui_control:
        raise ApiError(
            403, "The scheduler of this server may not be stopped; --ui-control allows it.", code="control_not_allowed"
        )
    state.engine().client.control(ControlAction(body.action))
    return json_response({"object": "engine.control", "action": body.action})


def _add_asset(app: FastAPI, url: str, path: Path) -> None:
    headers = {**_SECURITY, "content-type": _TYPES[path.suffix]}

    async def asset() -> Response:
        return Response(path.read_bytes(), headers=headers)

    app.add_api_route(url, asset, methods=["GET"], include_in_schema=False, response_model=None)
