"""How a byte-level vocabulary cuts text into words before it merges: one entry per `tokenizer.ggml.pre`.

GGUF stores a vocabulary's name, not its rules; the rules are the ones those models were trained with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACE}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACE}"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACE}"
)


@dataclass(frozen=True)
class PreTokenizer:
    """patterns: cuts, one after another within the pieces of the one before.

    ignore_merges: a word that is a token as a whole is that token, however its merges would go. add_bos: whether a text
    begins with BOS where the file does not say. nfc: Unicode normalisation before everything.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    nfc: bool = False


_LLAMA3_KIND = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_QWEN2_KIND = PreTokenizer((_QWEN2,), nfc=True)
_SINGLE_DIGITS_KIND = PreTokenizer((r"\p{N}", _GPT2))
_GPT2_KIND = PreTokenizer((_GPT2,))

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": _GPT2_KIND,
    "gpt2": _GPT2_KIND,
    "olmo": _GPT2_KIND,
    "phi-2": _GPT2_KIND,
    "mpt": _GPT2_KIND,
    "smollm": _SINGLE_DIGITS_KIND,
    "starcoder": _SINGLE_DIGITS_KIND,
    "refact": _SINGLE_DIGITS_KIND,
    "command-r": _SINGLE_DIGITS_KIND,
    "llama-bpe": _LLAMA3_KIND,
    "llama3": _LLAMA3_KIND,
    "llama-v3": _LLAMA3_KIND,
    "falcon3": _LLAMA3_KIND,
    "pixtral": _LLAMA3_KIND,
    "dbrx": PreTokenizer((_LLAMA3,)),
    "smaug-bpe": PreTokenizer((_LLAMA3,)),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
    "qwen2": _QWEN2_KIND,
    "deepseek-r1-qwen": _QWEN2_KIND,
    "megrez": _QWEN2_KIND,
}
