"""Log-probabilities in the shapes of the two OpenAI dialects, and of vLLM's prompt_logprobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pellucid.core.messages import TokenLogprob

TokenBytes = Callable[[int], bytes]  # the bytes a token adds to a text; b"" for one that is not shown


class TokenTexts:
    """Tokens as clients see them. A token that is part of a character is shown as bytes:\\xf0\\x9f, as OpenAI does."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._texts: dict[int, tuple[str, bytes]] = {}  # at most one entry per token of the vocabulary

    def __call__(self, token_id: int) -> tuple[str, bytes]:
        found = self._texts.get(token_id)
        if found is None:
            raw = self._token_bytes(token_id)
            try:
                text = raw.decode()
            except UnicodeDecodeError:
                text = "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
            found = self._texts[token_id] = (text, raw)
        return found


def most_likely(entry: TokenLogprob, count: int) -> list[tuple[int, float]]:
    """The `count` most likely tokens at a position, best first: the token that stands there is one of them or not."""
    ranked = dict(zip(entry.token_ids, zip(entry.ranks, entry.logprobs, strict=True), strict=True))
    best = sorted(ranked.items(), key=lambda item: item[1][0])[:count]
    return [(token_id, logprob) for token_id, (_, logprob) in best]


def chat_logprobs(entries: Sequence[TokenLogprob], num_top: int, texts: TokenTexts) -> dict[str, Any]:
    """choices[].logprobs of a chat completion."""

    def described(token_id: int, logprob: float) -> dict[str, Any]:
        text, raw = texts(token_id)
        return {"token": text, "logprob": logprob, "bytes": list(raw)}

    content = []
    for entry in entries:
        top = [described(token_id, logprob) for token_id, logprob in most_likely(entry, num_top)]
        content.append({**described(entry.token_ids[0], entry.logprobs[0]), "top_logprobs": top})
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """choices[].logprobs of a text completion: parallel lists. Offsets count characters of the choice's text."""

    def __init__(self, num_top: int, texts: TokenTexts, hidden_ids: frozenset[int]) -> None:
        """hidden_ids: tokens that are left out of the text (special ones, unless they are to be shown)."""
        self._num_top = num_top
        self._texts = texts
        self._hidden = hidden_ids
        self._offset = 0

    def __call__(self, token_ids: Sequence[int], entries: Sequence[TokenLogprob | None]) -> dict[str, Any]:
        """What comes next in the text. An entry is None where nothing precedes the token."""
        tokens: list[str] = []
        logprobs: list[float | None] = []
        top_logprobs: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for token_id, entry in zip(token_ids, entries, strict=True):
            text, raw = self._texts(token_id)
            tokens.append(text)
            offsets.append(self._offset)
            if token_id not in self._hidden:
                self._offset += sum(byte & 0xC0 != 0x80 for byte in raw)  # bytes that begin a character
            logprobs.append(None if entry is None else entry.logprobs[0])
            top_logprobs.append(None if entry is None else self._top(entry))
        return {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": top_logprobs, "text_offset": offsets}

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        """The token itself is always among them, as lm-eval and others expect."""
        top = {self._texts(token_id)[0]: logprob for token_id, logprob in most_likely(entry, self._num_top)}
        top.setdefault(self._texts(entry.token_ids[0])[0], entry.logprobs[0])
        return top


def prompt_logprobs(entries: Sequence[TokenLogprob | None], texts: TokenTexts) -> list[dict[str, Any] | None]:
    """vLLM's prompt_logprobs: a dict from token id to what is known of it, per position."""
    return [
        None
        if entry is None
        else {
            str(token_id): {"logprob": logprob, "rank": rank, "decoded_token": texts(token_id)[0]}
            for token_id, logprob, rank in zip(entry.token_ids, entry.logprobs, entry.ranks, strict=True)
        }
        for entry in entries
    ]
