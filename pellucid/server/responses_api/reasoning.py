"""Reasoning in a form a client can carry to the next request without reading it.

The field is called encrypted_content, since OpenAI hides reasoning. Nothing is hidden here (the item shows the same
text), so it is only encoded: any server of this kind can read it, today's or the next one.
"""

from __future__ import annotations

import base64
import binascii

_MARK = "pellucid1."


def encode(text: str) -> str:
    return _MARK + base64.urlsafe_b64encode(text.encode()).decode()


def decode(token: str) -> str | None:
    """None for what was not made here: another provider's secret, which no one but it can read."""
    if not token.startswith(_MARK):
        return None
    try:
        return base64.b64decode(token[len(_MARK) :], altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        return None
