"""The page of each stage: docs/lessons in a checkout, a copy of it inside the package where that was installed."""

from __future__ import annotations

import re
from pathlib import Path

_LINK = re.compile(r"\[(`[^`\]]+`|[^\]]+)\]\(([^)]+)\)")
_LESSON = re.compile(r"(\d\d)-[\w-]+\.md(?:#.*)?")


def lessons_directory() -> Path:
    """Raises FileNotFoundError where neither is there."""
    package = Path(__file__).parent
    for directory in (package / "texts", package.parents[1] / "docs" / "lessons"):
        if directory.is_dir():
            return directory
    raise FileNotFoundError("the texts of the lessons are not installed; they are in docs/lessons of the repository")


def lesson_pages() -> dict[int, Path]:
    """By number: docs/lessons/03-static-batch.md is 3."""
    return {int(page.name[:2]): page for page in sorted(lessons_directory().glob("[0-9][0-9]-*.md"))}


def lesson_text(number: int) -> str:
    """The page, as Markdown. Raises ValueError for a number that no lesson has."""
    pages = lesson_pages()
    if number not in pages:
        raise ValueError(f"there is no lesson {number}; choose {min(pages)} to {max(pages)}")
    return pages[number].read_text(encoding="utf-8")


def lesson_summary(number: int) -> tuple[str, str]:
    """The title without its number, and the first sentence below it, which says what the lesson is about."""
    lines = [line for line in lesson_text(number).splitlines() if line]
    return lines[0].lstrip("# ").partition(". ")[2], lines[1]


def for_terminal(markdown: str) -> str:
    """Links as a person reads them where nothing can be clicked: the function, and the file it is in; of another
    lesson, the command that opens it."""

    def show(link: re.Match[str]) -> str:
        text, target = link.groups()
        if lesson := _LESSON.fullmatch(target):
            return f"{text} (pellucid lessons show {int(lesson[1])})"
        path = target.removeprefix("../../").partition("#")[0]
        return text if "://" in target or text.strip("`") in path else f"{text} ({path})"

    return _LINK.sub(show, markdown)
