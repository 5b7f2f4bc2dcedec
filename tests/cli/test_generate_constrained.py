"""`pellucid generate --json-schema`, `--regex`, `--choice`: what is printed fits, on a model that knows nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
from click.testing import Result
from small_model import make_checkpoint
from typer.testing import CliRunner

from pellucid.cli.main import build_app

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("small"))


def generate(model: Path, *options: str) -> Result:
    given = ["generate", str(model), "--prompt", "Is the mill open? ", "--num-kv-blocks", "32", "--seed", "5"]
    return CliRunner().invoke(build_app(), [*given, "--temperature", "1", *options])


def test_json_schema_of_a_file(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMA))
    result = generate(model, "--json-schema", str(file), "--max-new-tokens", "120")
    assert result.exit_code == 0, result.output
    jsonschema.validate(json.loads(result.stdout), SCHEMA)


def test_regex(model: Path) -> None:
    result = generate(model, "--regex", "[a-c]{4}-[0-9]{2}")
    assert result.exit_code == 0, result.output
    assert re.fullmatch("[a-c]{4}-[0-9]{2}", result.stdout.rstrip("\n"))


def test_choices(model: Path) -> None:
    result = generate(model, "--choice", "yes, it is", "--choice", "no")
    assert result.exit_code == 0, result.output
    assert result.stdout.rstrip("\n") in ("yes, it is", "no")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--regex", "a", "--choice", "a"], "give one of them"),
        (["--regex", "("], "unclosed group"),
        (["--json-schema", "/no/such/file"], "/no/such/file"),
    ],
)
def test_what_cannot_be_obeyed_is_one_line(model: Path, options: list[str], words: str) -> None:
    result = generate(model, *options)
    assert result.exit_code == 1
    assert words in result.stderr.strip().splitlines()[-1]
    assert "Traceback" not in result.output
