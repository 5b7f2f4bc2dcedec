"""A model's tokens as grammars see them: bytes, special tokens, and what ends a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from pellucid.sampling.reasoning import Marker

MAX_MARKER_STATES = 1024  # a request may bring a marker of its own


class GrammarTokenizer(Protocol):
    """What is needed of a tokenizer."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def special_token_ids(self) -> frozenset[int]: ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def token_bytes(self, token_id: int) -> bytes: ...


def tokens_of(tokenizer: GrammarTokenizer, vocab_size: int) -> list[bytes]:
    """Of every id of the model's logits; b"" for one without a token."""
    return [tokenizer.token_bytes(i) if i < tokenizer.vocab_size else b"" for i in range(vocab_size)]


class GrammarVocabulary:
    """Made once an engine; a few tenths of a second for a large vocabulary.

    vocab_size: of the model's logits, which may be more than the tokenizer has; such ids are in no grammar.
    eos_token_ids: at least one.
    """

    def __init__(self, tokenizer: GrammarTokenizer, eos_token_ids: Sequence[int], vocab_size: int) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        if not eos_token_ids:
            raise ValueError("the model has no token that ends a text, so that no constrained output could end")
        self.vocab_size = vocab_size
        self.eos_token_ids = tuple(eos_token_ids)
        self.token_bytes = tokens_of(tokenizer, vocab_size)
        wrapper = TokenizerWrapper(_ForLLGuidance(tokenizer, self.token_bytes, eos_token_ids))
        self.compiled: Any = LLTokenizer(wrapper, n_vocab=vocab_size, eos_token=list(eos_token_ids))
        self._beyond: dict[tuple[bytes, int], list[int]] = {}

    def tokens_beyond(self, marker: Marker, matched: int) -> list[int]:
        """The tokens that complete a marker, of which `matched` bytes are there already, and go on after it."""
        key = (marker.marker, matched)
        if key not in self._beyond:
            if len(self._beyond) >= MAX_MARKER_STATES:
                self._beyond.clear()
            last = marker.marker[-1:]  # few tokens have it in front of their last byte
            self._beyond[key] = [
                token_id
                for token_id, data in enumerate(self.token_bytes)
                if last in data[:-1] and marker.advance(matched, data)[1] not in (None, len(data))
            ]
        return self._beyond[key]


class _ForLLGuidance:
    """Under the names that llguidance asks for."""

    bos_token_id = None

    def __init__(self, tokenizer: GrammarTokenizer, tokens: list[bytes], eos_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self.tokens = tokens
        self.eos_token_id = eos_token_ids[0]
        self.special_token_ids = sorted({*tokenizer.special_token_ids, *eos_token_ids})

    def __call__(self, text: bytes | str) -> list[int]:
        whole = text if isinstance(text, str) else text.decode("utf-8", "replace")
        return self._tokenizer.encode(whole, add_special_tokens=False)
