"""What can be wrong with a model before it runs. All are ValueErrors whose text is meant for the user's eyes."""

from __future__ import annotations


class ModelError(ValueError):
    """A model that can't be used as it is; the text names the value and the way out."""


class ModelNotFoundError(ModelError):
    """The name leads to no model: no such file, package or hub repository, or it can't be fetched now."""


class UnsupportedModelError(ModelError):
    """A whole and valid model of a kind that Pellucid does not compute; the text lists what it does."""


class GGUFError(ModelError):
    """A .gguf file that is cut off, damaged or not what it says."""


class SafetensorsError(ModelError):
    """A safetensors checkpoint that is incomplete, damaged or not what its index says."""


class ModelConfigError(ModelError):
    """A config.json or GGUF metadata that does not describe a decoder."""
