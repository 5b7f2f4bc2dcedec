"""Text and conversations to token ids and back, over the `tokenizers` library; what each token is as bytes."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pellucid.frontend.chat_template import ChatTemplate, gguf_chat_template, hf_chat_template
from pellucid.frontend.gguf_tokenizer import SPACE, Vocabulary, build_gguf_tokenizer
from pellucid.frontend.hf_tokenizer import read_hf_tokenizer
from pellucid.loader.gguf_reader import GGUFFile
from pellucid.loader.model_files import ModelFiles
from pellucid.loader.resolve import resolve_model

if TYPE_CHECKING:
    import tokenizers

SHORT_TEXT = 4096  # characters; tokenising this much takes a millisecond or two
MAX_COMPOSED = 4  # code points that Unicode normalisation may make one of


class Tokenizer:
    """encode never adds anything but BOS/EOS; decode loses nothing but what the model's own tokenizer loses.

    Safe to use from several threads: the library holds no state between calls.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special_tokens: Mapping[str, str] | None = None,
        chat_template: ChatTemplate | None = None,
    ) -> None:
        """special_tokens: "bos_token", "eos_token", ... -> text, as chat templates name them."""
        self._backend = backend
        self.special_tokens: dict[str, str] = dict(special_tokens or {})
        self.chat_template = chat_template or ChatTemplate({})
        self.bos_token_id = self._id_of("bos_token")
        self.eos_token_id = self._id_of("eos_token")
        added = backend.get_added_tokens_decoder()
        self.added_tokens: dict[int, str] = {token_id: token.content for token_id, token in sorted(added.items())}
        self.special_token_ids: frozenset[int] = frozenset(i for i, token in added.items() if token.special)
        self._swallows_space = any(token.lstrip or token.rstrip for token in added.values())
        steps = _steps(backend.decoder, "decoders")
        self._is_byte_level = any(step["type"] == "ByteLevel" for step in steps)
        self.has_byte_fallback = any(step["type"] == "ByteFallback" for step in steps)
        self._spells_space = any(step["type"] in ("Metaspace", "Replace") for step in steps)
        self.strips_leading_space = any(_strips_leading_space(step) for step in steps)
        self._token_bytes: dict[int, bytes] = {}  # what `token_bytes` has spelled out before

    def _id_of(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self._backend.token_to_id(token)

    @property
    def vocab_size(self) -> int:
        """Ids run from 0 to below this; a model's embedding may have more rows, which have no token."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    # text to ids ----------------------------------------------------------------------------------------------------

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """add_special_tokens: put BOS (and EOS) around, as the model's makers do. A rendered chat template has its own
        already: False. Raises ValueError for a lone surrogate, which is no text."""
        return self.encode_batch([text], add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """`encode` of each."""
        checked = [_checked(text) for text in texts]
        if sum(map(len, checked)) <= SHORT_TEXT:
            return [self._backend.encode(text, add_special_tokens=add_special_tokens).ids for text in checked]
        # unlike the library's `encode`, this one lets other threads of the interpreter run
        return [found.ids for found in self._backend.encode_batch_fast(checked, add_special_tokens=add_special_tokens)]

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """The conversation through the model's chat template; options as ChatTemplate.render has them.

        Nothing is put around the text: a template writes its own BOS. Raises ChatTemplateError, ValueError.
        """
        return self.encode(self.chat_template.render(messages, **options), add_special_tokens=False)

    @cached_property
    def max_token_characters(self) -> int:
        """No text of n characters has fewer than n / this tokens. sys.maxsize where there is no such bound.

        A token's spelling is at least as long as its text: in the byte alphabet a character is a byte.
        """
        steps = _steps(self._backend.normalizer, "normalizers")
        composes = any(step["type"] in ("NFC", "NFKC") for step in steps)
        keeps_length = all(step["type"] in ("NFC", "Prepend") or _replaces_one_by_one(step) for step in steps)
        if self._swallows_space or not keeps_length or not (self._is_byte_level or self.has_byte_fallback):
            return sys.maxsize
        longest = max(map(len, self._backend.get_vocab(with_added_tokens=True)))
        return longest * (MAX_COMPOSED if composes else 1)

    # ids to text ----------------------------------------------------------------------------------------------------

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Ids without a token add nothing. Raises ValueError for a negative id or one beyond 32 bits."""
        try:
            return self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        except OverflowError as error:
            raise ValueError("a token id lies outside of 0 .. 4294967295") from error

    def id_to_token(self, token_id: int) -> str | None:
        """The token as the vocabulary spells it; None for an id without one."""
        return self._backend.id_to_token(token_id) if 0 <= token_id < 1 << 32 else None

    def token_to_id(self, token: str) -> int | None:
        return self._backend.token_to_id(token)

    def token_bytes(self, token_id: int) -> bytes:
        """Exactly what the token adds to the text, which need not be whole UTF-8; empty for an id without a token."""
        known = self._token_bytes.get(token_id)
        if known is None:
            known = self._spelled_out(token_id)
            if known:  # at most one entry per token of the vocabulary
                self._token_bytes[token_id] = known
        return known

    def _spelled_out(self, token_id: int) -> bytes:
        added = self.added_tokens.get(token_id)
        if added is not None:
            return added.encode("utf-8")
        token = self.id_to_token(token_id)
        if token is None:
            return b""
        if self._is_byte_level:
            try:
                return bytes([BYTE_OF_CHARACTER[char] for char in token])
            except KeyError:  # not spelled in the byte alphabet: a filler of the vocabulary
                return token.encode("utf-8")
        if self.has_byte_fallback and (byte := _byte_of(token)) is not None:
            return bytes([byte])
        return (token.replace(SPACE, " ") if self._spells_space else token).encode("utf-8")

    def is_byte_token(self, token_id: int) -> bool:
        """Whether it is one of the tokens that stand for a single byte of a character that has no token."""
        token = self.id_to_token(token_id) if self.has_byte_fallback else None
        return token is not None and token_id not in self.added_tokens and _byte_of(token) is not None

    def is_special(self, token_id: int) -> bool:
        return token_id in self.special_token_ids


def load_tokenizer(model: str | ModelFiles) -> Tokenizer:
    """model: resolved files, or a name whose files are on this machine already.

    Raises ModelError where the model has no tokenizer, or one of a kind that is not known.
    """
    files = resolve_model(model, local_files_only=True) if isinstance(model, str) else model
    if files.gguf is None:
        found = read_hf_tokenizer(files.directory)
        template = hf_chat_template(files.directory, found.special_tokens)
        return Tokenizer(found.tokenizer, found.special_tokens, template)
    metadata = GGUFFile(files.gguf).metadata
    vocabulary = Vocabulary.from_metadata(metadata, str(files.gguf))
    backend = build_gguf_tokenizer(metadata, vocabulary, str(files.gguf))
    template = gguf_chat_template(metadata, vocabulary.special_tokens)
    return Tokenizer(backend, vocabulary.special_tokens, template)


def _byte_alphabet() -> dict[str, int]:
    """How byte-level BPE spells bytes: printable Latin-1 as itself, the others as the characters from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_OF_CHARACTER = _byte_alphabet()


def _byte_of(token: str) -> int | None:
    """10 for "<0x0A>"."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return int(token[3:5], 16)
        except ValueError:
            return None
    return None


def _checked(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the text holds a lone surrogate (U+{ord(text[error.start]):04X}) at character {error.start}, which is no "
            "character and has no UTF-8"
        ) from error
    return text


def _steps(component: Any, members: str) -> list[dict[str, Any]]:
    """A decoder or normalizer of the library as the list of its steps, each as tokenizer.json would have it."""
    if component is None:
        return []
    described = json.loads(component.__getstate__())
    pending, flat = [described], []
    while pending:
        step = pending.pop(0)
        if step["type"] == "Sequence":
            pending = [*step[members], *pending]
        else:
            flat.append(step)
    return flat


def _strips_leading_space(step: dict[str, Any]) -> bool:
    if step["type"] == "Strip":
        return step.get("content") == " " and step.get("start", 0) > 0
    return step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never"


def _replaces_one_by_one(step: dict[str, Any]) -> bool:
    return step["type"] == "Replace" and step.get("pattern") == {"String": " "} and step.get("content") == SPACE
