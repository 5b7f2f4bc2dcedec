"""Texts that tokenizers disagree about: scripts, digits, white space, combining and control characters, code."""

from __future__ import annotations

import random

CHOSEN = [
    "", "a", " ", "  ", "\n", " \n", "\t", "Hello world", "Hello  world", "  leading", "trailing  ", "a\n\n\nb",
    "1234567890 12 3.14", "don't I'M you'll WE'VE", "héllo ñandú ﬁ Ⅷ ½ ²",
    "日本語のテキスト", "中文 测试,。!", "한국어 텍스트",
    "العربية עברית", "😀😃👩‍👩‍👧‍👦🏳️‍🌈", "e\u0301 cafe\u0301", "\x00\x01\x7f", "\ufeffbom", "\u200b\u200d",
    "\u202eright to left",
    "<|im_start|>user\nhi<|im_end|>\n", "<bos><start_of_turn>user\nhi<end_of_turn>\n", "<b>bold</b> <table><tr>",
    "[multimodal]<unused5>", "def f(x):\n    return x**2\n\n\tif y:\n\t\tpass\n", "x" * 300, " " * 31, " " * 20 + "x",
    "\n" * 31, "\t" * 31, "\r\n\r\n", "а́ б̈", "İstanbul ß ẞ", "１２３ ४५६", "'s'S'RE", " 's", "$100+20%=~^|<>",
    "\u00a0nbsp\u2003em", "<0x41>", "</s><s>", "Ⅷ½²",
]  # fmt: skip
POOLS = [
    "abcdefghij KLM\n", "0123456789 .,", "áéíóú ñÑçÇ",
    "日本語中文字", "😀🎉👍🏽 ", "\t\n\r  ", "!@#$%^&*()_+-=[]{}|;':\",./<>?`~",
    "абвгд ЕЖЗ", "אבגד هوز", "\u0300\u0301\u0308aeo", "<|>im_end start", "\x01\x1f\x7f\x85\xa0",
]  # fmt: skip


def texts(count: int = 1500) -> list[str]:
    """The chosen ones and `count` random ones, always the same."""
    rng = random.Random(5)
    made = []
    for _ in range(count):
        pools = rng.sample(POOLS, rng.randint(1, 4))
        made.append("".join(rng.choice(rng.choice(pools)) for _ in range(rng.randint(1, 60))))
    for _ in range(count // 5):
        made.append("".join(chr(rng.randint(1, 0x2FFF)) for _ in range(20)))
    return CHOSEN + made
