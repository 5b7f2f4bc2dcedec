"""Stop strings: whatever the chunks, the text is cut where a search of the whole text would cut it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.frontend.stop_strings import StopStrings

texts = st.text(alphabet="abcé", max_size=40)
stop_lists = st.lists(st.text(alphabet="abcé", min_size=1, max_size=5), min_size=1, max_size=4)


def cut_whole(text: str, stops: list[str], include: bool, min_end: int = 0) -> tuple[str, str | None]:
    """The definition: the first end at which a stop string is complete, and of those the longest."""
    for end in range(min_end + 1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def chunked(text: str, cuts: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(c % (len(text) + 1) for c in cuts)})
    return [text[a:b] for a, b in pairwise(edges)]


@given(texts, stop_lists, st.lists(st.integers(0, 40)), st.booleans())
def test_any_chunking_is_cut_where_the_whole_text_is(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    matcher = StopStrings(stops, include)
    released = "".join(matcher.feed(chunk) for chunk in chunked(text, cuts))
    if matcher.stopped_by is None:
        released += matcher.flush()
    assert (released, matcher.stopped_by) == cut_whole(text, stops, include)


@given(texts, stop_lists, st.integers(0, 40))
def test_a_stop_string_may_begin_but_not_end_before_it_is_armed(text: str, stops: list[str], unarmed: int) -> None:
    unarmed = min(unarmed, len(text))
    matcher = StopStrings(stops)
    released = matcher.feed(text[:unarmed], armed=False) + matcher.feed(text[unarmed:])
    if matcher.stopped_by is None:
        released += matcher.flush()
    assert (released, matcher.stopped_by) == cut_whole(text, stops, include=False, min_end=unarmed)


@given(texts, stop_lists)
def test_no_more_is_held_than_may_begin_a_stop_string(text: str, stops: list[str]) -> None:
    matcher = StopStrings(stops)
    released = ""
    for i, char in enumerate(text, 1):
        released += matcher.feed(char)
        if matcher.stopped_by is not None:
            break
        held = text[len(released) : i]
        assert matcher.num_held == len(held) <= max(map(len, stops)) - 1
        assert held == "" or any(stop.startswith(held) for stop in stops)


def test_the_stop_string_can_be_kept_in_the_output() -> None:
    matcher = StopStrings(["END"], include_stop=True)
    assert matcher.feed("one EN") + matcher.feed("D two") == "one END"
    assert matcher.stopped_by == "END"
    assert matcher.feed("more") == ""


def test_an_empty_stop_string_is_an_error() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStrings([""])
