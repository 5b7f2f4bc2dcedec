"""A logits processor that makes any model say what a script tells: everything but the model's own opinion is real.

Give it to a server with `--logits-processor scripted_answers:ScriptedAnswers` and name the script's file in
PELLUCID_TEST_SCRIPT: a JSON list of [WORDS, ANSWER]. A prompt is answered with the ANSWER of the first entry whose
WORDS are in it ("" fits all), and the end of the turn. The file is read anew for each prompt.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch


class ScriptedAnswers:
    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._script = Path(os.environ["PELLUCID_TEST_SCRIPT"])
        self._answers: dict[tuple[int, ...], list[int]] = {}

    def __call__(self, prompt_token_ids: list[int], output_token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        key = tuple(prompt_token_ids)
        if not output_token_ids or key not in self._answers:
            self._answers[key] = self._answer(prompt_token_ids)
        answer = self._answers[key]
        token_id = answer[min(len(output_token_ids), len(answer) - 1)]
        # far above the others rather than alone: what a grammar forbids stays forbidden
        logits[token_id] = 1e9
        return logits

    def _answer(self, prompt_token_ids: list[int]) -> list[int]:
        prompt = self._tokenizer.decode(prompt_token_ids, skip_special_tokens=False)
        text = next(answer for words, answer in json.loads(self._script.read_text()) if words in prompt)
        return [*self._tokenizer.encode(text, add_special_tokens=False), self._tokenizer.eos_token_id]
