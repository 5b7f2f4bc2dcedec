"""Small tokenizers of the two kinds, made of nothing: byte-level BPE, and SentencePiece with byte fallback."""

from __future__ import annotations

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from pellucid.frontend.tokenizer import BYTE_OF_CHARACTER, Tokenizer

SPECIALS = ["<|begin|>", "<|end|>", "<|im start|>"]


def byte_level() -> Tokenizer:
    """Every byte, the parts of an emoji, some words with and without their space; special tokens after them."""
    spelled = {byte: char for char, byte in BYTE_OF_CHARACTER.items()}
    texts = [bytes([b]) for b in range(256)]
    texts += [b"he", b"llo", b" wor", b"ld", "😀".encode()[:2], "😀".encode()[2:]]
    texts += ["é".encode(), "é".encode() + "€".encode()[:1], "€".encode()[1:] + b"a"]
    vocab = {"".join(spelled[b] for b in text): i for i, text in enumerate(texts)}
    backend = Backend(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(t, special=True) for t in SPECIALS])
    backend.add_tokens([AddedToken("<tool>", special=False)])
    return Tokenizer(backend, {"bos_token": SPECIALS[0], "eos_token": SPECIALS[1]})


def sentencepiece(strips: bool = True) -> Tokenizer:
    """Byte tokens, letters, words with the space in front. strips: a decoded text loses its leading space (Llama)."""
    words = ["▁", "▁he", "llo", "▁▁", "a", "b", "é", "▁€", "\ufffd", "\n"]
    vocab = {token: i for i, token in enumerate([f"<0x{b:02X}>" for b in range(256)] + words + ["<unk>"])}
    backend = Backend(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strips else steps)
    backend.add_special_tokens([AddedToken(t, special=True) for t in SPECIALS])
    return Tokenizer(backend, {"bos_token": SPECIALS[0], "eos_token": SPECIALS[1]})
