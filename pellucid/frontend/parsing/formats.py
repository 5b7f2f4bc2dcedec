"""Which formats a model's answers have: found in its chat template and vocabulary, or named by whoever starts it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pellucid.frontend.answer import AnswerParser
from pellucid.frontend.parsing.answer_parser import answer_parser
from pellucid.frontend.parsing.call_grammar import GrammarWriter, tools_grammar
from pellucid.frontend.parsing.gemma_calls import GemmaToolFormat
from pellucid.frontend.parsing.mistral_calls import MistralToolFormat
from pellucid.frontend.parsing.pythonic_calls import PythonicToolFormat
from pellucid.frontend.parsing.reasoning import ReasoningFormat
from pellucid.frontend.parsing.tool_format import HERMES, LLAMA3_JSON, SMOLLM, ToolFormat
from pellucid.frontend.parsing.xml_calls import XmlToolFormat
from pellucid.frontend.tokenizer import Tokenizer
from pellucid.frontend.tools import Tool

AUTO = "auto"
NONE = "none"

TOOL_FORMATS: dict[str, ToolFormat] = {
    f.name: f
    for f in (
        HERMES,
        SMOLLM,
        LLAMA3_JSON,
        XmlToolFormat(),
        MistralToolFormat(),
        MistralToolFormat("mistral_args", names_first=True),
        GemmaToolFormat("functiongemma", "<start_function_call>", "<end_function_call>", "<escape>"),
        GemmaToolFormat("gemma", "<|tool_call>", "<tool_call|>", '<|"|>'),
        PythonicToolFormat(),
    )
}
REASONING_FORMATS: dict[str, ReasoningFormat] = {
    f.name: f
    for f in (
        ReasoningFormat("think", "<think>", "</think>"),
        ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
        ReasoningFormat("gemma", "<|channel>thought\n", "<channel|>"),
        ReasoningFormat("seed", "<seed:think>", "</seed:think>"),
        ReasoningFormat("command", "<|START_THINKING|>", "<|END_THINKING|>"),
    )
}

# what a template that teaches a format is sure to hold; the first that fits is taken
_TOOL_SIGNS = (
    ("qwen3_coder", "<function="),
    ("functiongemma", "<start_function_call>"),
    ("gemma", "<|tool_call>"),
    ("mistral_args", "[ARGS]"),
    ("mistral", "[TOOL_CALLS]"),
    ("smollm", "<tool_call>["),
    ("hermes", "<tool_call>"),
    ("llama3_json", "<|python_tag|>"),
    ("pythonic", "<|python_start|>"),
    ("pythonic", "func_name1("),
    ("pythonic", "<start_of_turn>"),  # Gemma 2 and 3: what their makers advise to ask for
    ("llama3_json", '"parameters": '),
)


@dataclass(frozen=True)
class AnswerFormats:
    """tools: None where calls are not looked for. template_has_tools: the model's own template describes them.
    marker_ids: special tokens that stay in the text, since a format needs them. warnings: for whoever starts the model.
    tools_warning: for the first request that has tools.
    """

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    template_has_tools: bool = False
    marker_ids: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()
    tools_warning: str = ""

    def parser(
        self, *, tools: Sequence[Tool] = (), reasons: bool = True, reasoning_is_open: bool = False
    ) -> AnswerParser:
        """For one answer. tools: those that may be called; without any, what looks like a call is content."""
        return answer_parser(
            self.reasoning if reasons else None,
            is_open=reasoning_is_open,
            calls=self.tools.parser(tools) if tools and self.tools is not None else None,
        )

    def calls_grammar(
        self,
        tools: Sequence[Tool],
        special: Callable[[str], int | None],
        *,
        required: bool,
        parallel: bool,
        content: str | None = None,
    ) -> str:
        """Of answers that call only these tools, with arguments that fit their schemas; the other arguments are those
        of `tools_grammar`. special: marker -> its token id, where it is a special token. Raises CallSchemaError.
        """
        assert self.tools is not None
        writer = GrammarWriter(special, self.tools.markers)
        calls = [self.tools.call_term(writer, tool, f"call_{i}") for i, tool in enumerate(tools)]
        return tools_grammar(
            writer,
            self.tools.frame if content is None else self.tools.marked_frame,
            calls,
            required=required,
            parallel=parallel,
            content=content,
            after_reasoning=self.reasoning is not None,
        )


def find_formats(tokenizer: Tokenizer, tool_parser: str = AUTO, reasoning_parser: str = AUTO) -> AnswerFormats:
    """tool_parser, reasoning_parser: "auto", "none", or one of TOOL_FORMATS, REASONING_FORMATS."""
    template = tokenizer.chat_template
    text = "\n".join(template.sources.values())
    warnings: list[str] = []
    tools_warning = ""

    def knows(marker: str) -> bool:
        return marker.strip() in text or tokenizer.token_to_id(marker.strip()) is not None

    reasoning = REASONING_FORMATS.get(reasoning_parser)
    if reasoning_parser == AUTO:
        reasoning = next((found for found in REASONING_FORMATS.values() if knows(found.begin.split("\n")[0])), None)
    elif reasoning is not None and not knows(reasoning.end):
        warnings.append(
            f"--reasoning-parser {reasoning_parser} looks for {reasoning.end}, which neither the chat template nor the "
            "vocabulary of this model has"
        )
    tools = TOOL_FORMATS.get(tool_parser)
    if tool_parser == AUTO:
        tools = TOOL_FORMATS[next((name for name, sign in _TOOL_SIGNS if sign in text), HERMES.name)]
    elif tools is not None and template.takes_tools and tools.markers and not any(map(knows, tools.markers)):
        warnings.append(
            f"--tool-call-parser {tool_parser} looks for {tools.markers[0]}, which neither the chat template nor the "
            "vocabulary of this model has"
        )
    if tools is not None and template.source is not None and not template.takes_tools:
        tools_warning = (
            f"this model was given no form for tool calls; requests with tools describe them in the {tools.name} form, "
            "which it may not follow"
        )
        if tool_parser != AUTO:  # whoever names a parser is about to use it
            warnings.append(tools_warning)
            tools_warning = ""
    markers = (*(tools.markers if tools else ()), *(reasoning.markers if reasoning else ()))
    ids = {tokenizer.token_to_id(marker.strip()) for marker in markers}
    return AnswerFormats(
        tools,
        reasoning,
        template.takes_tools,
        tuple(sorted(i for i in ids if i is not None and tokenizer.is_special(i))),
        tuple(warnings),
        tools_warning,
    )
