"""Where a model's files lie once it is resolved, and whether a directory holds a model at all. Torch-free."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pellucid.loader.errors import ModelError, ModelNotFoundError, SafetensorsError

WEIGHTS_FILE = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
MAX_JSON_BYTES = 256 << 20  # tokenizer.json of a large vocabulary has some 30 MiB
MAX_SHARDS = 10_000


@dataclass(frozen=True)
class ModelFiles:
    """ref: the name it was asked for by. directory: in the HF layout, or where the GGUF file lies. gguf: that file."""

    ref: str
    directory: Path
    gguf: Path | None = None

    @property
    def name(self) -> str:
        """A short name for people: the file's or the directory's."""
        return self.gguf.stem if self.gguf is not None else self.directory.name


def read_json(path: Path) -> Any:
    """A JSON file of a model; raises ModelError where it is too large, not UTF-8 or not JSON."""
    try:
        size = path.stat().st_size
        if size > MAX_JSON_BYTES:
            raise ModelError(f"{path}: {size} bytes are too many for a JSON file of a model (at most {MAX_JSON_BYTES})")
        return json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path}: can't be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{path}: not valid JSON ({error or 'nested too deeply'})") from error


def shard_paths(directory: Path) -> list[Path]:
    """The safetensors files of a checkpoint, all of them present; raises SafetensorsError naming what is missing."""
    index = directory / WEIGHTS_INDEX
    if not index.is_file():
        return [directory / WEIGHTS_FILE]
    names = _shard_names(index)
    if missing := missing_shards(directory):
        raise SafetensorsError(
            f"{directory}: missing of the {len(names)} shards in {WEIGHTS_INDEX}: {', '.join(missing)}"
        )
    return [directory / name for name in names]


def missing_shards(directory: Path) -> list[str]:
    """The names of the shards that the checkpoint's index tells of and that are not there."""
    return [name for name in _shard_names(directory / WEIGHTS_INDEX) if not (directory / name).is_file()]


def _shard_names(index: Path) -> list[str]:
    names = sorted(set(read_weight_map(index).values()))
    if len(names) > MAX_SHARDS:
        raise SafetensorsError(f"{index}: {len(names)} shards; the limit is {MAX_SHARDS}")
    return names


def read_weight_map(index: Path) -> dict[str, str]:
    """tensor name -> file name in the same directory."""
    content = read_json(index)
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise SafetensorsError(f"{index}: has no weight_map")
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not name.endswith(".safetensors") or "/" in name or "\\" in name:
            raise SafetensorsError(f"{index}: {tensor!r} is said to lie in {name!r}, not a .safetensors file beside it")
    return weight_map


def model_in_directory(ref: str, directory: Path) -> ModelFiles:
    """A directory with config.json and safetensors, or one .gguf file. Raises ModelError saying what is missing."""
    names = sorted(path.name for path in directory.iterdir())
    ggufs = [name for name in names if name.endswith(".gguf")]
    if "config.json" in names:
        if WEIGHTS_INDEX in names or WEIGHTS_FILE in names:
            shard_paths(directory)
            return ModelFiles(ref, directory)
        pickles = [name for name in names if name.endswith(PICKLE_SUFFIXES)]
        if pickles and not ggufs:
            raise ModelError(
                f"{directory}: its weights are pickle files ({', '.join(pickles[:4])}), which can run code when "
                "they are read and are refused; convert them to safetensors"
            )
    if len(ggufs) == 1:
        return ModelFiles(ref, directory, directory / ggufs[0])
    if ggufs:
        raise ModelError(f"{directory}: holds several GGUF files, name one of them: {', '.join(ggufs)}")
    missing = f"{WEIGHTS_FILE} or {WEIGHTS_INDEX}" if "config.json" in names else "config.json"
    raise ModelNotFoundError(f"{directory}: not a model's directory: no {missing}, and no .gguf file")
