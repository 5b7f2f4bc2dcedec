"""`pellucid serve` on a small random checkpoint: real engine, real masks; made in a moment and quick to answer.

It reasons (its template opens `<think>`) and has the tokens that Qwen Coder fills in the middle with.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import RunningServer, serving
from tiny import CHAT_TEMPLATE, END_OF_TEXT_ID, TURN_END_ID, make_tiny_model, tiny_tokenizer

PREFIX, SUFFIX, MIDDLE = FIM_TOKENS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
NAME = "small"


def make_checkpoint(directory: Path, *words: str, **advised: float) -> Path:
    """words: to be tokens of their own. advised: sampling, in generation_config.json."""
    tokenizer = copy.deepcopy(tiny_tokenizer())
    tokenizer.add_special_tokens({"additional_special_tokens": list(FIM_TOKENS)})
    tokenizer.add_tokens(["<think>", "</think>", *words])
    tokenizer.chat_template = CHAT_TEMPLATE.replace("assistant\n' }}", "assistant\n<think>\n' }}")
    model = make_tiny_model("qwen3", vocab_size=len(tokenizer))
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    generation = {"bos_token_id": END_OF_TEXT_ID, "eos_token_id": [TURN_END_ID, END_OF_TEXT_ID], **advised}
    (directory / "generation_config.json").write_text(json.dumps(generation))
    return directory


@contextmanager
def small_server(directory: Path, *options: str, **advised: float) -> Iterator[RunningServer]:
    """advised: see make_checkpoint. Idle again at the end, or the test fails."""
    given = ["--served-model-name", NAME, "--num-kv-blocks", "512", *options]
    with serving(str(make_checkpoint(directory, **advised)), *given) as server:
        yield server
