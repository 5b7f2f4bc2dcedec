"""Grammars (llguidance's Lark) that let a model write nothing but calls that parse and fit their schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pellucid.frontend.parsing.schema_types import is_text, properties_of
from pellucid.frontend.tools import JsonObject, Tool
from pellucid.structured.grammar import json_in_lark

MAX_CALLS = 64  # in one answer
_ANY = "(?s:.*)"  # text, as a regular expression
_SHORT = 100  # characters: a term that may stand twice and need no rule of its own
# of an arguments object as a whole: where arguments are written one by one, there is no place to hold them to it
_WHOLE_OBJECT_WORDS = ("anyOf", "oneOf", "allOf", "not", "if", "dependentRequired", "dependentSchemas", "minProperties",
                       "maxProperties", "propertyNames", "patternProperties", "$ref")  # fmt: skip


class CallSchemaError(ValueError):
    """A tool's schema says what calls in this format can't be held to; str() is for the client."""

    def __init__(self, tool: Tool, what: str) -> None:
        super().__init__(
            f"Invalid schema for function '{tool.name}': {what} is not supported for constrained calls of this model."
        )


@dataclass(frozen=True)
class CallFrame:
    """How calls stand together: OPEN, and each CALL_OPEN and what a format writes, SEPARATOR between them, CLOSE.

    trigger: the beginning of it all that no other text holds; "" where only what an answer begins with can be a call.
    """

    open: str = ""
    call_open: str = ""
    separator: str = ""
    close: str = ""
    trigger: str = ""


@dataclass
class GrammarWriter:
    """Rules under construction. special: the token id of a marker that is a special token, which a grammar has to name
    by its id; None for other text. A grammar may have so many rules and no more: there is none that need not be.
    """

    special: Callable[[str], int | None]
    markers: Sequence[str]
    rules: list[str] = field(default_factory=list)
    _texts: dict[tuple[tuple[str, ...], str], str] = field(default_factory=dict)  # (what it matches, end) -> its term

    def rule(self, name: str, body: str) -> str:
        self.rules.append(f"{name}: {body}")
        return name

    def text(self, text: str) -> str:
        """A literal, the special tokens in it by id."""
        for marker in self.markers:
            token_id = self.special(marker)
            before, found, after = text.partition(marker)
            if found and token_id is not None:
                return " ".join(part for part in (self.text(before), f"<[{token_id}]>", self.text(after)) if part)
        return json.dumps(text, ensure_ascii=False) if text else ""

    def json(self, schema: object, root: JsonObject | None = None) -> str:
        """root: the schema that references in this one lead into."""
        if isinstance(schema, dict) and root is not None and '"$ref"' in json.dumps(schema):
            schema = {**{k: v for k, v in root.items() if k in ("$defs", "definitions")}, **schema}
        schema = schema if isinstance(schema, dict) else {} if schema is True else {"not": {}}
        return json_in_lark(schema)

    def free_text(self, schema: JsonObject, end: str) -> str:
        """A string as it is, up to and with the marker that ends it."""
        marker = end.strip()
        options = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if options is not None:
            options = [option for option in options if isinstance(option, str) and marker not in option]
            if not options:
                return self.json({"enum": []})  # which the compiler refuses in words of its own
            return f"({' | '.join(json.dumps(option, ensure_ascii=False) for option in options)}) {self.text(end)}"
        bodies: tuple[str, ...] = ()
        if "pattern" in schema:
            bodies += (_unanchored(schema["pattern"]),)
        if "minLength" in schema or "maxLength" in schema:
            bodies += (f"(?s:.{{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}})",)
        if (bodies, end) not in self._texts:
            self._texts[bodies, end] = self._text_up_to(bodies, end, f"text_{len(self._texts)}")
        return self._texts[bodies, end]

    def _text_up_to(self, bodies: Sequence[str], end: str, name: str) -> str:
        """bodies: regular expressions, all of which it has to match."""
        marker = end.strip()
        escaped = _escaped(marker)
        if self.special(marker) is not None:  # no other token holds it, but several may spell it
            parts = [*(f"/{body}/" for body in bodies or [_ANY]), f"~/{_ANY}{escaped}{_ANY}/"]
            return f"{self.rule(name.upper(), ' & '.join(parts))} {self.text(end)}"
        # lazy: it ends with the first marker; what would go beyond one is excluded where a value has a least length
        # a line end before the marker is the format's own: of a value that has a form of its own it must not be part
        space = "" if not end.startswith("\n") else r"\n" if bodies else r"\n?"
        parts = [f"/{body}{space}{escaped}/" for body in bodies or [_ANY]]
        if bodies:
            parts.append(f"~/{_ANY}{escaped}(?s:.+)/")
        self.rules.append(f"{name}[lazy]: {self.rule(name.upper(), ' & '.join(parts))}")
        return name


def tools_grammar(
    writer: GrammarWriter,
    frame: CallFrame,
    calls: Sequence[str],
    *,
    required: bool,
    parallel: bool,
    content: str | None,
    after_reasoning: bool,
) -> str:
    """calls: the term of each tool. required: nothing but calls. content: a term that other answers have to match;
    None: any text, in which calls may come.
    """
    one = writer.rule("call", " | ".join(calls))
    again = _joined(writer.text(frame.separator + frame.call_open), one)
    more = f"({again}){{0,{MAX_CALLS - 1}}}" if parallel else ""
    opening = (frame.open + frame.call_open).removeprefix(frame.trigger)
    rest = writer.rule("calls", _joined(writer.text(opening), one, more, writer.text(frame.close)))
    trigger = writer.text(frame.trigger)
    if required:
        start = _joined(trigger, rest)
    elif content is not None:
        start = f"{_joined(trigger, rest)} | ({content})"
    elif not trigger:
        start = rf"{rest} | /[^\s{{\[<](?s:.*)/?"
    elif trigger.startswith("<"):  # a special token
        start = f"/(?s:.*)/ ({trigger} {rest})?"
    else:
        writer.rules.append(f"said[lazy]: /(?s:.*){_escaped(frame.trigger)}/")
        start = f"/(?s:.*)/ | said {rest}"
    space = r"/\n{1,2}/? " if after_reasoning else ""
    return "\n".join([f"start: {space}({start})", *writer.rules, ""])


def _joined(*terms: str) -> str:
    return " ".join(term for term in terms if term)


def arguments_one_by_one(
    writer: GrammarWriter,
    tool: Tool,
    argument: Callable[[str, object], str],
    separator: str,
    name: str,
    writable: re.Pattern[str],
) -> str:
    """A term for the arguments in the schema's order, the optional ones there or not.

    argument: (key, schema) -> term. name: where rules are needed they begin with it. writable: the keys that can be
    written and read back. Raises CallSchemaError.
    """
    root = tool.schema
    if word := next((word for word in _WHOLE_OBJECT_WORDS if word in root), None):
        raise CallSchemaError(tool, f"'{word}' of all arguments together")
    properties = properties_of(tool)
    required = dict.fromkeys(root.get("required") or ())
    keys = [*properties, *(key for key in required if key not in properties)]
    if (odd := next((key for key in keys if not writable.fullmatch(key)), None)) is not None:
        raise CallSchemaError(tool, f"an argument named {json.dumps(odd[:80], ensure_ascii=False)}")
    terms = [argument(key, properties.get(key, {})) for key in keys]
    is_required = [key in required for key in keys]
    between = writer.text(separator)
    if any(is_required) or not between:
        # before the first that has to be there a separator stands behind each, after it in front of each
        first = is_required.index(True) if between else -1
        written = [
            f"{term} {between}" if i < first else f"{between} {term}" if i > first else term
            for i, term in enumerate(terms)
        ]
        return " ".join(one if must else f"({one})?" for one, must in zip(written, is_required, strict=True))
    # rest_i: what may follow when something has been written
    following = '""'
    begin = ['""']
    for i in range(len(keys) - 1, -1, -1):
        term = terms[i] if len(terms[i]) <= _SHORT else writer.rule(f"{name}_{i}", terms[i])
        begin.append(f"{term} {following}")
        if i > 0:
            following = writer.rule(f"{name}_rest_{i}", f"{between} {term} {following} | {following}")
    return f"({' | '.join(begin)})"


def loosened(tool: Tool, *, one_by_one: bool) -> Tool:
    """A tool whose arguments need not fit its schema; they only have to be arguments."""
    parameters: JsonObject = {"type": "object", "additionalProperties": True}
    if one_by_one:  # there the schema decides how a value is written
        found = properties_of(tool)
        parameters["properties"] = {key: {"type": "string"} if is_text(found[key]) else {} for key in found}
    return replace(tool, parameters=parameters)


def closed(schema: JsonObject) -> JsonObject:
    """Of an arguments object: nothing but what is described, where the schema does not say otherwise."""
    return {"additionalProperties": False, **schema}


def _escaped(text: str) -> str:
    """As a regular expression between slashes."""
    return "".join(f"\\{char}" if char in "\\/.*+?|()[]{}^$" else char for char in text)


def _unanchored(pattern: str) -> str:
    """JSON Schema's patterns may match anywhere."""
    pattern = pattern.replace("/", r"\/")
    begin = "" if pattern.startswith("^") else r"(?s:.*)"
    end = "" if pattern.endswith("$") and not pattern.endswith(r"\$") else r"(?s:.*)"
    return f"{begin}({pattern.removeprefix('^')[: None if end else -1]}){end}"
