"""Prompts for models that are trained to fill in the middle of a text (Bavarian et al. 2022), from their vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

from pellucid.frontend.tokenizer import Tokenizer


@dataclass(frozen=True)
class FimFormat:
    """Tokens before the prefix, before the suffix, and behind both; others: what also ends the middle.

    suffix_first: the suffix stands before the prefix, and nothing behind both.
    """

    prefix: str
    suffix: str
    middle: str | None
    others: tuple[str, ...] = ()
    suffix_first: bool = False


FORMATS = (
    # Qwen2.5-Coder, Qwen3-Coder, CodeGemma, and whoever took over these names
    FimFormat("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", ("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>",
                                                                      "<|file_separator|>")),
    # StarCoder, StarCoder2, Granite Code
    FimFormat("<fim_prefix>", "<fim_suffix>", "<fim_middle>", ("<fim_pad>", "<file_sep>", "<repo_name>")),
    # DeepSeek-Coder: the prefix, a hole, the suffix
    FimFormat("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    # Code Llama
    FimFormat("▁<PRE>", "▁<SUF>", "▁<MID>", ("▁<EOT>",)),
    # GLM
    FimFormat("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    # Codestral
    FimFormat("[PREFIX]", "[SUFFIX]", None, suffix_first=True),
)  # fmt: skip


class FillInTheMiddle:
    """stop_token_ids: what a model writes behind the middle, beside its end-of-text token."""

    def __init__(self, tokenizer: Tokenizer, form: FimFormat) -> None:
        self._suffix_first = form.suffix_first
        self._prefix, self._suffix, self._middle = (
            [] if name is None else [_id_of(tokenizer, name)] for name in (form.prefix, form.suffix, form.middle)
        )
        others = [tokenizer.token_to_id(name) for name in form.others]
        self.stop_token_ids: tuple[int, ...] = tuple(
            [*self._prefix, *self._suffix, *self._middle, *(i for i in others if i is not None)]
        )

    def prompt(self, before: list[int], after: list[int], bos: list[int]) -> list[int]:
        """Token ids of the prompt for the text between these two."""
        if self._suffix_first:
            return [*bos, *self._suffix, *after, *self._prefix, *before]
        return [*bos, *self._prefix, *before, *self._suffix, *after, *self._middle]


def fill_in_the_middle_of(tokenizer: Tokenizer) -> FillInTheMiddle | None:
    """None for a model whose vocabulary has no tokens for it."""
    for form in FORMATS:
        names = [name for name in (form.prefix, form.suffix, form.middle) if name is not None]
        if all(tokenizer.token_to_id(name) is not None for name in names):
            return FillInTheMiddle(tokenizer, form)
    return None


def _id_of(tokenizer: Tokenizer, name: str) -> int:
    token_id = tokenizer.token_to_id(name)
    assert token_id is not None  # fill_in_the_middle_of has looked
    return token_id
