"""The tokenizer of a GGUF file, built anew for the `tokenizers` library from the vocabulary in its metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from pellucid.frontend.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from pellucid.loader.errors import GGUFError, UnsupportedModelError

SPACE = "\u2581"  # how SentencePiece spells a space

# tokenizer.ggml.token_type
UNKNOWN, CONTROL, USER_DEFINED, BYTE = 2, 3, 4, 6


SPECIAL_KINDS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


@dataclass(frozen=True)
class Vocabulary:
    """The part of the metadata that says what the tokens are. scores and merges are empty where the file has none.

    special_ids: "bos_token", "eos_token", "unk_token", "pad_token" -> id, for those that the file names.
    """

    tokens: list[str]
    types: np.ndarray
    scores: np.ndarray
    merges: list[str]
    special_ids: dict[str, int]

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], origin: str) -> Vocabulary:
        """Raises GGUFError where lists are missing, of unequal length, or an id lies outside."""
        tokens = metadata.get("tokenizer.ggml.tokens")
        if not isinstance(tokens, list) or not tokens:
            raise GGUFError(f"{origin}: holds no vocabulary (tokenizer.ggml.tokens)")
        types = _array(metadata, "tokenizer.ggml.token_type", np.ones(len(tokens), np.int32))
        scores = _array(metadata, "tokenizer.ggml.scores", np.zeros(0, np.float32))
        merges = metadata.get("tokenizer.ggml.merges", [])
        if len(types) != len(tokens) or len(scores) not in (0, len(tokens)) or not isinstance(merges, list):
            raise GGUFError(f"{origin}: {len(tokens)} tokens, {len(types)} token types and {len(scores)} scores")
        special_ids = {}
        for name, kind in SPECIAL_KINDS.items():
            token_id = metadata.get(f"tokenizer.ggml.{kind}_token_id")
            if token_id is not None:
                if not isinstance(token_id, int) or not 0 <= token_id < len(tokens):
                    raise GGUFError(
                        f"{origin}: tokenizer.ggml.{kind}_token_id is {token_id!r}, of {len(tokens)} tokens"
                    )
                special_ids[name] = token_id
        return cls(tokens, types, scores, merges, special_ids)

    @property
    def special_tokens(self) -> dict[str, str]:
        return {name: self.tokens[token_id] for name, token_id in self.special_ids.items()}

    def token_with_id(self, name: str) -> tuple[str, int] | None:
        token_id = self.special_ids.get(name)
        return None if token_id is None else (self.tokens[token_id], token_id)


def _array(metadata: Mapping[str, Any], key: str, default: np.ndarray) -> np.ndarray:
    value = metadata.get(key, default)
    return value if isinstance(value, np.ndarray) else np.zeros(0)


def build_gguf_tokenizer(metadata: Mapping[str, Any], vocabulary: Vocabulary, origin: str) -> tokenizers.Tokenizer:
    """Raises UnsupportedModelError where the kind of vocabulary is not known, GGUFError where it makes no sense."""
    model = metadata.get("tokenizer.ggml.model")
    if model == "gpt2":
        name = metadata.get("tokenizer.ggml.pre", "default")
        kind = PRE_TOKENIZERS.get(name)
        if kind is None:
            raise UnsupportedModelError(
                f"{origin}: the pre-tokenizer {name!r} is not known; known are {', '.join(PRE_TOKENIZERS)}"
            )
        tokenizer = _byte_level(vocabulary, kind, origin)
        adds_bos = kind.add_bos
    elif model == "llama":
        tokenizer = _sentencepiece(vocabulary, bool(metadata.get("tokenizer.ggml.add_space_prefix", True)), origin)
        adds_bos = True
    else:
        raise UnsupportedModelError(
            f"{origin}: the tokenizer model {model!r}; supported are gpt2 (BPE) and llama (SPM)"
        )
    _add_special_tokens(tokenizer, vocabulary)
    bos = vocabulary.token_with_id("bos_token") if metadata.get("tokenizer.ggml.add_bos_token", adds_bos) else None
    eos = vocabulary.token_with_id("eos_token") if metadata.get("tokenizer.ggml.add_eos_token", False) else None
    tokenizer.post_processor = surrounding(bos, eos)
    return tokenizer


def surrounding(bos: tuple[str, int] | None, eos: tuple[str, int] | None) -> processors.TemplateProcessing:
    """What is put around a text when special tokens are asked for: (token, id) in front, behind, or nothing."""
    return processors.TemplateProcessing(
        single=[*(["bos"] if bos else []), "$A", *(["eos"] if eos else [])],
        special_tokens=[
            {"id": name, "ids": [token[1]], "tokens": [token[0]]}
            for name, token in (("bos", bos), ("eos", eos))
            if token is not None
        ],
    )


def _byte_level(vocabulary: Vocabulary, kind: PreTokenizer, origin: str) -> tokenizers.Tokenizer:
    merges = []
    for line in vocabulary.merges:
        left, separator, right = line.partition(" ")
        if not separator:
            raise GGUFError(f"{origin}: the merge {line!r} is no pair")
        merges.append((left, right))
    tokenizer = tokenizers.Tokenizer(_bpe(_ids(vocabulary), merges, origin, ignore_merges=kind.ignore_merges))
    if kind.nfc:
        tokenizer.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in kind.patterns]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(vocabulary: Vocabulary, adds_space: bool, origin: str) -> tokenizers.Tokenizer:
    """SentencePiece's BPE: always the pair whose token has the best score; bytes where there is no token."""
    if not len(vocabulary.scores):
        raise GGUFError(f"{origin}: a SentencePiece vocabulary without scores")
    unknown = np.flatnonzero(vocabulary.types == UNKNOWN)
    tokenizer = tokenizers.Tokenizer(
        _bpe(
            _ids(vocabulary),
            merges_by_score(vocabulary),
            origin,
            byte_fallback=bool((vocabulary.types == BYTE).any()),
            unk_token=vocabulary.tokens[int(unknown[0])] if len(unknown) else None,
            fuse_unk=True,
        )
    )
    spelled = normalizers.Replace(" ", SPACE)
    steps: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if adds_space:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spelled])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = spelled
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def merges_by_score(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Every pair of tokens that together are a token, the best-scored token's pairs first.

    SentencePiece has no list of merges: of all neighbours it joins the two whose token scores best. As a ranked list,
    where the pairs of one token stand together, that is byte-pair encoding. Only normal tokens can come of a merge;
    user-defined ones are matched in the text before.
    """
    tokens, types = vocabulary.tokens, vocabulary.types
    normal = np.flatnonzero(types == 1)
    known = {tokens[i] for i in normal}
    merges: list[tuple[str, str]] = []
    for i in normal[np.argsort(-vocabulary.scores[normal], kind="stable")].tolist():
        token = tokens[i]
        for cut in range(1, len(token)):
            left = token[:cut]
            if left in known and token[cut:] in known:
                merges.append((left, token[cut:]))
    return merges


def _ids(vocabulary: Vocabulary) -> dict[str, int]:
    """Token -> id; of tokens spelled alike the first one counts, as it does in llama.cpp."""
    ids: dict[str, int] = {}
    for token_id, token in enumerate(vocabulary.tokens):
        ids.setdefault(token, token_id)
    return ids


def _bpe(ids: dict[str, int], merges: Sequence[tuple[str, str]], origin: str, **options: Any) -> models.BPE:
    try:
        return models.BPE(vocab=ids, merges=list(merges), **options)
    except Exception as error:  # the library raises plain Exception, where a merge is of tokens that there are not
        raise GGUFError(f"{origin}: the vocabulary and its merges do not fit together: {error}") from error


def _add_special_tokens(tokenizer: tokenizers.Tokenizer, vocabulary: Vocabulary) -> None:
    """Control tokens are special; user-defined ones are matched whole like them, but are text."""
    types, tokens = vocabulary.types, vocabulary.tokens
    special = np.flatnonzero((types == CONTROL) | (types == UNKNOWN)).tolist()
    tokenizer.add_special_tokens([AddedToken(tokens[i], normalized=False, special=True) for i in special if tokens[i]])
    defined = np.flatnonzero(types == USER_DEFINED).tolist()
    tokenizer.add_tokens([AddedToken(tokens[i], normalized=False, special=False) for i in defined if tokens[i]])
