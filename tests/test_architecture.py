"""The house rules that a machine can check: who imports whom, who stays without torch, and what nobody ever calls."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pellucid"

# From the top of the house to the bottom: a room imports from rooms below it only.
ROOMS = [
    "cli",
    "bench",
    "lessons",
    "llm",
    "server",
    "frontend",
    "engine",
    "core",
    "runner",
    "rounding",
    "models",
    "layers",
    "loader",
    "structured",
    "sampling",
    "kernels",
    "observability",
    "config",
]
# The words that rooms speak to each other in: plain data that anybody may import, and that imports nothing else.
VOCABULARY = {
    "pellucid.config",
    "pellucid.core.messages",
    "pellucid.core.request",
    "pellucid.core.scheduler_output",
    "pellucid.models.config",
    "pellucid.observability.events",
    "pellucid.sampling.params",
    "pellucid.sampling.validate",
}
# (who, what): against the direction, each for a reason.
EXCEPTIONS = {
    # An operator's logits processor is constructed in the engine's process, and gets the tokenizer there. Grammars are
    # of bytes, and the tokenizer knows which a token stands for.
    ("pellucid.engine.build", "pellucid.frontend.tokenizer"),
}
TORCH_FREE_ROOMS = ["core", "frontend", "server", "observability", "bench", "cli", "engine", "structured"]
TORCH = {"torch", "transformers", "safetensors.torch"}
TORCH_EXCEPTIONS = {
    # engine/build.py puts torch and the rest together, inside of the function that the engine's process calls
    "pellucid.engine.build",
    # only for a checkpoint without tokenizer.json, whose older files no other library can convert
    "pellucid.frontend.hf_tokenizer",
}
RUNS_CODE = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "multiprocessing"}


def modules() -> list[str]:
    files = sorted(PACKAGE.rglob("*.py"))
    return [".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in files]


def tree_of(module: str) -> ast.Module:
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


def imports_of(module: str) -> Iterator[str]:
    """Every module that is imported anywhere in the file, also inside functions; not what only type checkers see."""

    def visit(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for child in node.orelse:
                yield from visit(child)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: a relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else str(node.module)
        else:
            for child in ast.iter_child_nodes(node):
                yield from visit(child)

    yield from visit(tree_of(module))


MODULES = set(modules())


def room_of(module: str) -> str | None:
    """None for the package itself and for `python -m pellucid`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] != "__main__" else None


def test_every_room_has_its_place() -> None:
    assert {room for module in MODULES if (room := room_of(module)) is not None} <= set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_imports_go_downwards_only(room: str) -> None:
    upwards = [
        f"{module} imports {imported}"
        for module in sorted(MODULES)
        if room_of(module) == room
        for imported in imports_of(module)
        if (other := room_of(imported)) is not None
        and imported.startswith("pellucid.")
        and other != room
        and imported not in VOCABULARY
        and (module, imported) not in EXCEPTIONS
        and ROOMS.index(other) < ROOMS.index(room)
    ]
    assert upwards == []


def test_the_vocabulary_speaks_only_of_itself() -> None:
    for module in VOCABULARY:
        ours = {imported for imported in imports_of(module) if imported.startswith("pellucid")}
        assert ours <= VOCABULARY, module


def test_every_exception_is_still_needed() -> None:
    assert {(module, imported) for module, imported in EXCEPTIONS if imported in set(imports_of(module))} == EXCEPTIONS
    assert {module for module in TORCH_EXCEPTIONS if TORCH & set(imports_of(module))} == TORCH_EXCEPTIONS


def test_no_module_imports_itself_in_a_circle() -> None:
    """Between whole modules at import time; what is imported inside a function cannot close a circle."""
    graph = {module: {name for name in top_level_imports(module) if name in MODULES} for module in MODULES}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path, module))
        if module not in done:
            for imported in graph[module]:
                visit(imported, (*path, module))
            done.add(module)

    for module in sorted(graph):
        visit(module, ())


def top_level_imports(module: str) -> set[str]:
    found: set[str] = set()
    for node in tree_of(module).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name for name in names if name in MODULES} or {str(node.module)}
    return found


# torch ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", TORCH_FREE_ROOMS)
def test_a_room_without_torch_never_mentions_it(room: str) -> None:
    mentioned = [
        f"{module} imports {imported}"
        for module in sorted(MODULES)
        if room_of(module) == room and module not in TORCH_EXCEPTIONS
        for imported in imports_of(module)
        if imported in TORCH or imported.split(".")[0] in TORCH
    ]
    assert mentioned == []


def test_importing_the_rooms_without_torch_does_not_load_it_through_others() -> None:
    names = [name for name in sorted(MODULES) if room_of(name) in TORCH_FREE_ROOMS and not name.endswith("__main__")]
    script = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    loaded = {'torch', 'transformers'} & set(sys.modules)\n"
        "    assert not loaded, f'{name} loads {loaded}'\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, *names], capture_output=True, text=True, cwd=ROOT, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr


# what runs code ------------------------------------------------------------------------------------------------------


def forbidden_calls(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in {"eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec"}:
                yield f"{node.lineno}: {name}(...)"
            if name in {"torch.load", "torch.save", "torch.hub.load", "numpy.load", "np.load", "os.system", "os.popen"}:
                yield f"{node.lineno}: {name}(...)"
            for keyword in node.keywords:
                switched_on = not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)
                if keyword.arg in {"trust_remote_code", "allow_pickle", "shell"} and switched_on:
                    yield f"{node.lineno}: {keyword.arg}"


@pytest.mark.parametrize("module", sorted(MODULES))
def test_nothing_in_the_package_can_run_foreign_code(module: str) -> None:
    assert list(forbidden_calls(tree_of(module))) == []
    assert [name for name in imports_of(module) if name.split(".")[0] in RUNS_CODE] == []


def test_the_ban_notices_what_it_bans() -> None:
    """A check that can't fail is none."""
    source = "eval('1')\ntorch.load(f)\nnp.load(f, allow_pickle=x)\nsubprocess.run(c, shell=True)\nf(shell=False)\n"
    assert [found.split(":")[0] for found in forbidden_calls(ast.parse(source))] == ["1", "2", "3", "3", "4"]


# size ----------------------------------------------------------------------------------------------------------------


def test_no_file_grows_beyond_what_one_reads_in_a_sitting() -> None:
    long = {file.name: count for file in PACKAGE.rglob("*.py") if (count := len(file.read_text().splitlines())) > 500}
    assert long == {}


def test_the_step_fits_on_a_screen() -> None:
    (step,) = (
        node
        for node in ast.walk(tree_of("pellucid.core.engine_core"))
        if isinstance(node, ast.FunctionDef) and node.name == "step"
    )
    assert step.end_lineno is not None
    assert step.end_lineno - step.lineno < 30
