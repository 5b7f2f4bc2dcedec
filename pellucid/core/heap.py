"""A heap whose items can also be taken from the middle."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class RemovableHeap(Generic[T]):
    """Smallest key first; equal keys in the order they were pushed. An item is in it at most once.

    push, pop and remove are O(log n) amortised: a removed item leaves a hole, and the heap is rebuilt when holes are
    the majority, so that it never holds on to more than it contains.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[Any, int, T]] = []
        self._alive: dict[int, int] = {}  # id(item) -> the count of its live entry
        self._count = 0

    def __len__(self) -> int:
        return len(self._alive)

    def __contains__(self, item: T) -> bool:
        return id(item) in self._alive

    def __iter__(self) -> Iterator[T]:
        """In order; O(n log n)."""
        return (
            item for _, count, item in sorted(self._entries, key=lambda entry: entry[:2]) if self._is_live(count, item)
        )

    def push(self, key: Any, item: T) -> None:
        """Raises ValueError when the item is in the heap already."""
        if item in self:
            raise ValueError(f"{item!r} is in the heap already")
        self._count += 1
        self._alive[id(item)] = self._count
        heapq.heappush(self._entries, (key, self._count, item))

    def peek(self) -> T:
        """The first item. Raises IndexError when there is none."""
        self._drop_holes()
        return self._entries[0][2]

    def first_key(self) -> Any:
        """The first item's key. Raises IndexError when there is none."""
        self._drop_holes()
        return self._entries[0][0]

    def pop(self) -> T:
        """Raises IndexError when there is none."""
        self._drop_holes()
        item = heapq.heappop(self._entries)[2]
        del self._alive[id(item)]
        return item

    def remove(self, item: T) -> bool:
        """False when it was not in the heap."""
        if self._alive.pop(id(item), None) is None:
            return False
        if len(self._entries) > 2 * len(self._alive) + 16:
            self._entries = [entry for entry in self._entries if self._is_live(entry[1], entry[2])]
            heapq.heapify(self._entries)
        return True

    def _is_live(self, count: int, item: T) -> bool:
        return self._alive.get(id(item)) == count

    def _drop_holes(self) -> None:
        while self._entries and not self._is_live(*self._entries[0][1:]):
            heapq.heappop(self._entries)
