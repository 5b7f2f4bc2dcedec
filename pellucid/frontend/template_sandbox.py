"""The Jinja environment that a model's own chat template runs in: sandboxed, immutable, and bounded in work and size.

A template comes with the model's files, from whoever made them. Jinja's sandbox keeps it from the process and from
changing its inputs; what it lacks is an end: here every turn of a loop, every call, filter and test is counted, and no
value may grow beyond a limit, whether by operators, filters, methods or captured blocks.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, cast

from jinja2 import nodes, pass_context
from jinja2.exceptions import TemplateError, TemplateRuntimeError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_STEPS = 1_000_000  # turns of loops, calls, filters, tests
MAX_SECONDS = 5.0
MAX_SIZE = 32 << 20  # characters or items: of the output, and of any value on the way
MAX_INTEGER_BITS = 4096
_WIDE_FORMAT = re.compile(r"\d{5}|%[^a-zA-Z%]*\*|\{[^{}]*\{")  # a wide field, or a width from the arguments


class TemplateRefusal(TemplateError):
    """The template called raise_exception: the conversation is not one that it takes."""


class _Meter:
    """What one rendering has done so far."""

    def __init__(self) -> None:
        self._steps = 0
        self._deadline = time.monotonic() + MAX_SECONDS

    def step(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise TemplateRuntimeError(f"it takes more than {MAX_STEPS} steps")
        if time.monotonic() > self._deadline:
            raise TemplateRuntimeError(f"it takes longer than {MAX_SECONDS:g} s")


# not a variable of the template, which could then set it to something else
_METER: ContextVar[_Meter | None] = ContextVar("chat_template_meter", default=None)


@contextmanager
def metered() -> Iterator[None]:
    """Within this, one rendering is counted; beyond its limits it ends with a TemplateRuntimeError."""
    token = _METER.set(_Meter())
    try:
        yield
    finally:
        _METER.reset(token)


class GenerationTag(Extension):
    """{% generation %} ... {% endgeneration %} marks for training what the assistant wrote; here it changes nothing."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplateEnvironment(ImmutableSandboxedEnvironment):
    """trim_blocks, lstrip_blocks, tojson, raise_exception and strftime_now are as chat templates are written for."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols])
        self.filters["tojson"] = _tojson
        self.filters["format"] = _format
        for functions in (self.filters, self.tests):
            functions.update({name: _bounded_function(cast(Any, function)) for name, function in functions.items()})
        self.filters["bounded"] = _bounded
        self.filters["stepped"] = _step_filter
        del self.globals["lipsum"]  # makes up text of any length
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        _bound_children(template)
        return template

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        _step()
        _refuse_large_numbers(args, kwargs)
        return _bounded(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _refuse_wide_format(value.__self__)
        return wrapped

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            size = max(_size(left), _size(right))
            times = max((side for side in (left, right) if isinstance(side, int)), default=1)
            if size * times > MAX_SIZE:
                raise _too_large()
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            if abs(left) > 1 and left.bit_length() * right > MAX_INTEGER_BITS:
                raise _too_large()
        elif operator == "%" and isinstance(left, (str, bytes)):  # "%999999999d" % 1
            raise TemplateRuntimeError("the operator % on text is not supported")
        return _bounded(super().call_binop(context, operator, left, right))


def _bound_children(node: nodes.Node) -> None:
    """Put a meter on every loop, and a limit on what `~` and captured blocks put together."""
    for name, value in list(node.iter_fields()):
        if isinstance(value, list):
            setattr(node, name, [_bounded_node(item) for item in value])
        elif isinstance(value, nodes.Node):
            setattr(node, name, _bounded_node(value))
    if isinstance(node, nodes.For):
        node.body.insert(0, nodes.ExprStmt(_filtered(nodes.Const(True), "stepped")))
        if node.test is not None:  # sorts items out before the body sees them
            node.test = nodes.And(_filtered(nodes.Const(True), "stepped"), node.test)
    elif isinstance(node, nodes.AssignBlock):
        node.filter = _filtered(node.filter, "bounded")


def _bounded_node(node: Any) -> Any:
    if not isinstance(node, nodes.Node):
        return node
    _bound_children(node)
    return _filtered(node, "bounded") if isinstance(node, nodes.Concat) else node


def _filtered(node: nodes.Expr | None, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=1)


def _size(value: Any) -> int:
    return len(value) if isinstance(value, (str, bytes, list, tuple, dict)) else 0


def _too_large() -> TemplateRuntimeError:
    return TemplateRuntimeError(f"it makes a value of more than {MAX_SIZE} characters, items or so many digits")


def _bounded(value: Any) -> Any:
    if _size(value) > MAX_SIZE or (isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS):
        raise _too_large()
    return value


def _refuse_large_numbers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Widths, indents, repetitions: the value they ask for would be there before it could be measured."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, int) and abs(value) > MAX_SIZE:
            raise TemplateRuntimeError(f"the number {value} is too large for an argument")


def _refuse_wide_format(form: str) -> None:
    if _WIDE_FORMAT.search(form):
        raise TemplateRuntimeError("a format with a wide field is not supported")


def _bounded_function(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)  # keeps the mark that says whether the context is to be passed
    def bounded(*args: Any, **kwargs: Any) -> Any:
        _step()
        _refuse_large_numbers(args[1:], kwargs)
        return _bounded(function(*args, **kwargs))

    return bounded


def _step() -> None:
    meter = _METER.get()
    if meter is not None:
        meter.step()


@pass_context  # a filter without it, on a constant, would be computed once, when the template is compiled
def _step_filter(context: Context, value: Any) -> Any:
    _step()
    return value


def _format(value: Any, *args: Any, **kwargs: Any) -> str:
    form = str(value)
    _refuse_wide_format(form)
    return form % (kwargs or args)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As Python writes JSON: unlike Jinja's own filter it escapes no HTML, for the reader is no browser."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateRefusal(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
