"""Grammars compiled on threads of their own, bounded in work and kept for the next request within a bound in bytes."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from pellucid.sampling.params import StructuredOutputsParams
from pellucid.structured.errors import ConstraintError
from pellucid.structured.grammar import grammar_of, kind_of
from pellucid.structured.vocabulary import GrammarVocabulary

CACHE_BYTES = 64 * 1024 * 1024
NUM_THREADS = 2
PROBED_TOKENS = 4

# Work, not time, so that the same grammar is taken or refused on every machine (comments: roughly, on one core).
_LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 1_000_000,  # 20 ms, to build the regular expressions
    "step_lexer_fuel": 200_000,  # 15 ms, in one step of one request
    "step_max_items": 50_000,
    "max_items_in_row": 2_000,
    "max_lexer_states": 50_000,  # 1 to 2 KiB each
    "max_grammar_size": 100_000,  # symbols
    "verbose_errors": False,
}

# What a compiled grammar takes, measured on schemas of 1 to 100 KiB: it grows with the text it was compiled from.
_BYTES_EACH = 256 * 1024
_BYTES_PER_CHARACTER = 64


_EXCERPT = re.compile(r"\d+ \|.*|[\^~ ]*|<non-verbose/>")

_QUOTED_REGEX = re.compile(r'^(at \d+\(\d+\): invalid regex ".*" \(in regex\): )?regex parse error: .* error: ')


class CompiledGrammar:
    """A grammar at its beginning; any number of requests may follow it, each with a matcher of its own."""

    def __init__(self, vocabulary: GrammarVocabulary, matcher: Any, num_characters: int) -> None:
        self.vocabulary = vocabulary
        self.num_bytes = _BYTES_EACH + _BYTES_PER_CHARACTER * num_characters
        self._matcher = matcher

    def new_matcher(self) -> Any:
        return self._matcher.deep_copy()


class GrammarCompiler:
    """Any thread may call it.

    make_vocabulary: called at the first use, on a thread of the compiler.
    """

    def __init__(self, make_vocabulary: Callable[[], GrammarVocabulary], cache_bytes: int = CACHE_BYTES) -> None:
        self._make_vocabulary = make_vocabulary
        self._cache_bytes = cache_bytes
        self._lock = threading.Lock()
        self._vocabulary_lock = threading.Lock()
        self._vocabulary: GrammarVocabulary | None = None
        self._cache: OrderedDict[StructuredOutputsParams, CompiledGrammar] = OrderedDict()
        self._pool: ThreadPoolExecutor | None = None
        self.cached_bytes = 0

    @property
    def vocabulary(self) -> GrammarVocabulary:
        with self._vocabulary_lock:
            if self._vocabulary is None:
                self._vocabulary = self._make_vocabulary()
            return self._vocabulary

    def run(self, work: Callable[[], Any]) -> Future[Any]:
        """Any work that needs the compiler or the vocabulary, on one of its threads."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="pellucid-grammars")
            return self._pool.submit(work)

    def compile(self, constraint: StructuredOutputsParams) -> CompiledGrammar:
        """Compile it, here and now, or take it from the cache. Raises ConstraintError."""
        with self._lock:
            found = self._cache.get(constraint)
            if found is not None:
                self._cache.move_to_end(constraint)
                return found
        compiled = compile_grammar(constraint, self.vocabulary)
        with self._lock:
            self._keep(constraint, compiled)
        return compiled

    def _keep(self, constraint: StructuredOutputsParams, compiled: CompiledGrammar) -> None:
        if constraint in self._cache or compiled.num_bytes > self._cache_bytes:
            return
        self._cache[constraint] = compiled
        self.cached_bytes += compiled.num_bytes
        while self.cached_bytes > self._cache_bytes:
            _, dropped = self._cache.popitem(last=False)
            self.cached_bytes -= dropped.num_bytes


def compile_grammar(constraint: StructuredOutputsParams, vocabulary: GrammarVocabulary) -> CompiledGrammar:
    """Raises ConstraintError where it cannot be read, goes beyond a limit, or allows no text at all."""
    from llguidance import LLMatcher, LLParserLimits

    kind = kind_of(constraint)
    grammar = grammar_of(constraint)
    matcher = LLMatcher(vocabulary.compiled, grammar, log_level=0, limits=LLParserLimits(**_LIMITS))
    _check(kind, matcher)
    _probe(kind, matcher.deep_copy(), vocabulary)
    return CompiledGrammar(vocabulary, matcher, len(grammar))


def _probe(kind: str, matcher: Any, vocabulary: GrammarVocabulary) -> None:
    """Go the first few steps: what breaks there is better said now than in the middle of an answer."""
    mask = np.zeros((vocabulary.vocab_size + 31) // 32, np.int32)
    eos = set(vocabulary.eos_token_ids)
    for i in range(PROBED_TOKENS):
        fill_mask(matcher, mask)
        _check(kind, matcher)
        if matcher.is_stopped():
            if i == 0 and not matcher.is_accepting():
                raise ConstraintError(kind, "no text satisfies it")
            return
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        first = next((token_id for token_id in allowed.tolist() if token_id not in eos), None)
        if first is None:
            if not matcher.is_accepting():
                raise ConstraintError(kind, "it asks for the token that ends the text, after which nothing can follow")
            return
        matcher.consume_token(first)
        _check(kind, matcher)


def fill_mask(matcher: Any, mask: np.ndarray) -> None:
    """mask: int32 [ceil(vocab_size / 32)], contiguous; bit i % 32 of word i // 32 is 1 afterwards where token i may
    follow."""
    matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)


def error_of(matcher: Any) -> str:
    """In one line, short enough to be sent to a client, without the excerpts of the source that llguidance prints."""
    lines = [line.strip() for line in str(matcher.get_error()).splitlines()]
    text = _QUOTED_REGEX.sub("invalid regex: ", " ".join(line for line in lines if not _EXCERPT.fullmatch(line)))
    if text.startswith("NoExtension"):
        return "no text satisfies it"
    return text if len(text) <= 400 else text[:300] + "…"


def _check(kind: str, matcher: Any) -> None:
    if matcher.is_error():
        raise ConstraintError(kind, error_of(matcher))
