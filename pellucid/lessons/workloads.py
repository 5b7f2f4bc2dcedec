"""What the stages are measured on: made-up requests, the same for the same arguments."""

from __future__ import annotations

import random

from pellucid.lessons.task import Task

SHARED_PREFIX = 48  # tokens of the system prompt that every second request begins with
MAX_PROMPT, MAX_OUTPUT = 96, 48  # of mixed_lengths
LONG_PROMPT = 512


def mixed_lengths(num_tasks: int, vocab_size: int, seed: int = 0) -> list[Task]:
    """All there at once; prompts and answers of very different lengths, as in traffic: many short, a few long.

    Lengths are exponentially distributed, cut off at MAX_PROMPT and MAX_OUTPUT; every second prompt has a shared
    prefix in front.
    """
    rng = random.Random(seed)
    prefix = _tokens(rng, SHARED_PREFIX, vocab_size)
    tasks = []
    for index in range(num_tasks):
        own = _tokens(rng, _length(rng, mean=20, low=6, high=MAX_PROMPT - SHARED_PREFIX), vocab_size)
        prompt = prefix + own if index % 2 else own
        tasks.append(Task(prompt, _length(rng, mean=14, low=3, high=MAX_OUTPUT)))
    return tasks


def equal_lengths(
    num_tasks: int, num_prompt_tokens: int, max_tokens: int, vocab_size: int, seed: int = 0
) -> list[Task]:
    rng = random.Random(seed)
    return [Task(_tokens(rng, num_prompt_tokens, vocab_size), max_tokens) for _ in range(num_tasks)]


def long_prompts_between_short_ones(vocab_size: int, every_s: float, seed: int = 0) -> list[Task]:
    """24 short requests that arrive every every_s seconds, and two long prompts among them."""
    rng = random.Random(seed)
    short = [Task(_tokens(rng, 16, vocab_size), 12, arrival_s=index * every_s) for index in range(24)]
    long = [Task(_tokens(rng, LONG_PROMPT, vocab_size), 4, arrival_s=index * every_s) for index in (3.5, 13.5)]
    return short + long


def _length(rng: random.Random, mean: int, low: int, high: int) -> int:
    return min(max(round(rng.expovariate(1 / mean)), low), high)


def _tokens(rng: random.Random, num_tokens: int, vocab_size: int) -> list[int]:
    return [rng.randrange(1, vocab_size) for _ in range(num_tokens)]
