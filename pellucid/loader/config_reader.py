"""`read_model_config`: what a model's files say about its shape, whichever format they have. Torch-free."""

from __future__ import annotations

from pellucid.loader.gguf_config import read_gguf_config
from pellucid.loader.gguf_reader import GGUFFile
from pellucid.loader.hf_config import read_hf_config
from pellucid.loader.model_files import ModelFiles
from pellucid.models.config import ModelConfig


def read_model_config(files: ModelFiles) -> ModelConfig:
    """Raises UnsupportedModelError, listing what is supported, or another ModelError where the files make no sense."""
    if files.gguf is not None:
        return read_gguf_config(GGUFFile(files.gguf))
    return read_hf_config(files.directory)
