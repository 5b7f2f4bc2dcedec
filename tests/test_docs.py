"""The documentation keeps its word: links lead somewhere, and no flag, metric or variable is left out."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
import typer.main

from pellucid.cli.main import build_app
from pellucid.observability.bus import ALWAYS_PUBLISHED
from pellucid.observability.events import Event
from pellucid.observability.metrics import FINISHED_REASONS, REJECTION_REASONS, Metrics
from pellucid.server.schemas.chat import ChatCompletionRequest
from pellucid.server.schemas.completions import CompletionRequest, GenerateRequest
from pellucid.server.schemas.responses import ResponsesRequest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "AGENTS.md", *sorted((ROOT / "docs").rglob("*.md"))]
SERVING = (ROOT / "docs/serving.md").read_text()
RESPONSES = (ROOT / "docs/responses.md").read_text()

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    links = _LINK.findall(_CODE_BLOCK.sub("", page.read_text()))
    local = [link.partition("#")[0] for link in links if "://" not in link and not link.startswith(("#", "mailto:"))]
    assert [link for link in local if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_that_names_a_function_leads_to_the_file_that_defines_it(page: Path) -> None:
    links = re.findall(r"\[`([A-Za-z_][\w.]*)`\]\(([^)\s]+\.py)\)", _CODE_BLOCK.sub("", page.read_text()))
    named = [(name, target) for name, target in links if not name.endswith(".py")]
    assert [(name, target) for name, target in named if name not in defined_in(page.parent / target)] == []
    if page.name == "tour.md" or re.match(r"lessons/\d", str(page.relative_to(page.parents[1]))):
        assert named, "a tour that leads nowhere"


@cache
def defined_in(file: Path) -> set[str]:
    """Functions and classes, and methods as Class.method; constants too."""
    found: set[str] = set()

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")
            if isinstance(node, ast.Assign):
                found.update(target.id for target in node.targets if isinstance(target, ast.Name))
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(prefix + node.target.id)

    visit(ast.parse(file.read_text()).body, "")
    return found


def test_every_flag_of_serve_is_in_the_guide() -> None:
    serve = typer.main.get_command(build_app()).commands["serve"]
    flags = [flag for option in serve.params if option.param_type_name == "option" for flag in option.opts]
    assert "--max-num-seqs" in flags
    assert [flag for flag in flags if not _names(flag)] == []


def test_every_metric_is_in_the_guide() -> None:
    metrics = Metrics("a-model")
    families = list(metrics.collect())
    assert len(families) > 20
    names = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    assert [name for name in sorted(names) if not _names(name)] == []
    assert [reason for reason in (*FINISHED_REASONS, *REJECTION_REASONS) if not _names(reason)] == []


def test_every_request_parameter_is_in_the_guide() -> None:
    models = (ChatCompletionRequest, CompletionRequest, GenerateRequest)
    fields = {field for model in models for field in model.model_fields}
    assert [field for field in sorted(fields) if not _names(field)] == []


def test_every_parameter_of_responses_is_in_their_guide() -> None:
    assert [field for field in ResponsesRequest.model_fields if not _names(field, RESPONSES)] == []


def test_every_environment_variable_is_in_the_guide() -> None:
    sources = [ROOT / "run", *(ROOT / "pellucid").rglob("*.py")]
    variables = {name for path in sources for name in re.findall(r"\bPELLUCID_[A-Z_]+\b", path.read_text())}
    assert "PELLUCID_CACHE" in variables
    assert [name for name in sorted(variables) if not _names(name)] == []


def test_the_python_examples_run() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/python.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) > 3
    program = "\n".join(blocks)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout


def _names(word: str, guide: str = SERVING) -> bool:
    """Does the guide say this word, whole, as code?"""
    return re.search(rf"`[^`\n]*(?<![\w-]){re.escape(word)}(?![\w-])[^`\n]*`", guide) is not None


def test_every_event_is_in_the_guide() -> None:
    guide = (ROOT / "docs/observability.md").read_text()
    listed = re.findall(r"^\| `(\w+)` \| (always|watched|front door) \|", guide, re.MULTILINE)
    told = {str(kind.__struct_config__.tag): kind for kind in get_args(Event)}
    assert sorted(name for name, _ in listed) == sorted(told)
    for name, when in listed:
        if when != "front door" and name != "snapshot":
            assert (told[name] in ALWAYS_PUBLISHED) == (when == "always"), name
