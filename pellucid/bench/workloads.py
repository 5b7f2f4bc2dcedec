"""The prompts benchmarks run: random tokens, the same for the same seed, so that two engines can be compared."""

from __future__ import annotations

import random


def random_prompts(num_prompts: int, input_len: int, vocab_size: int, seed: int = 0) -> list[list[int]]:
    """num_prompts prompts of input_len token ids in [1, vocab_size), none sharing a prefix but by chance."""
    generator = random.Random(seed)
    return [[generator.randrange(1, vocab_size) for _ in range(input_len)] for _ in range(num_prompts)]
