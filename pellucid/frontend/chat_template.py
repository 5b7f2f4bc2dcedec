"""A conversation to the text a model reads: its own chat template, found in its files and rendered in a sandbox."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import Template, meta
from jinja2.exceptions import TemplateError, TemplateSyntaxError

from pellucid.frontend.template_sandbox import MAX_SIZE, ChatTemplateEnvironment, TemplateRefusal, metered
from pellucid.loader.errors import ModelError
from pellucid.loader.model_files import read_json

MAX_TEMPLATE_CHARACTERS = 4 << 20
_END_OF_PREFIX = "\u2402PELLUCID-END-OF-PREFIX\u2403 "  # its space tells whether the template trims
_PROBE = "pellucid-probe"
# what a template is called with by us; a client's own variables may not take their place
_RESERVED = {"messages", "tools", "documents", "add_generation_prompt"}


class ChatTemplateError(ValueError):
    """The model has no chat template, or its template does not take this conversation; the text is for the client."""


class ChatTemplate:
    """A model's templates by name: "default", and often "tool_use" for conversations with tools.

    sources: name -> text; {} for a model without. special_tokens: what templates call bos_token, eos_token, ...
    Safe to use from several threads.
    """

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str] | None = None) -> None:
        self.sources: dict[str, str] = dict(sources)
        self._special_tokens = dict(special_tokens or {})
        self._environment = ChatTemplateEnvironment()
        self._compiled: dict[str, Template] = {}

    @property
    def source(self) -> str | None:
        """The text of the template that conversations without tools are rendered by."""
        return self.sources.get("default")

    @cached_property
    def takes_tools(self) -> bool:
        """Whether the model's makers tell it in the template what it may call."""
        if "tool_use" in self.sources:
            return True
        try:
            return "tools" in meta.find_undeclared_variables(self._environment.parse(self.source or ""))
        except (TemplateError, RecursionError):
            return False  # rendering says what is wrong with it

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The text, special tokens spelled out: encode it with add_special_tokens=False, or BOS is there twice.

        messages: dicts with a role and a content (text, or a list of {"type": "text", "text": ...}), and what else the
        template knows. continue_final_message: end within the last message, for the model to go on with it.
        variables: the template's own, such as enable_thinking.
        Raises ChatTemplateError, quoting the template where it refuses.
        """
        taken = sorted(_RESERVED & variables.keys())
        if taken:
            raise ChatTemplateError(f"not a template's variable: {', '.join(taken)}")
        if continue_final_message and add_generation_prompt:
            raise ChatTemplateError(
                "add_generation_prompt begins a new message, continue_final_message goes on with one"
            )
        name = "tool_use" if tools and "tool_use" in self.sources else "default"
        # the template gets copies: what it is given stays the caller's, whatever a sandbox lets through
        given = [self._as_the_template_reads(name, message) for message in messages]
        if continue_final_message:
            _mark_end(given)
        text = self._run(
            name,
            {
                **self._special_tokens,
                **copy.deepcopy(variables),
                "messages": given,
                "tools": _copies(tools),
                "documents": _copies(documents),
                "add_generation_prompt": add_generation_prompt,
            },
        )
        return _cut_at_mark(text) if continue_final_message else text

    def _run(self, name: str, variables: dict[str, Any]) -> str:
        template = self._template(name)
        pieces: list[str] = []
        size = 0
        try:
            with metered():
                for piece in template.generate(variables):
                    size += len(piece)
                    if size > MAX_SIZE:
                        raise ChatTemplateError(f"the chat template writes more than {MAX_SIZE} characters")
                    pieces.append(piece)
        except TemplateRefusal as error:
            raise ChatTemplateError(f"the model's chat template refuses this conversation: {error}") from error
        except ChatTemplateError:
            raise
        except RecursionError as error:
            raise ChatTemplateError("the model's chat template calls itself without end") from error
        except Exception as error:  # a template is a program: whatever goes wrong in it is its own affair
            raise ChatTemplateError(f"the model's chat template can't render this conversation: {error}") from error
        return "".join(pieces)

    def _template(self, name: str) -> Template:
        compiled = self._compiled.get(name)
        if compiled is None:
            source = self.sources.get(name)
            if source is None:
                raise ChatTemplateError(
                    "this model has no chat template: it completes text, and takes prompts rather than messages"
                )
            try:
                compiled = self._environment.from_string(source)
            except TemplateSyntaxError as error:
                raise ChatTemplateError(
                    f"the model's chat template is broken at line {error.lineno}: {error}"
                ) from error
            except (TemplateError, RecursionError) as error:
                raise ChatTemplateError(f"the model's chat template is broken: {error}") from error
            self._compiled[name] = compiled
        return compiled

    # the content's form -------------------------------------------------------------------------------------------

    def _as_the_template_reads(self, name: str, message: Mapping[str, Any]) -> dict[str, Any]:
        """A copy, its content in the form that this template takes: text, or a list of parts."""
        given = copy.deepcopy(dict(message))
        content = given.get("content")
        if isinstance(content, list):
            texts = [_text_of(part) for part in content]
            if not self._takes_parts(name):
                given["content"] = "".join(texts)
        elif isinstance(content, str) and name == "default" and self._takes_parts_only:
            given["content"] = [{"type": "text", "text": content}]
        return given

    def _takes_parts(self, name: str) -> bool:
        return self._default_takes_parts if name == "default" else False

    @cached_property
    def _default_takes_parts(self) -> bool:
        # found out by trying: a template that adds up strings fails, one that prints the list shows its punctuation
        shown = self._probe([{"type": "text", "text": _PROBE}])
        return shown is not None and _PROBE in shown and f"'{_PROBE}'" not in shown and f'"{_PROBE}"' not in shown

    @cached_property
    def _takes_parts_only(self) -> bool:
        if not self._default_takes_parts:
            return False
        shown = self._probe(_PROBE)
        return shown is None or _PROBE not in shown

    @cached_property
    def takes_late_system(self) -> bool:
        """Does a system message behind others show in the prompt? Some templates refuse it, some leave it out."""
        shown = self._probe(_PROBE, role="system", before=[{"role": "user", "content": "Hello"}])
        return shown is not None and _PROBE in shown

    def _probe(self, content: Any, role: str = "user", before: Sequence[dict[str, Any]] = ()) -> str | None:
        messages = [*before, {"role": role, "content": content}]
        variables = {"messages": messages, "add_generation_prompt": False}
        try:
            return self._run("default", {**self._special_tokens, "tools": None, "documents": None, **variables})
        except ChatTemplateError:
            return None


def gguf_chat_template(metadata: Mapping[str, Any], special_tokens: Mapping[str, str]) -> ChatTemplate:
    """A file without a template gives one that refuses to render. Raises ModelError for one that is too long."""
    prefix = "tokenizer.chat_template"
    found = {"default": metadata.get(prefix)}
    for key, value in metadata.items():
        if key.startswith(f"{prefix}."):
            found[key.removeprefix(f"{prefix}.")] = value
    return _checked({name: source for name, source in found.items() if isinstance(source, str)}, special_tokens)


def hf_chat_template(directory: Path, special_tokens: Mapping[str, str]) -> ChatTemplate:
    """A directory without a template gives one that refuses to render. Raises ModelError where files can't be read."""
    return _checked(_hf_sources(directory), special_tokens)


def _checked(sources: dict[str, str], special_tokens: Mapping[str, str]) -> ChatTemplate:
    for name, source in sources.items():
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise ModelError(f"the chat template {name!r} is longer than {MAX_TEMPLATE_CHARACTERS} characters")
    return ChatTemplate(sources, special_tokens)


def _hf_sources(directory: Path) -> dict[str, str]:
    """chat_template.jinja and its neighbours go before tokenizer_config.json, as in transformers."""
    sources: dict[str, str] = {}
    for name in ("chat_template.json", "tokenizer_config.json"):
        path = directory / name
        content = read_json(path) if path.is_file() else {}
        stated = content.get("chat_template") if isinstance(content, dict) else None
        if isinstance(stated, str):
            sources["default"] = stated
        elif isinstance(stated, list):
            for entry in stated:
                if not isinstance(entry, dict) or not isinstance(entry.get("template"), str):
                    raise ModelError(f"{path}: chat_template is a list of something else than templates")
                sources[str(entry.get("name", "default"))] = entry["template"]
    for path in [directory / "chat_template.jinja", *sorted(directory.glob("additional_chat_templates/*.jinja"))]:
        if path.is_file():
            name = "default" if path.parent == directory else path.stem
            try:
                sources[name] = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ModelError(f"{path}: can't be read: {error}") from error
    return sources


def _copies(values: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    return None if values is None else [copy.deepcopy(dict(value)) for value in values]


def _text_of(part: Any) -> str:
    text = part.get("text") if isinstance(part, Mapping) else None
    if not isinstance(text, str) or part.get("type", "text") != "text":
        raise ChatTemplateError(
            f"a content part is {_shown(part)}; only text can be read: {{'type': 'text', 'text': ...}}"
        )
    return text


def _shown(value: Any) -> str:
    kind = value.get("type") if isinstance(value, Mapping) else None
    return f"of the type {kind!r}" if kind is not None else f"a {type(value).__name__}"


def _mark_end(messages: list[dict[str, Any]]) -> None:
    content = messages[-1].get("content") if messages else None
    if isinstance(content, str):
        messages[-1]["content"] = content + _END_OF_PREFIX
    elif isinstance(content, list) and content:
        content[-1]["text"] += _END_OF_PREFIX
    else:
        raise ChatTemplateError("continue_final_message needs a last message with text to go on with")


def _cut_at_mark(text: str) -> str:
    at = text.rfind(_END_OF_PREFIX.strip())
    if at < 0:
        raise ChatTemplateError("the model's chat template does not show the last message, which is to be continued")
    kept = text[:at]
    # a template that trims its messages would have trimmed the end of this one
    return kept if text.startswith(_END_OF_PREFIX, at) else kept.rstrip()
