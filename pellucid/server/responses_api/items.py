"""Items to messages, and items as they are stored and listed.

Templates read chat messages, where reasoning, text and calls of one turn are one message of the assistant; items have
them one after another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from pellucid.server.conversation import JsonObject
from pellucid.server.errors import ApiError, shorten
from pellucid.server.responses_api import reasoning
from pellucid.server.responses_api.ids import new_id
from pellucid.server.responses_api.tools import INPUT, Toolbox

OUTPUTS = ("function_call_output", "custom_tool_call_output")


def complete_item(item: Any) -> JsonObject:
    """An item of a request as the API shows it: with type, id and status, content in parts."""
    if isinstance(item, str):
        item = {"type": "message", "role": "user", "content": item}
    values: JsonObject = item if isinstance(item, dict) else item.model_dump(by_alias=True, exclude_none=True)
    kind = values["type"]
    values["id"] = values.get("id") or new_id(kind)
    values.setdefault("status", "completed")
    if kind == "message" and isinstance(values["content"], str):
        values["content"] = [_text_part(values["role"], values["content"])]
    return values


def _text_part(role: str, text: str) -> JsonObject:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": []}
    return {"type": "input_text", "text": text}


def messages_of(instructions: str | None, items: Iterable[JsonObject], toolbox: Toolbox) -> list[JsonObject]:
    """items: complete ones, the oldest first. Raises ApiError for the result of a call that nobody made."""
    writer = _Messages(toolbox)
    if instructions:
        writer.messages.append({"role": "system", "content": instructions})
    for item in items:
        writer.add(item)
    return writer.messages


class _Messages:
    def __init__(self, toolbox: Toolbox) -> None:
        self.messages: list[JsonObject] = []
        self._toolbox = toolbox
        self._call_ids: set[str] = set()

    def add(self, item: JsonObject) -> None:
        kind = item["type"]
        if kind == "message":
            self._message(item["role"], _text_of(item["content"]))
        elif kind == "reasoning":
            if text := _reasoning_of(item):
                message = self._assistant(new=self._has("content") or self._has("tool_calls"))
                message["reasoning_content"] = message.get("reasoning_content", "") + text
                message["reasoning"] = message["reasoning_content"]
        elif kind in OUTPUTS:
            if item["call_id"] not in self._call_ids:
                call_id = shorten(item["call_id"])
                raise ApiError(400, f"No tool call found for function call output with call_id {call_id}.",
                               param="input")  # fmt: skip
            content = _text_of(item["output"])
            self.messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
        else:
            self._call(item)

    def _message(self, role: str, text: str) -> None:
        if role == "assistant":
            self._assistant(new=self._has("content") or self._has("tool_calls"))["content"] = text
        else:
            role = "system" if role == "developer" else role  # a name templates know
            if role == "system" and self.messages and self.messages[-1]["role"] == "system":
                self.messages[-1]["content"] += f"\n\n{text}"  # many templates take one, in the beginning
            else:
                self.messages.append({"role": role, "content": text})

    def _call(self, item: JsonObject) -> None:
        is_custom = item["type"] == "custom_tool_call"
        arguments = msgspec.json.encode({INPUT: item["input"]}).decode() if is_custom else item["arguments"]
        name = self._toolbox.flat_name(item["name"], item.get("namespace"))
        call = {"id": item["call_id"], "type": "function", "function": {"name": name, "arguments": arguments or "{}"}}
        self._call_ids.add(item["call_id"])
        self._assistant(new=False).setdefault("tool_calls", []).append(call)

    def _has(self, key: str) -> bool:
        return bool(self.messages) and self.messages[-1]["role"] == "assistant" and bool(self.messages[-1].get(key))

    def _assistant(self, *, new: bool) -> JsonObject:
        """The message of the assistant's that is being put together; new: begin another one."""
        if new or not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": ""})
        return self.messages[-1]


def _text_of(content: str | Sequence[JsonObject]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or part.get("refusal") or "" for part in content)


def _reasoning_of(item: JsonObject) -> str:
    """The whole reasoning where it can be had, its summary else."""
    if content := item.get("content"):
        return "".join(part["text"] for part in content)
    if (token := item.get("encrypted_content")) and (text := reasoning.decode(token)) is not None:
        return text
    return "\n\n".join(part["text"] for part in item.get("summary", ()))


def item_not_found(item_id: str) -> ApiError:
    message = (
        f"Item with id '{shorten(item_id)}' not found. Items are not persisted when `store` is set to false. Try again "
        "with `store` set to true, or remove this item from your input."
    )
    return ApiError(404, message, param="input")
