"""No key, no entry: when keys are set every route asks for one, but for those that hold nothing of anyone."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from pellucid.server.errors import incorrect_api_key, missing_api_key
from pellucid.server.responses import send_error


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class ApiKeyAuth:
    """Decided on the path as it was sent, before anything decodes it. Keys are compared as digests, in constant time.

    open_paths: these ask for no key (/health, and the files of the page that asks a person for the key).

    Takes `Authorization: Bearer KEY` (OpenAI's clients) and `x-api-key: KEY` (Anthropic's).
    """

    def __init__(self, app: ASGIApp, api_keys: Iterable[str], open_paths: Iterable[str]) -> None:
        self.app = app
        self._open_paths = frozenset(path.encode() for path in open_paths)
        self._digests = [_digest(key.encode()) for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._digests or scope["raw_path"] in self._open_paths:
            await self.app(scope, receive, send)
            return
        offered = list(_offered_keys(scope))
        if any([self._matches(key) for key in offered]):  # a list: every key is compared with every other
            await self.app(scope, receive, send)
        else:
            await send_error(incorrect_api_key() if offered else missing_api_key(), scope, send)

    def _matches(self, key: bytes) -> bool:
        digest = _digest(key)
        return any([hmac.compare_digest(digest, known) for known in self._digests])


def _offered_keys(scope: Scope) -> Iterable[bytes]:
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            if scheme.lower() == b"bearer" and key.strip():
                yield key.strip()
        elif name == b"x-api-key" and value.strip():
            yield value.strip()
