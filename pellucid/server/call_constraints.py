"""What decoding has to obey where tools are offered: that calls parse, fit their schemas, and are of those allowed."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from pellucid.frontend.parsing.call_grammar import CallSchemaError, GrammarWriter, loosened
from pellucid.frontend.parsing.formats import AnswerFormats
from pellucid.frontend.tokenizer import Tokenizer
from pellucid.frontend.tools import Tool
from pellucid.sampling.params import StructuredOutputsParams
from pellucid.server.constraints import refusal
from pellucid.server.conversation import Conversation
from pellucid.server.errors import invalid, unsupported
from pellucid.structured.errors import ConstraintError
from pellucid.structured.grammar import checked_schema


def constraint_of(
    conversation: Conversation, tools: tuple[Tool, ...], formats: AnswerFormats, tokenizer: Tokenizer
) -> StructuredOutputsParams | None:
    """tools: those offered. Raises ApiError for what can't be obeyed.

    Calls are held to a grammar where they are required, where a tool is strict, where only some may be called, and
    where there may be only one. Elsewhere a model calls as it likes, and decoding costs nothing. A constraint on the
    content leaves a model with tools the choice between such a content and calls.
    """
    choice = conversation.tool_choice
    is_free = choice.mode == "auto" and choice.allowed is None and conversation.parallel_tool_calls
    if not tools or (is_free and conversation.constraint is None and not any(tool.strict for tool in tools)):
        return conversation.constraint
    assert formats.tools is not None
    required = choice.mode == "required"
    allowed = [tool for tool in tools if choice.allowed is None or tool.name in choice.allowed]
    one_by_one = formats.tools.one_by_one
    held = [tool if required or tool.strict else loosened(tool, one_by_one=one_by_one) for tool in allowed]

    def special(marker: str) -> int | None:
        token_id = tokenizer.token_to_id(marker)
        return token_id if token_id is not None and tokenizer.is_special(token_id) else None

    try:
        grammar = formats.calls_grammar(
            held,
            special,
            required=required,
            parallel=conversation.parallel_tool_calls,
            content=None if required else _content_term(conversation.constraint, special),
        )
    except CallSchemaError as error:
        raise invalid(str(error), code="invalid_function_parameters", param="tools") from error
    except ConstraintError as error:
        raise refusal(error, conversation.constraint_source) from error
    return StructuredOutputsParams(grammar=grammar)


def _content_term(constraint: StructuredOutputsParams | None, special: Callable[[str], int | None]) -> str | None:
    """A constraint on the content as a term of a grammar that has calls beside it."""
    if constraint is None:
        return None
    writer = GrammarWriter(special, ())
    if constraint.json_object:
        return writer.json({"type": "object"})
    if constraint.json is not None:
        return writer.json(msgspec.json.decode(checked_schema(constraint.json)))
    if constraint.choice is not None:
        return " | ".join(map(writer.text, constraint.choice))
    kind = "regex" if constraint.regex is not None else "grammar"
    raise unsupported(f"structured_outputs.{kind}", "is not supported together with tools; use json or choice.")
