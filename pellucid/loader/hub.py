"""Models on the Hugging Face hub: one snapshot of a repository, or one GGUF file of it, through huggingface_hub."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

from pellucid.loader.cache import Progress, disk_full
from pellucid.loader.errors import ModelError, ModelNotFoundError
from pellucid.loader.model_files import WEIGHTS_FILE, WEIGHTS_INDEX, ModelFiles, missing_shards, model_in_directory

# everything a model needs, and nothing that holds code or pickles
ALLOW_PATTERNS = [
    "*.safetensors",
    "model.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
]
IGNORE_PATTERNS = ["*/*.safetensors", "consolidated*.safetensors"]  # the same weights once more, in the makers' layout


def resolve_hub(
    ref: str,
    repo: str,
    revision: str | None,
    file: str | None,
    *,
    local_files_only: bool = False,
    on_progress: Progress | None = None,
) -> ModelFiles:
    """A snapshot of `repo`, or one .gguf `file` of it; the copy in the hub's cache is used where it is whole."""
    found = _cached(ref, repo, revision, file)
    if found is not None:
        return found
    if local_files_only:
        what = f"{file} of {repo}" if file else repo
        raise ModelNotFoundError(f"{ref}: {what} is not on this machine; fetch it once without --local-files-only")
    return _fetched(ref, repo, revision, file, on_progress)


def _cached(ref: str, repo: str, revision: str | None, file: str | None) -> ModelFiles | None:
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(repo, file or "config.json", revision=revision)
    if not isinstance(path, str):
        return None
    if file is not None:
        return ModelFiles(ref, Path(path).parent, Path(path))
    try:
        return model_in_directory(ref, Path(path).parent)
    except ModelError:  # a download that was broken off
        return None


def _fetched(ref: str, repo: str, revision: str | None, file: str | None, on_progress: Progress | None) -> ModelFiles:
    from huggingface_hub import constants, hf_hub_download, snapshot_download

    options: dict[str, Any] = {"revision": revision}
    if on_progress is not None:
        options["tqdm_class"] = _progress_bar(on_progress, f"fetching {repo}")
    try:
        if file is not None:
            path = Path(hf_hub_download(repo, file, **options))
            return ModelFiles(ref, path.parent, path)
        directory = snapshot_download(repo, allow_patterns=ALLOW_PATTERNS, ignore_patterns=IGNORE_PATTERNS, **options)
    except Exception as error:  # the network's exceptions are those of whichever HTTP library the hub client uses
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise disk_full(Path(constants.HF_HUB_CACHE), f"fetching {repo}") from error
        raise _explained(ref, repo, revision, file, error) from error
    return _checked(ref, repo, Path(directory))


def _explained(ref: str, repo: str, revision: str | None, file: str | None, error: Exception) -> ModelError:
    from huggingface_hub import errors as hub

    if isinstance(error, hub.GatedRepoError):
        return ModelError(f"{ref}: {repo} asks for consent to its terms: give it on its page, then set HF_TOKEN")
    if isinstance(error, hub.RepositoryNotFoundError):
        return ModelNotFoundError(f"{ref}: the hub has no {repo}, or it is private and HF_TOKEN is not set")
    if isinstance(error, hub.RevisionNotFoundError):
        return ModelNotFoundError(f"{ref}: {repo} has no revision {revision}")
    if isinstance(error, hub.LocalEntryNotFoundError):  # also an EntryNotFoundError, so it comes first
        missing = _missing(ref, repo, revision, file)
        return ModelNotFoundError(
            f"{ref}: the hub can't be reached, and this machine does not have {missing} of {repo}; try again with a "
            f"connection (the rest is kept), or name a directory that holds the model"
        )
    if isinstance(error, hub.EntryNotFoundError):
        return ModelNotFoundError(f"{ref}: {repo} has no file {file}")
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return ModelError(f"{ref}: the hub did not deliver {repo}: {reason}")


def _missing(ref: str, repo: str, revision: str | None, file: str | None) -> str:
    """What the hub's cache lacks of a model, in words."""
    from huggingface_hub import try_to_load_from_cache

    if file is not None:
        return file
    config = try_to_load_from_cache(repo, "config.json", revision=revision)
    if not isinstance(config, str):
        return "the files"
    directory = Path(config).parent
    if (directory / WEIGHTS_INDEX).is_file():
        return ", ".join(missing_shards(directory)) or "some files"
    return "some files" if (directory / WEIGHTS_FILE).is_file() else f"{WEIGHTS_FILE} or {WEIGHTS_INDEX}"


def _checked(ref: str, repo: str, directory: Path) -> ModelFiles:
    try:
        return model_in_directory(ref, directory)
    except ModelNotFoundError as error:
        raise ModelNotFoundError(
            f"{ref}: {repo} holds no safetensors model. Pickled weights (.bin, .pt) are not fetched; name one of its "
            f"GGUF files as {repo}:FILE.gguf"
        ) from error


def _progress_bar(on_progress: Progress, what: str) -> type[Any]:
    """A tqdm class that draws nothing and reports bytes; the hub client makes one for bytes and others for files."""
    from tqdm import tqdm

    class ReportingBar(tqdm):
        _report_lock = threading.Lock()

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._counts_bytes = kwargs.get("unit") == "B"
            kwargs.pop("name", None)
            super().__init__(*args, **{**kwargs, "disable": False, "file": _Nowhere()})

        def update(self, n: float | None = 1) -> bool | None:
            result = super().update(n)
            if self._counts_bytes:
                with self._report_lock:
                    on_progress(int(self.n), int(self.total) if self.total else None, what)
            return result

    return ReportingBar


class _Nowhere:
    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        return None
