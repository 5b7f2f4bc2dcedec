"""Models from a hub: only the files a model needs, once; the second time without a single request."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hub_server import COMMIT, REPO, running_hub
from safetensors.numpy import save

PROGRAM = """
import json, sys
from pellucid.loader.resolve import resolve_model
from pellucid.loader.errors import ModelError
progress = []
try:
    local = sys.argv[2] == "local"
    found = resolve_model(sys.argv[1], local_files_only=local, on_progress=lambda *a: progress.append(a))
    answer = {"directory": str(found.directory), "gguf": found.gguf and str(found.gguf)}
except ModelError as error:
    answer = {"error": type(error).__name__, "message": str(error)}
print(json.dumps({**answer, "progress": progress}))
"""


def resolve(ref: str, url: str, cache: Path, *, local: bool = False) -> dict[str, Any]:
    """In a process of its own: the hub's address is read when its library is imported."""
    environment = {**os.environ, "HF_ENDPOINT": url, "HF_HOME": str(cache), "HF_HUB_DISABLE_XET": "1"}
    for name in ("HF_HUB_OFFLINE", "HF_HUB_CACHE", "HF_TOKEN"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, ref, "local" if local else "net"],
        env=environment, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


WEIGHTS = save({"a": np.zeros(1 << 16, np.float32)})
FILES = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
    "model.safetensors": WEIGHTS,
    "tokenizer.json": b"{}",
    "pytorch_model.bin": b"\x80pickle",
    "modeling_own.py": b"raise SystemExit",
    "original/consolidated.00.safetensors": b"twice",
    "consolidated.safetensors": b"twice",
    "small.gguf": b"GGUF....",
    "README.md": b"#",
}


def test_a_snapshot_holds_what_a_model_needs_and_no_code_and_no_pickles(tmp_path: Path) -> None:
    with running_hub(FILES) as hub:
        found = resolve(REPO, hub.url, tmp_path)
        directory = Path(found["directory"])
        assert sorted(p.name for p in directory.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
        assert (directory / "model.safetensors").read_bytes() == WEIGHTS
        assert directory.name == COMMIT
        done, total, what = found["progress"][-1]
        assert done == total == sum(len(FILES[name]) for name in ("config.json", "model.safetensors", "tokenizer.json"))
        assert REPO in what
        hub.requests.clear()
        again = resolve(REPO, hub.url, tmp_path)
        assert (again["directory"], hub.requests) == (found["directory"], [])
    assert resolve(REPO, hub.url, tmp_path, local=True)["directory"] == found["directory"]


def test_one_gguf_file_of_a_repository(tmp_path: Path) -> None:
    with running_hub(FILES) as hub:
        found = resolve(f"{REPO}:small.gguf", hub.url, tmp_path)
        assert Path(found["gguf"]).read_bytes() == FILES["small.gguf"]
        hub.requests.clear()
        assert resolve(f"{REPO}/small.gguf", hub.url, tmp_path)["gguf"] == found["gguf"]
        assert hub.requests == []
        missing = resolve(f"{REPO}:other.gguf", hub.url, tmp_path)
    assert (missing["error"], "no file other.gguf" in missing["message"]) == ("ModelNotFoundError", True)


def test_a_download_that_was_broken_off_is_completed(tmp_path: Path) -> None:
    shards = {f"model-0000{i}-of-00002.safetensors": save({f"t{i}": np.full(4, i, np.float32)}) for i in (1, 2)}
    index = json.dumps({"weight_map": {f"t{i}": name for i, name in zip((1, 2), shards, strict=True)}}).encode()
    files = {"config.json": FILES["config.json"], "model.safetensors.index.json": index, **shards}
    with running_hub(files) as hub:
        directory = Path(resolve(REPO, hub.url, tmp_path)["directory"])
        second = directory / "model-00002-of-00002.safetensors"
        second.resolve().unlink()
        second.unlink()
        refused = resolve(REPO, hub.url, tmp_path, local=True)
        assert refused["error"] == "ModelNotFoundError"
        offline = resolve(REPO, "http://127.0.0.1:9", tmp_path)
        assert f"does not have {second.name} of {REPO}; try again with a connection" in offline["message"]
        assert Path(resolve(REPO, hub.url, tmp_path)["directory"]) == directory
        assert second.read_bytes() == shards[second.name]


def test_a_repository_with_pickles_alone_is_refused(tmp_path: Path) -> None:
    with running_hub({"config.json": FILES["config.json"], "pytorch_model.bin": b"\x80"}) as hub:
        refused = resolve(REPO, hub.url, tmp_path)
    assert refused["error"] == "ModelNotFoundError"
    assert "no safetensors" in refused["message"]
    assert f"{REPO}:FILE.gguf" in refused["message"]


def test_what_the_hub_does_not_have_is_told(tmp_path: Path) -> None:
    with running_hub(FILES) as hub:
        refused = resolve("maker/nothing", hub.url, tmp_path)
    assert refused["error"] == "ModelNotFoundError"
    assert "no maker/nothing" in refused["message"]


@pytest.mark.parametrize("local", [True, False])
def test_without_the_hub_and_without_a_copy_the_error_says_so(local: bool, tmp_path: Path) -> None:
    refused = resolve(REPO, "http://127.0.0.1:9", tmp_path, local=local)
    assert refused["error"] == "ModelNotFoundError"
    assert REPO in refused["message"]
    if local:
        assert "on this machine; fetch it once without --local-files-only" in refused["message"]
    else:
        assert "the hub can't be reached, and this machine does not have the files of" in refused["message"]
