"""The pages of the lessons: there is one for each stage, it says what it promises, and its numbers are the run's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pellucid.config import EngineConfig
from pellucid.engine.build import load_model_parts
from pellucid.lessons.ladder import STAGES, Measurement, run_stage
from pellucid.lessons.task import Task
from pellucid.lessons.texts import for_terminal, lesson_pages, lesson_summary, lesson_text
from pellucid.lessons.workbench import Workbench
from pellucid.lessons.workloads import mixed_lengths
from tests.models.tiny import VOCAB_SIZE, make_tiny_checkpoint

SMOLLM2_VOCAB_SIZE = 49152


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Measurement]:
    """The lengths of `pellucid lessons run` on SmolLM2, on a small model: what is counted depends on lengths alone."""
    directory = tmp_path_factory.mktemp("model")
    make_tiny_checkpoint(directory, "qwen3")
    loaded = load_model_parts(EngineConfig(model=str(directory), num_threads=1), lambda _: None)
    bench = Workbench(loaded.model, num_blocks=80)
    tasks = [
        Task([token % (VOCAB_SIZE - 1) + 1 for token in task.token_ids], task.max_tokens)
        for task in mixed_lengths(24, SMOLLM2_VOCAB_SIZE)
    ]
    return {number: run_stage(bench, *STAGES[number], tasks)[0] for number in STAGES}


def test_every_stage_has_its_page_and_every_page_its_stage() -> None:
    assert list(lesson_pages()) == list(STAGES)
    for number, (name, _) in STAGES.items():
        assert lesson_summary(number)[0].lower() == name.lower()


@pytest.mark.parametrize("number", STAGES)
def test_a_page_says_the_problem_the_idea_the_place_and_what_is_still_wrong(number: int) -> None:
    headings = re.findall(r"^## (.+)$", lesson_text(number), re.MULTILINE)
    assert headings[:2] == ["The problem", "The idea"]
    assert headings[-2:] == ["Where it lives in the engine", "What is still wrong"]
    module = STAGES[number][1].__module__.rpartition(".")[2]
    assert f"pellucid/lessons/{module}.py" in lesson_text(number), "the stage's own file"
    assert "../../pellucid/core/" in lesson_text(number).partition("## Where it lives")[2], "the engine's"


@pytest.mark.parametrize(
    ("page", "stage", "attribute", "written"),
    [
        (1, 1, "computed_tokens", "13,164"),
        (1, 1, "recomputed", "90 %"),
        (2, 2, "computed_tokens", "1,301"),
        (2, 2, "kv_waste", "83 %"),
        (3, 3, "steps", "134"),
        (3, 3, "computed_tokens", "2,312"),
        (3, 3, "padding", "44 %"),
        (3, 3, "kv_waste", "78 %"),
        (4, 4, "steps", "65"),
        (4, 4, "computed_tokens", "6,082"),
        (4, 4, "recomputed", "41 %"),
        (5, 5, "kv_waste", "12 %"),
        (5, 3, "kv_held", "446"),
        (5, 5, "kv_held", "111"),
        (5, 5, "computed_tokens", "1,301"),
        (6, 6, "steps", "65"),
        (6, 6, "computed_tokens", "1,301"),
        (7, 7, "computed_tokens", "821"),
        (8, 8, "computed_tokens", "821"),
    ],
)
def test_the_numbers_in_the_text_are_those_of_a_run(
    measured: dict[int, Measurement], page: int, stage: int, attribute: str, written: str
) -> None:
    value = getattr(measured[stage], attribute)
    assert (f"{100 * value:.0f} %" if written.endswith("%") else f"{value:,.0f}") == written
    assert re.search(rf"(?<![\d,]){re.escape(written)}(?![\d,])", lesson_text(page)), "no longer in the text"


def test_an_unknown_lesson_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="there is no lesson 9; choose 1 to 8"):
        lesson_text(9)


def test_a_link_is_shown_with_its_file_where_nothing_can_be_clicked() -> None:
    shown = for_terminal(
        "see [`run`](../../pellucid/lessons/kv_cache.py) and [`a.py`](../../x/a.py), [web](https://x.y)"
    )
    assert shown == "see `run` (pellucid/lessons/kv_cache.py) and `a.py`, web"


def test_the_texts_travel_with_the_package() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert '"docs/lessons" = "pellucid/lessons/texts"' in project
