"""Logits processors, right and wrong ones, loaded by name as an operator would."""

from __future__ import annotations

import torch


class Recorder:
    constructed_with: list[object] = []

    def __init__(self, tokenizer):
        self.constructed_with.append(tokenizer)
        self.calls = []

    def __call__(self, prompt_token_ids, output_token_ids, logits):
        self.calls.append((prompt_token_ids, output_token_ids, logits.shape, logits.dtype))
        prompt_token_ids.append(999)  # must harm nobody
        output_token_ids.append(999)
        return logits


class Only7:
    def __init__(self, tokenizer):
        pass

    def __call__(self, prompt_token_ids, output_token_ids, logits):
        result = torch.full_like(logits, -float("inf"))
        result[7] = 0.0
        return result


class InPlace7:
    def __init__(self, tokenizer):
        pass

    def __call__(self, prompt_token_ids, output_token_ids, logits):
        logits[7] = 1000.0
        return logits


class FailsFor5:
    """Raises for requests whose prompt begins with 5."""

    def __init__(self, tokenizer):
        pass

    def __call__(self, prompt_token_ids, output_token_ids, logits):
        if prompt_token_ids[0] == 5:
            raise RuntimeError("no fives")
        return logits


class Returns:
    def __init__(self, value):
        self.value = value

    def __call__(self, prompt_token_ids, output_token_ids, logits):
        return self.value


class CannotBeMade:
    def __init__(self, tokenizer):
        raise OSError("no such dictionary")


class NotCallable:
    def __init__(self, tokenizer):
        pass


A_NUMBER = 5
