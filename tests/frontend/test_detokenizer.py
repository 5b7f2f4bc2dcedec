"""Streamed text is whole text: for any tokens, any UTF-8 or none, after any prompt, with and without special tokens."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import byte_level, sentencepiece

from pellucid.frontend.detokenizer import IncrementalDetokenizer, detokenize
from pellucid.frontend.tokenizer import Tokenizer

BYTE_LEVEL = byte_level()
LLAMA_LIKE = sentencepiece(strips=True)
GEMMA_LIKE = sentencepiece(strips=False)
ALL = [BYTE_LEVEL, LLAMA_LIKE, GEMMA_LIKE]


def tokens_of(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Arbitrary ids (one beyond the vocabulary too), and stretches of text that make sense, bytes and all."""
    any_id = st.integers(0, tokenizer.vocab_size)
    late_id = st.integers(256, tokenizer.vocab_size - 1)  # words and special tokens
    utf8_bytes = st.text(alphabet="aé€😀\ufffd", max_size=3).map(lambda text: list(text.encode()))
    pieces = st.one_of(any_id.map(lambda i: [i]), late_id.map(lambda i: [i]), utf8_bytes)
    return st.lists(pieces, max_size=12).map(lambda lists: [i for piece in lists for i in piece])


tokenizers_and_tokens = st.sampled_from(ALL).flatmap(
    lambda t: st.tuples(st.just(t), tokens_of(t), tokens_of(t), st.booleans())
)


def byte_runs(tokenizer: Tokenizer, token_ids: Sequence[int], skip: bool) -> list[bytes]:
    """The runs of byte tokens, which a SentencePiece decoder makes text of, or not, each as a whole."""
    runs = [b""]
    for token_id in token_ids:
        if skip and tokenizer.is_special(token_id):
            continue
        if tokenizer.is_byte_token(token_id):
            runs[-1] += tokenizer.token_bytes(token_id)
        elif tokenizer.token_bytes(token_id):
            runs.append(b"")
    return runs


def is_whole_or_hopeless(run: bytes) -> bool:
    """No complete character in it is followed, in the same run, by bytes that are none (or the other way round)."""
    try:
        run.decode()
    except UnicodeDecodeError:
        return not any(c != "\ufffd" for c in run.decode(errors="replace")) and b"\xef\xbf\xbd" not in run
    return True


@settings(max_examples=600)
@given(tokenizers_and_tokens)
def test_the_pieces_add_up_to_a_decode_of_the_whole(case: tuple[Tokenizer, list[int], list[int], bool]) -> None:
    tokenizer, token_ids, _, skip = case
    text = detokenize(tokenizer, token_ids, (), skip)
    if all(is_whole_or_hopeless(run) for run in byte_runs(tokenizer, token_ids, skip)):
        assert text == tokenizer.decode(token_ids, skip_special_tokens=skip)
    else:  # characters that were complete stay; the library's decoder takes the run back
        kept = [c for run in byte_runs(tokenizer, token_ids, skip) for c in run.decode(errors="ignore")]
        assert all(text.count(c) >= kept.count(c) for c in kept if c != " ")


@settings(max_examples=600)
@given(tokenizers_and_tokens)
def test_prompt_and_output_add_up_to_a_decode_of_both(case: tuple[Tokenizer, list[int], list[int], bool]) -> None:
    tokenizer, prompt, output, skip = case
    text = detokenize(tokenizer, output, prompt, skip)
    before = detokenize(tokenizer, prompt, (), skip)
    whole = detokenize(tokenizer, prompt + output, (), skip)
    if whole == before + text:
        return
    # only where the prompt ends within a character that the output completes
    complete = before.rstrip("\ufffd")
    assert len(complete) < len(before) <= len(complete) + 3
    assert whole.endswith(text)
    assert whole.startswith(complete)
    assert len(whole) <= len(before) + len(text)


@given(tokenizers_and_tokens)
def test_what_has_been_released_is_never_half_a_character(case: tuple[Tokenizer, list[int], list[int], bool]) -> None:
    tokenizer, prompt, output, skip = case
    detokenizer = IncrementalDetokenizer(tokenizer, prompt, skip)
    released = ""
    for index, token_id in enumerate(output):
        released += detokenizer.push(token_id)
        assert detokenize(tokenizer, output[: index + 1], prompt, skip).startswith(released)
        if not detokenizer.has_pending_bytes:
            assert detokenize(tokenizer, output[: index + 1], prompt, skip) == released
    assert released + detokenizer.flush() == detokenize(tokenizer, output, prompt, skip)


def test_an_emoji_in_four_tokens_comes_out_once_and_whole() -> None:
    pieces = IncrementalDetokenizer(BYTE_LEVEL, [72])
    assert [pieces.push(i) for i in "a😀".encode()] == ["a", "", "", "", "😀"]
    assert pieces.flush() == ""


def test_a_character_that_is_never_completed_is_replaced_once_at_the_end() -> None:
    pieces = IncrementalDetokenizer(BYTE_LEVEL, [72])
    assert [pieces.push(i) for i in "😀".encode()[:3]] == ["", "", ""]
    assert pieces.flush() == "\ufffd"


@pytest.mark.parametrize("tokenizer", ALL)
def test_a_character_that_the_prompt_begins_belongs_to_the_output_that_completes_it(tokenizer: Tokenizer) -> None:
    euro = list("€".encode())
    assert detokenize(tokenizer, [*euro[1:], ord("a")], [ord("x"), euro[0]]) == "€a"
    assert detokenize(tokenizer, [ord("a")], [ord("x"), *euro[:2]]) == "a"
    assert detokenize(tokenizer, [], [ord("x"), *euro[:2]]) == ""


def test_the_leading_space_is_the_prompts_affair() -> None:
    he, begin = LLAMA_LIKE.token_to_id("▁he"), LLAMA_LIKE.token_to_id("<|begin|>")
    assert he is not None
    assert begin is not None
    assert detokenize(LLAMA_LIKE, [he, he], []) == "he he"
    assert detokenize(LLAMA_LIKE, [he, he], [begin]) == "he he"
    assert detokenize(LLAMA_LIKE, [he, he], [begin], skip_special_tokens=False) == " he he"
    assert detokenize(LLAMA_LIKE, [he, he], [he]) == " he he"
    assert detokenize(GEMMA_LIKE, [he, he], [begin]) == " he he"


def test_special_tokens_are_shown_only_when_asked_for() -> None:
    im, tool = BYTE_LEVEL.token_to_id("<|im start|>"), BYTE_LEVEL.token_to_id("<tool>")
    assert im is not None
    assert tool is not None
    assert detokenize(BYTE_LEVEL, [im, 65, tool]) == "A<tool>"
    assert detokenize(BYTE_LEVEL, [im, 65, tool], skip_special_tokens=False) == "<|im start|>A<tool>"
