"""From a configuration and a stream of tensors to a model that runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from pellucid.kernels.interface import Kernels
from pellucid.kernels.weights import WeightSource
from pellucid.loader.errors import ModelError
from pellucid.models.config import ModelConfig
from pellucid.models.model import Model
from pellucid.models.registry import MODELS, ModelFactory, model_factory

MAX_KEYS_LISTED = 8

Progress = Callable[[float], None]  # the fraction of the tensors that are loaded, 0..1


class WeightsError(ModelError):
    """A checkpoint whose tensors are not the model's; the text lists keys or names the one that does not fit."""


def load_model(
    config: ModelConfig,
    kernels: Kernels,
    weights: Iterable[tuple[str, WeightSource]],
    quantization: str | None = None,
    on_progress: Progress | None = None,
    max_model_len: int | None = None,
    models: Mapping[str, ModelFactory] = MODELS,
) -> Model:
    """Build the model and pack its weights as they come, so that no more than one layer's lie unpacked at a time.

    weights: (HF's key, tensor) in any order. max_model_len: positions to prepare for; None: all the config has.
    Raises UnsupportedModelError for an unknown architecture, WeightsError when keys are missing, unknown, given twice
    or of another shape; ValueError where the backend does not support a format or the quantisation.
    """
    length = config.max_position_embeddings if max_model_len is None else max_model_len
    model = model_factory(config.architecture, models)(config, kernels, length, quantization)
    slots = model.slots()
    ignored = re.compile("|".join(model.ignored_keys()) or r"(?!)")
    loaded: set[str] = set()
    unknown: list[str] = []
    for key, source in weights:
        take = slots.get(key)
        if take is None:
            if not ignored.fullmatch(key):
                unknown.append(key)
            continue
        if key in loaded:
            raise WeightsError(f"the checkpoint has {key!r} twice")
        loaded.add(key)
        try:
            take(source)
        except ValueError as error:
            raise WeightsError(f"{key}: {error}") from error
        if on_progress is not None:
            on_progress(len(loaded) / len(slots))
    missing = [key for key in slots if key not in loaded]
    if missing or unknown:
        raise WeightsError(_mismatch(config.architecture, missing, unknown))
    return model


def _mismatch(architecture: str, missing: list[str], unknown: list[str]) -> str:
    found = [
        f"{len(keys)} {what}: {', '.join(keys[:MAX_KEYS_LISTED])}{', ...' if len(keys) > MAX_KEYS_LISTED else ''}"
        for what, keys in (("missing", missing), ("unknown", unknown))
        if keys
    ]
    return f"the checkpoint's tensors are not those of {architecture}: {'; '.join(found)}"
