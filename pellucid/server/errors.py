"""What goes wrong, in the words and shapes OpenAI's clients know: {"error": {message, type, param, code}}.

Messages may quote what the client sent (shortened); they never hold addresses, paths or tracebacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from pellucid.frontend.outputs import (
    ContradictionError,
    EngineUnavailableError,
    QueueFullError,
    RequestError,
    RequestTimeoutError,
)


class ApiError(Exception):
    """Ends a request with an error response. headers: sent along, such as Retry-After."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def encode(self) -> bytes:
        return msgspec.json.encode(self.body())


def shorten(text: str, limit: int = 80) -> str:
    """Text of a client, fit to be quoted back to it."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= limit else text[: limit - 1] + "…"


def invalid(message: str, *, code: str | None = "invalid_value", param: str | None = None) -> ApiError:
    return ApiError(400, message, code=code, param=param)


def unsupported(param: str, detail: str) -> ApiError:
    """A parameter of the dialect that is known here and not honoured (or not with this value)."""
    return ApiError(400, f"Unsupported parameter: '{param}' {detail}", code="unsupported_parameter", param=param)


def model_not_found(model: str, served: str) -> ApiError:
    message = (
        f"The model `{shorten(model)}` does not exist or you do not have access to it. "
        f"The one that is served here is `{served}`."
    )
    return ApiError(404, message, code="model_not_found", param="model")


class ContextLengthError(ApiError):
    """at_least: the prompt was refused by its size in characters, before it was tokenised."""

    def __init__(self, max_model_len: int, num_prompt_tokens: int | None, *, param: str, at_least: bool) -> None:
        what = "messages" if param == "messages" else "prompt"
        count = f"{'at least ' if at_least else ''}{num_prompt_tokens} tokens"
        super().__init__(
            400,
            f"This model's maximum context length is {max_model_len} tokens. However, your {what} resulted in {count}. "
            f"Please reduce the length of the {what}.",
            code="context_length_exceeded",
            param=param,
        )
        self.max_model_len = max_model_len
        self.num_prompt_tokens = num_prompt_tokens
        self.at_least = at_least


def context_length_exceeded(
    max_model_len: int, num_prompt_tokens: int | None, *, param: str, at_least: bool = False
) -> ApiError:
    return ContextLengthError(max_model_len, num_prompt_tokens, param=param, at_least=at_least)


def missing_api_key() -> ApiError:
    return ApiError(
        401,
        "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth "
        "(i.e. Authorization: Bearer YOUR_KEY).",
        headers={"www-authenticate": "Bearer"},
    )


def incorrect_api_key() -> ApiError:
    return ApiError(401, "Incorrect API key provided.", code="invalid_api_key", headers={"www-authenticate": "Bearer"})


def unknown_url(method: str, path: str) -> ApiError:
    return ApiError(404, f"Invalid URL ({shorten(method, 16)} {shorten(path)})")


def method_not_supported(method: str, path: str, allow: str | None) -> ApiError:
    message = f"Not allowed to {shorten(method, 16)} on {shorten(path)}."
    return ApiError(405, message, code="method_not_supported", headers={"allow": allow} if allow else None)


def body_too_large(limit_bytes: int) -> ApiError:
    message = f"The request body is larger than {limit_bytes} bytes."
    return ApiError(413, message, code="request_too_large", headers={"connection": "close"})


def overloaded(message: str, retry_after_s: float) -> ApiError:
    seconds = max(1, round(retry_after_s))
    return ApiError(
        503, message, type="service_unavailable_error", code="queue_full", headers={"retry-after": str(seconds)}
    )


def unavailable(message: str, *, code: str = "engine_unavailable", retry_after_s: int = 1) -> ApiError:
    return ApiError(
        503, message, type="service_unavailable_error", code=code, headers={"retry-after": str(retry_after_s)}
    )


def timed_out(message: str) -> ApiError:
    return ApiError(504, message, type="server_error", code="request_timeout")


def internal(message: str = "The server had an error while processing your request.") -> ApiError:
    return ApiError(500, message, type="server_error", code="internal_error")


def from_request_error(error: RequestError) -> ApiError:
    """The engine's or the front end's error as an HTTP response."""
    if isinstance(error, QueueFullError):
        return overloaded(str(error), error.retry_after_s)
    if isinstance(error, RequestTimeoutError):
        return timed_out(str(error))
    if isinstance(error, EngineUnavailableError):
        return unavailable(str(error))
    if isinstance(error, ContradictionError):
        return invalid(f"Invalid request: {error}.")
    return internal(str(error))
