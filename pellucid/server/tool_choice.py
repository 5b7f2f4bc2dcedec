"""The tools of a chat request and which of them may be called: from OpenAI's shape to the one all dialects share."""

from __future__ import annotations

from pellucid.server.conversation import Tool, ToolChoice
from pellucid.server.errors import invalid, shorten
from pellucid.server.offered_tools import offered_tool
from pellucid.server.schemas.chat import AllowedToolsChoice, ChatCompletionRequest, FunctionTool, NamedTool


def tools_of(given: list[FunctionTool] | None) -> tuple[Tool, ...]:
    """Raises ApiError for two tools of one name, or parameters that are no object's schema."""
    tools: dict[str, Tool] = {}
    for i, tool in enumerate(given or ()):
        function = tool.function
        if function.name in tools:
            raise invalid(f"Invalid 'tools': the name '{function.name}' is there twice.",
                          param=f"tools[{i}].function.name")  # fmt: skip
        tools[function.name] = offered_tool(
            function.name,
            function.description,
            function.parameters,
            strict=function.strict is True,
            param=f"tools[{i}].function.parameters",
            name_param=f"tools[{i}].function.name",
        )
    return tuple(tools.values())


def tool_choice_of(body: ChatCompletionRequest, tools: tuple[Tool, ...]) -> ToolChoice:
    """Raises ApiError where a choice is made among tools that are not there."""
    choice = body.tool_choice
    if choice not in (None, "none") and not tools:
        raise _without_tools("tool_choice")
    if body.parallel_tool_calls is not None and not tools:
        raise _without_tools("parallel_tool_calls")
    if isinstance(choice, NamedTool):
        return ToolChoice("required", _known([choice], tools, "tool_choice"))
    if isinstance(choice, AllowedToolsChoice):
        allowed = _known(choice.allowed_tools.tools, tools, "tool_choice.allowed_tools.tools")
        return ToolChoice(choice.allowed_tools.mode, allowed)
    return ToolChoice(choice or "auto")


def _without_tools(param: str) -> Exception:
    return invalid(f"Invalid value for '{param}': '{param}' is only allowed when 'tools' are specified.", param=param)


def _known(chosen: list[NamedTool], tools: tuple[Tool, ...], param: str) -> tuple[str, ...]:
    names = {tool.name for tool in tools}
    for reference in chosen:
        if reference.function.name not in names:
            name = shorten(reference.function.name)
            raise invalid(f"Invalid value for '{param}': there is no function '{name}' in 'tools'.", param=param)
    return tuple(reference.function.name for reference in chosen)
