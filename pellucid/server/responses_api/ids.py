"""Ids of responses and items: made here, never guessable, told apart by their prefix as OpenAI's are."""

from __future__ import annotations

import uuid

PREFIXES = {
    "response": "resp",
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "call": "call",
}


def new_id(kind: str) -> str:
    return f"{PREFIXES[kind]}_{uuid.uuid4().hex}"
