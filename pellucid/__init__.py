"""Pellucid: a see-through LLM inference engine and server.

Importing the package costs nothing: each public name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pellucid.config import EngineConfig
    from pellucid.frontend.async_llm import AsyncLLM
    from pellucid.frontend.outputs import CompletionOutput, RequestOutput
    from pellucid.llm import LLM
    from pellucid.sampling.params import SamplingParams, StructuredOutputsParams

__version__ = "0.1.0"

_EXPORTS = {
    "LLM": "pellucid.llm",
    "AsyncLLM": "pellucid.frontend.async_llm",
    "CompletionOutput": "pellucid.frontend.outputs",
    "EngineConfig": "pellucid.config",
    "RequestOutput": "pellucid.frontend.outputs",
    "SamplingParams": "pellucid.sampling.params",
    "StructuredOutputsParams": "pellucid.sampling.params",
}

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "EngineConfig",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
]


def __getattr__(name: str) -> Any:
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module 'pellucid' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
