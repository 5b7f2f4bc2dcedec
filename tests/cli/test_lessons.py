"""`pellucid lessons` as a person types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pellucid.kernels.cpu.native import load_native


def lessons(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pellucid", "lessons", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


QUANTIZATION = "none" if load_native()[0] is None else "int8"  # the torch kernels quantise nothing


def test_the_list_names_every_lesson_with_what_it_is_about() -> None:
    result = lessons()
    assert result.returncode == 0, result.stderr
    assert "3  Static batch" in result.stdout
    assert "Read them once for several requests" in result.stdout


def test_show_opens_a_lesson() -> None:
    result = lessons("show", "5")
    assert result.returncode == 0, result.stderr
    assert "# 5. Paged blocks" in result.stdout
    assert "`BlockPool` (pellucid/core/block_pool.py)" in result.stdout
    assert result.stdout.rstrip().endswith("(pellucid lessons show 6)."), "the way on is a command, not a file"
    assert lessons("show", "12").returncode == 1


def test_a_run_compares_stages_with_claims_and_engine_in_table_picture_and_json(tmp_path: Path) -> None:
    plot = tmp_path / "ladder.svg"
    arguments = (
        "run",
        "--num-requests",
        "4",
        "--max-batch",
        "2",
        "--stages",
        "3,5,6",
        "--quantization",
        QUANTIZATION,
        "--num-threads",
        "1",
    )
    result = lessons(*arguments, "--plot", str(plot), "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["same_tokens"] is True
    assert [stage["number"] for stage in report["stages"]] == [3, 5, 6, 0]
    assert [stage["name"] for stage in report["stages"]][-1] == "the engine"
    assert all(stage["tokens_per_second"] > 0 and stage["ttft_median_s"] > 0 for stage in report["stages"])
    assert {claim["claimed"] for claim in report["claims"]} == {"2-4x", "7.8x", "30 %", "0.50x", "-", "250x", "2-3 ms"}
    assert all(claim["measured"] > 0 for claim in report["claims"])
    assert "paged continuous batch" in plot.read_text()


def test_a_run_prints_a_table_and_bars(tmp_path: Path) -> None:
    result = lessons(
        "run",
        "--num-requests",
        "2",
        "--stages",
        "2,6",
        "--no-claims",
        "--quantization",
        QUANTIZATION,
        "--num-threads",
        "1",
    )
    assert result.returncode == 0, result.stderr
    assert "6 paged continuous batch" in result.stdout
    assert "█" in result.stdout
    assert "all gave the same tokens" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--stages", "3,9"), "there is no stage 9"),
        (("--stages", "three"), "write numbers like 3,6"),
        (("--plot", "/no/such/place/x.svg"), "there is no directory"),
        (("--plot", "x.gif"), "the name must end in"),
    ],
)
def test_what_cannot_be_run_is_said_at_once(arguments: tuple[str, ...], said: str) -> None:
    result = lessons("run", *arguments)
    assert result.returncode == 1
    assert said in result.stderr.strip().splitlines()[-1]
