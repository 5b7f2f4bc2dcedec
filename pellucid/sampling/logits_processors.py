"""Logits processors that an operator loads with `--logits-processor package.module:Class`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pellucid.sampling.errors import SamplingError

# (prompt_token_ids, output_token_ids, logits float32 [vocab_size]) -> logits of that shape, changed in place or new.
LogitsProcessorFunction = Callable[[list[int], list[int], torch.Tensor], torch.Tensor]


class LogitsProcessor:
    """A loaded processor under the name it was asked for; whatever goes wrong in it ends one request, by name."""

    def __init__(self, name: str, function: LogitsProcessorFunction) -> None:
        self.name = name
        self._function = function

    def __call__(self, prompt_token_ids: list[int], output_token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        """Raises SamplingError where the processor raises or returns anything but float logits of the same shape."""
        try:
            result = self._function(prompt_token_ids, output_token_ids, logits)
        except Exception as error:
            raise SamplingError(f"logits processor {self.name} failed: {type(error).__name__}: {error}") from error
        if not isinstance(result, torch.Tensor):
            raise SamplingError(
                f"logits processor {self.name} returned {_a_kind(result)} instead of a tensor "
                f"of shape {list(logits.shape)}"
            )
        if result.shape != logits.shape or not result.dtype.is_floating_point:
            raise SamplingError(
                f"logits processor {self.name} returned a tensor of shape {list(result.shape)} and type {result.dtype} "
                f"instead of shape {list(logits.shape)} and a floating-point type"
            )
        return result


def load_logits_processors(names: Sequence[str], tokenizer: Any) -> list[LogitsProcessor]:
    """Import each "package.module:Class" and construct it, once, with the tokenizer.

    Raises ValueError, naming the processor and the cause, where that fails.
    """
    return [LogitsProcessor(name, _construct(name, tokenizer)) for name in names]


def _import_beside_the_user(module_name: str) -> Any:
    """An operator's module may lie in the current directory, where a console script does not look by itself."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # last: it shadows nothing that is installed
    return importlib.import_module(module_name)


def _construct(name: str, tokenizer: Any) -> LogitsProcessorFunction:
    module_name, _, class_name = name.partition(":")
    if not module_name or not class_name:
        raise ValueError(f"logits processor {name!r}: expected package.module:Class")
    try:
        found: Any = _import_beside_the_user(module_name)
        for part in class_name.split("."):
            found = getattr(found, part)
    except Exception as error:  # a module may raise anything while it is imported
        raise ValueError(f"logits processor {name}: cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise ValueError(f"logits processor {name}: is {_a_kind(found)}, not a class")
    try:
        processor = found(tokenizer)
    except Exception as error:
        message = f"logits processor {name}: cannot be constructed with the tokenizer: {type(error).__name__}: {error}"
        raise ValueError(message) from error
    if not callable(processor):
        raise ValueError(
            f"logits processor {name}: has no __call__(prompt_token_ids, output_token_ids, logits) -> logits"
        )
    return processor


def _a_kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
