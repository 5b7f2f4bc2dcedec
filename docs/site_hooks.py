"""What mkdocs is told beside mkdocs.yml: which pages there are, and where links to source files lead.

The pages are written to be read in the repository, where a link to ../pellucid/core/scheduler.py opens the file. In
the site such a link leads to a page with that file, at the function that the link names. A new page needs no entry
anywhere.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
_LINK = re.compile(r"(\[(?P<text>[^\]]*)\]\()(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LANGUAGES = {".py": "python", ".cpp": "cpp", ".h": "cpp", ".md": "text", ".toml": "toml", "": "bash", ".json": "json"}
_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_SOURCE_LINK = re.compile(r'(href="[^"]*source/(?P<path>[^"#]+\.py)\.html)("[^>]*>)<code>(?P<name>[\w.]+)</code>')
_TEXT_LIMIT = 400_000  # bytes of a file that is shown

# the navigation: sections of pages and of whole folders, in this order; what is named nowhere goes under "More"
_SECTIONS: list[tuple[str, list[str]]] = [
    (
        "Use",
        [
            "serving.md",
            "commands.md",
            "python.md",
            "responses.md",
            "tools.md",
            "structured-output.md",
            "embeddings.md",
            "batch.md",
            "clients",
        ],
    ),
    ("Watch", ["observability.md", "ui.md"]),
    ("Learn", ["tour.md", "lessons"]),
    ("Measure", ["performance.md", "ladder.md", "plan.md"]),
    ("Decisions", ["decisions"]),
]


def on_files(files: Files, config: Any) -> Files:
    """The front page is the README; every source file that a page links to becomes a page."""
    pages = {file.src_uri: file for file in files.documentation_pages()}
    files.append(File.generated(config, "index.md", content=_front_page()))
    linked: set[str] = set()
    for uri in pages:
        linked |= set(_outside_links((ROOT / "docs" / uri).read_text(encoding="utf-8"), uri))
    linked |= set(_outside_links(_front_page(), "index.md"))
    files.append(File.generated(config, "commands.md", content=commands_page()))
    for path in sorted(linked):
        files.append(File.generated(config, _source_page(path), content=_as_page(path)))
    config["nav"] = _navigation([*sorted(pages), "commands.md"])
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.src_uri.startswith("source/"):
        return markdown
    return _outside_code(markdown, lambda text: _rewrite(text, page.file.src_uri))


def on_page_content(html: str, **_: Any) -> str:
    """A link that names a function leads to its line."""

    def to_line(link: re.Match[str]) -> str:
        line = _line_of(link["path"], link["name"])
        return f"{link[1]}{f'#__codelineno-0-{line}' if line else ''}{link[3]}<code>{link['name']}</code>"

    return _SOURCE_LINK.sub(to_line, html)


def _front_page() -> str:
    """The README, with its links as seen from docs/."""

    def from_docs(link: re.Match[str]) -> str:
        target = link["target"]
        if "://" in target or target.startswith("mailto:"):
            return link[0]
        moved = target.removeprefix("docs/") if target.startswith("docs/") else f"../{target}"
        return f"{link[1]}{moved or './'}{link['anchor'] or ''})"

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return _outside_code(readme, lambda text: _LINK.sub(from_docs, text))


def commands_page() -> str:
    """Every command with every option, as the command line itself declares them."""
    from typer.main import get_command

    from pellucid.cli.main import build_app

    introduction = "Every option of every command. What those of the engine mean: [for operators](serving.md)."
    lines = ["# Commands", "", introduction, ""]
    for name, command in _commands(get_command(build_app()), "pellucid"):
        parameters = [parameter for parameter in command.params if parameter.name != "help"]
        lines += [f"## {name}", "", *_paragraphs(command.help), "| option | default | |", "|---|---|---|"]
        lines += [_option_row(parameter) for parameter in parameters] + [""]
    return "\n".join(lines)


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The commands that do something, groups gone through."""
    children = getattr(command, "commands", {})
    if not children:
        yield name, command
    for child, inner in children.items():
        yield from _commands(inner, f"{name} {child}")


def _paragraphs(text: str | None) -> list[str]:
    return [*(text or "").strip().splitlines(), ""]


def _option_row(parameter: Any) -> str:
    names = " ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
    if parameter.param_type_name == "argument":
        names = f"`{parameter.name.upper()}`"
    default = "" if parameter.default in (None, (), []) or callable(parameter.default) else f"`{parameter.default}`"
    return f"| {names} | {default} | {(getattr(parameter, 'help', '') or '').replace('|', chr(92) + '|')} |"


def _outside_code(markdown: str, change: Any) -> str:
    """Apply `change` to everything but fenced code."""
    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [change(markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(markdown[end:])])


def _outside_links(markdown: str, uri: str) -> list[str]:
    """Paths from the root of what a page links to outside docs/ (a directory stands for what is in it)."""
    found = []
    for link in _LINK.finditer(_FENCE.sub("", markdown)):
        path = _outside(link["target"], uri)
        if path is not None and (ROOT / path).is_file():
            found.append(path)
        elif path is not None and (ROOT / path).is_dir():
            found.append(path.rstrip("/"))
    return found


def _outside(target: str, uri: str) -> str | None:
    """The path from the root, where a target lies outside docs/; None for every other link."""
    if "://" in target or target.startswith(("mailto:", "/")):
        return None
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(uri), target))
    if target.endswith("/") and path == "docs/decisions":
        return path
    return None if path.startswith(("docs/", "..")) else path


def _rewrite(markdown: str, uri: str) -> str:
    def to_page(link: re.Match[str]) -> str:
        path = _outside(link["target"], uri)
        if path is None or not (ROOT / path).exists():
            return link[0]  # mkdocs says what is wrong with it
        page = posixpath.relpath(_source_page(path), posixpath.dirname(uri) or ".")
        return f"{link[1]}{page})"

    return _LINK.sub(to_page, markdown)


def _source_page(path: str) -> str:
    return f"source/{path.rstrip('/')}.md"


def _as_page(path: str) -> str:
    """A file as a page of code; of a directory, the list of its files."""
    place = ROOT / path
    if place.is_dir():
        shown = [item for item in place.iterdir() if not item.name.startswith((".", "_"))]
        names = sorted(item.name + "/" * item.is_dir() for item in shown)
        depth = "../" * path.count("/") + "../"
        is_documentation = path.startswith("docs/")
        entry = f"- [{{0}}]({depth}{path.removeprefix('docs/')}/{{0}})" if is_documentation else "- `{0}`"
        return f"# {path}\n\n" + "\n".join(entry.format(name) for name in names) + "\n"
    if place.stat().st_size > _TEXT_LIMIT or place.suffix in (".png", ".svg", ".gif"):
        return f"# {path}\n\nIn the repository.\n"
    fence = "`" * 5
    language = _LANGUAGES.get(place.suffix, "text")
    return f"# {path}\n\n{fence} {{.{language} linenums=1}}\n{place.read_text(encoding='utf-8')}\n{fence}\n"


def _line_of(path: str, name: str) -> int | None:
    """Where `Class.method` or `function` is defined in a Python file."""
    if not path.endswith(".py") or not re.fullmatch(r"[A-Za-z_][\w.]*", name):
        return None
    body: list[ast.stmt] = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
    line = None
    for part in name.split("."):
        found = [node for node in body if isinstance(node, _DEFINITIONS) and node.name == part]
        if not found:
            return None
        line, body = found[0].lineno, found[0].body
    return line


def _navigation(pages: list[str]) -> list[Any]:
    navigation: list[Any] = [{"Pellucid": "index.md"}]
    left = [page for page in pages if page != "index.md"]
    for title, members in _SECTIONS:
        entries = [page for member in members for page in left if page == member or page.startswith(f"{member}/")]
        if entries:
            navigation.append({title: entries})
        left = [page for page in left if page not in entries]
    if left:
        navigation.append({"More": left})
    return navigation
