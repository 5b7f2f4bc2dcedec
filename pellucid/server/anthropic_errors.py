"""Errors as Anthropic's clients know them, on the paths of its dialect: {"type": "error", "error": {type, message}}."""

from __future__ import annotations

from typing import Any

from pellucid.server.errors import ApiError, ContextLengthError

PATH = b"/v1/messages"

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",  # Anthropic's own status for it, 529, is nobody else's
    504: "timeout_error",
}


def is_anthropic(raw_path: bytes) -> bool:
    """Decided on the path as it was sent: also what is refused before there is a route has this shape."""
    return raw_path == PATH or raw_path.startswith(PATH + b"/")


def anthropic_body(error: ApiError, request_id: str | None) -> dict[str, Any]:
    kind = _TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    message = error.message
    if isinstance(error, ContextLengthError):  # Claude Code compacts its conversation when it reads these words
        count = f"{'at least ' if error.at_least else ''}{error.num_prompt_tokens}"
        message = f"prompt is too long: {count} tokens > {error.max_model_len} maximum"
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}
