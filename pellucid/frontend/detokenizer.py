"""From token ids to text, one token at a time: whole code points only, and nothing of the prompt."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"
_LONGEST_TAIL = 3  # bytes of a code point that can be there without it being complete


class TokenTable(Protocol):
    """What must be known of a vocabulary to turn its tokens into text."""

    @property
    def special_token_ids(self) -> frozenset[int]: ...

    @property
    def has_byte_fallback(self) -> bool:
        """Whether single bytes have tokens of their own (<0x0A>, as in SentencePiece) among tokens of whole text."""

    @property
    def strips_leading_space(self) -> bool:
        """Whether a text that begins with a space is decoded without it, as tokenizers do that put one in front."""

    def token_bytes(self, token_id: int) -> bytes:
        """What the token adds to the text; empty for an id that has no token."""

    def is_byte_token(self, token_id: int) -> bool: ...


class IncrementalDetokenizer:
    """The pieces that `push` and `flush` return are, put together, what the whole output decodes to after its prompt.

    Each token costs its own length. Bytes that are no UTF-8 become U+FFFD exactly where a decode of the whole would put
    it, with one difference: where such bytes follow complete characters in a run of byte tokens, a SentencePiece
    decoder gives up the whole run; here the characters, which a stream has shown already, stay.

    prompt_token_ids: the output continues them. A code point that they leave open may be completed by the output and
    is then part of it. shown_token_ids: special tokens that are not skipped with the others.
    """

    def __init__(
        self,
        table: TokenTable,
        prompt_token_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
        shown_token_ids: Sequence[int] = (),
    ) -> None:
        self._table = table
        self._skipped = table.special_token_ids.difference(shown_token_ids) if skip_special_tokens else frozenset()
        self._has_byte_tokens = table.has_byte_fallback
        self._stream: _ByteLevelStream | _ByteFallbackStream = (
            _ByteFallbackStream() if self._has_byte_tokens else _ByteLevelStream()
        )
        has_text = self._read_tail(prompt_token_ids)
        self._strip_space = table.strips_leading_space and not has_text

    def _read_tail(self, prompt_token_ids: Sequence[int]) -> bool:
        """Bring the stream to where the prompt leaves it; returns whether the prompt has any text."""
        tail: list[tuple[bytes, bool]] = []
        num_bytes = 0
        for token_id in reversed(prompt_token_ids):
            if num_bytes >= _LONGEST_TAIL:
                break
            if token_id in self._skipped:
                continue
            data = self._table.token_bytes(token_id)
            if data:
                tail.append((data, self._table.is_byte_token(token_id)))
                num_bytes += len(data)
        for data, is_byte in reversed(tail):
            self._stream.push(data, is_byte)
        self._stream.disown()
        return num_bytes > 0

    @property
    def has_pending_bytes(self) -> bool:
        """Whether the last tokens are the beginning of a code point whose end is to come."""
        return self._stream.has_pending

    def push(self, token_id: int) -> str:
        """Take the next output token; returns the text that is now certain."""
        if token_id in self._skipped:
            return ""
        is_byte = self._has_byte_tokens and self._table.is_byte_token(token_id)
        text = self._stream.push(self._table.token_bytes(token_id), is_byte)
        return self._without_leading_space(text) if self._strip_space else text

    def flush(self) -> str:
        """The output is at its end: what is left of it."""
        return self._without_leading_space(self._stream.flush())

    def _without_leading_space(self, text: str) -> str:
        if self._strip_space and text:
            self._strip_space = False
            return text.removeprefix(" ")
        return text


class _ByteLevelStream:
    """Every token is bytes, and the text is their UTF-8 (byte-level BPE)."""

    def __init__(self) -> None:
        self.has_pending = False
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._owns_pending = True

    def disown(self) -> None:
        """Bytes that are pending now are somebody else's: left incomplete, they are not for us to replace."""
        self._owns_pending = not self.has_pending

    def push(self, data: bytes, is_byte: bool) -> str:
        if not self.has_pending:
            try:
                return data.decode()  # nearly every token is whole characters
            except UnicodeDecodeError:
                pass
        text = self._decoder.decode(data)
        self.has_pending = bool(self._decoder.getstate()[0])
        return self._ours(text)

    def flush(self) -> str:
        self.has_pending = False
        return self._ours(self._decoder.decode(b"", final=True))

    def _ours(self, text: str) -> str:
        if not self._owns_pending and text:
            self._owns_pending = True
            return text.removeprefix(REPLACEMENT)
        return text


class _ByteFallbackStream:
    """Tokens are text, except those that are one byte; bytes that make no character become one U+FFFD each."""

    def __init__(self) -> None:
        self._pending = b""
        self._num_disowned = 0  # of the pending bytes

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def disown(self) -> None:
        self._num_disowned = len(self._pending)

    def push(self, data: bytes, is_byte: bool) -> str:
        if not is_byte:
            return self.flush() + data.decode("utf-8", errors="replace")
        try:
            text = (self._pending + data).decode("utf-8")
        except UnicodeDecodeError as error:
            if error.start == 0 and error.reason == "unexpected end of data":
                self._pending += data
                return ""
            if self._pending:
                return self.flush() + self.push(data, True)
            return REPLACEMENT
        self._pending, self._num_disowned = b"", 0
        return text

    def flush(self) -> str:
        text = REPLACEMENT * (len(self._pending) - self._num_disowned)
        self._pending, self._num_disowned = b"", 0
        return text


def detokenize(
    table: TokenTable,
    token_ids: Sequence[int],
    prompt_token_ids: Sequence[int] = (),
    skip_special_tokens: bool = True,
) -> str:
    """The text of the whole output: what the pieces of a stream add up to."""
    detokenizer = IncrementalDetokenizer(table, prompt_token_ids, skip_special_tokens)
    return "".join([*map(detokenizer.push, token_ids), detokenizer.flush()])
