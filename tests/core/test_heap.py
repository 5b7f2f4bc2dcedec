"""The waiting queue's heap: order, removal from the middle, nothing kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.core.heap import RemovableHeap


class Item:
    pass


@given(st.lists(st.tuples(st.sampled_from(["push", "pop", "remove"]), st.integers(0, 5)), max_size=60))
def test_it_behaves_like_a_sorted_list(operations: list[tuple[str, int]]) -> None:
    heap: RemovableHeap[Item] = RemovableHeap()
    model: list[tuple[int, int, Item]] = []
    for count, (operation, number) in enumerate(operations):
        if operation == "push":
            item = Item()
            heap.push(number, item)
            model.append((number, count, item))
            model.sort(key=lambda entry: entry[:2])
        elif operation == "pop" and model:
            assert heap.first_key() == model[0][0]
            assert heap.peek() is model[0][2]
            assert heap.pop() is model.pop(0)[2]
        elif operation == "remove" and model:
            item = model.pop(number % len(model))[2]
            assert heap.remove(item)
            assert item not in heap
            assert not heap.remove(item)
        assert list(heap) == [item for *_, item in model]
        assert len(heap) == len(model)
    assert len(heap._entries) <= 2 * len(heap) + 16


def test_an_item_may_come_back_under_another_key() -> None:
    heap: RemovableHeap[Item] = RemovableHeap()
    first, second = Item(), Item()
    heap.push(1, first)
    heap.push(2, second)
    heap.remove(first)
    heap.push(3, first)
    assert [heap.pop(), heap.pop()] == [second, first]


def test_misuse_is_an_error() -> None:
    heap: RemovableHeap[Item] = RemovableHeap()
    item = Item()
    heap.push(1, item)
    with pytest.raises(ValueError, match="already"):
        heap.push(1, item)
    heap.remove(item)
    with pytest.raises(IndexError):
        heap.pop()
    with pytest.raises(IndexError):
        heap.peek()
