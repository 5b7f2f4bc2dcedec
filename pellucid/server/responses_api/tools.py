"""Tools of the Responses dialect as functions the model can call, and calls back under the names the client gave.

A model knows functions only, by one flat name each. A namespace's functions get its name in front; a custom tool
becomes a function with one text argument; tools that OpenAI runs itself are left out, and named in `warnings`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pellucid.server.conversation import JsonObject, Tool, ToolChoice
from pellucid.server.errors import ApiError, invalid, shorten
from pellucid.server.offered_tools import offered_tool
from pellucid.server.schemas.responses import (
    AllowedTools,
    AnyTool,
    HostedTool,
    NamedToolChoice,
    ResponsesRequest,
    StrictCustomTool,
    StrictFunctionTool,
    StrictNamespaceTool,
)

INPUT = "input"  # the argument of a custom tool's function
MAX_FUNCTIONS = 1024


@dataclass(frozen=True)
class ClientName:
    """A tool as the client knows it."""

    kind: Literal["function", "custom"]
    name: str
    namespace: str | None = None


class Toolbox:
    """tools: what the model is offered. warnings: what it is not, in words. echo: the tools as the response names them.

    Raises ApiError where two tools have the same name, or there are too many.
    """

    def __init__(self, given: Sequence[AnyTool] | None) -> None:
        self.warnings: list[str] = []
        self.echo: list[JsonObject] = []
        self._flat_of: dict[tuple[str | None, str], str] = {}
        self._client_of: dict[str, ClientName] = {}
        tools: list[Tool] = []
        for i, tool in enumerate(given or ()):
            if isinstance(tool, HostedTool):
                self.warnings.append(f"tools[{i}] of type {tool.type} is not run here and was left out of the prompt")
                continue
            self.echo.append(tool.model_dump(mode="json", by_alias=True, exclude_none=True))
            tools += self._functions(tool, i)
            if len(tools) > MAX_FUNCTIONS:
                raise invalid(f"Invalid 'tools': more than {MAX_FUNCTIONS} functions.", param="tools")
        self.tools = tuple(tools)

    def flat_name(self, name: str, namespace: str | None = None) -> str:
        """The model's name of a tool; also of one that is not offered now, from earlier in a conversation."""
        return self._flat_of.get((namespace, name)) or _joined(name, namespace)

    def client_name(self, flat: str) -> ClientName:
        """A name that was not offered stays as the model said it."""
        return self._client_of.get(flat) or ClientName("function", flat)

    def choice(self, body: ResponsesRequest) -> ToolChoice:
        """Raises ApiError for a choice that can't be kept."""
        chosen = body.tool_choice
        if chosen is None or isinstance(chosen, str):
            if chosen == "required" and not self.tools:
                raise invalid("'tool_choice' is 'required', but there is no tool to call.", param="tool_choice")
            return ToolChoice(chosen or "auto")
        if isinstance(chosen, NamedToolChoice):
            return ToolChoice("required", (self._offered(chosen, "tool_choice"),))
        if isinstance(chosen, AllowedTools):
            return self._allowed(chosen)
        message = f"Invalid value for 'tool_choice': a tool of type '{chosen.type}' is not run by this server."
        raise invalid(message, param="tool_choice.type")

    def _allowed(self, chosen: AllowedTools) -> ToolChoice:
        names: list[str] = []
        for i, tool in enumerate(chosen.tools):
            param = f"tool_choice.tools[{i}]"
            if isinstance(tool, NamedToolChoice):
                names.append(self._offered(tool, param))
            else:
                self.warnings.append(f"{param} of type {tool.type} is not run here and was left out")
        if names:
            return ToolChoice(chosen.mode, tuple(names))
        if chosen.mode == "required":
            raise invalid("'tool_choice' is 'required', but none of its tools is run by this server.",
                          param="tool_choice.tools")  # fmt: skip
        return ToolChoice("none")

    def _offered(self, wanted: NamedToolChoice, param: str) -> str:
        flat = self._flat_of.get((wanted.namespace, wanted.name))
        if flat is None:
            raise invalid(f"Tool choice '{shorten(wanted.name)}' not found in 'tools' parameter.", param=param)
        return flat

    def _functions(
        self, tool: StrictFunctionTool | StrictCustomTool | StrictNamespaceTool, index: int
    ) -> Iterator[Tool]:
        if isinstance(tool, StrictNamespaceTool):
            for i, inner in enumerate(tool.tools):
                param = f"tools[{index}].tools[{i}]"
                description = inner.description or ""
                if inner.type == "custom":
                    yield self._custom(inner.name, tool.name, description, inner.format, param)
                else:
                    name = ClientName("function", inner.name, tool.name)
                    description = f"{tool.description}\n{description}".strip()
                    yield self._offered_function(name, description, inner.parameters, inner.strict is True, param)
        elif isinstance(tool, StrictCustomTool):
            yield self._custom(tool.name, None, tool.description or "", tool.format, f"tools[{index}]")
        else:
            name = ClientName("function", tool.name)
            yield self._offered_function(
                name, tool.description, tool.parameters, tool.strict is True, f"tools[{index}]"
            )

    def _offered_function(
        self, name: ClientName, description: str | None, parameters: object, strict: bool, param: str
    ) -> Tool:
        flat = self._add(name, param)
        return offered_tool(flat, description, parameters, strict=strict, param=f"{param}.parameters",
                            name_param=f"{param}.name")  # fmt: skip

    def _custom(self, name: str, namespace: str | None, description: str, format: object, param: str) -> Tool:
        text: JsonObject = {"type": "string"}
        strict = False
        if getattr(format, "type", "text") == "grammar":
            syntax, definition = str(getattr(format, "syntax", "")), str(getattr(format, "definition", ""))
            if syntax == "regex":
                text["pattern"] = f"^(?:{definition})$"
                strict = True
            else:
                self.warnings.append(f"the grammar of {param} is described to the model and not enforced")
            description += f"\nThe input has to match this {syntax} definition:\n{definition}"
        parameters = {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}
        client = ClientName("custom", name, namespace)
        return self._offered_function(client, description.strip(), parameters, strict, param)

    def _add(self, client: ClientName, param: str) -> str:
        key = (client.namespace, client.name)
        if key in self._flat_of:
            raise ApiError(400, f"Invalid '{param}': there is another tool named '{shorten(client.name)}'.",
                           code="invalid_value", param=param)  # fmt: skip
        flat = _joined(client.name, client.namespace)
        number = 2
        while flat in self._client_of:  # a function may be named as a namespace and its function are together
            flat = f"{_joined(client.name, client.namespace)}_{number}"
            number += 1
        self._flat_of[key] = flat
        self._client_of[flat] = client
        return flat


def _joined(name: str, namespace: str | None) -> str:
    if namespace is None:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"
