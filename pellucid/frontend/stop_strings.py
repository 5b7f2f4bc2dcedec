"""Stop strings in a stream: nothing is released that may belong to one, and nothing is held back without need."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class _Node:
    """A prefix of a stop string (Aho and Corasick 1975). depth: its length. match: length of the longest stop string
    that ends here, 0 for none."""

    __slots__ = ("depth", "fail", "match", "next")

    def __init__(self, depth: int) -> None:
        self.next: dict[str, _Node] = {}
        self.fail: _Node | None = None
        self.depth = depth
        self.match = 0


def _automaton(stops: Sequence[str]) -> _Node:
    root = _Node(0)
    for stop in stops:
        node = root
        for char in stop:
            node = node.next.setdefault(char, _Node(node.depth + 1))
        node.match = len(stop)
    queue = deque([root])
    while queue:
        node = queue.popleft()
        for char, child in node.next.items():
            fail = node.fail
            while fail is not None and char not in fail.next:
                fail = fail.fail
            child.fail = fail.next[char] if fail is not None else root
            child.match = max(child.match, child.fail.match)
            queue.append(child)
    return root


class StopStrings:
    """Character by character, so that the way a text is cut into pieces cannot matter.

    The first stop string to be complete wins; among those that are complete at the same character, the longest. What is
    held back is the longest end of the text that begins a stop string: at most one character less than the longest.

    stops: none of them empty. include_stop: the stop string itself is part of the released text.
    """

    def __init__(self, stops: Sequence[str], include_stop: bool = False) -> None:
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        self._include_stop = include_stop
        self._root = _automaton(stops)
        self._node = self._root
        self._held = ""
        self.stopped_by: str | None = None

    @property
    def num_held(self) -> int:
        return len(self._held)

    def feed(self, text: str, armed: bool = True) -> str:
        """Take new text, return what can be released. After `stopped_by` is set, nothing more comes out.

        armed: False while a stop string must not end the text yet (min_tokens); one that ends later may begin there.
        """
        if self.stopped_by is not None:
            return ""
        root, node = self._root, self._node
        buffer = self._held + text
        for index, char in enumerate(text, len(self._held) + 1):
            while node is not root and char not in node.next:
                node = node.fail or root
            node = node.next.get(char, root)
            if node.match and armed:
                start = index - node.match
                self.stopped_by = buffer[start:index]
                self._held = ""
                return buffer[: index if self._include_stop else start]
        self._node = node
        released = len(buffer) - node.depth
        self._held = buffer[released:]
        return buffer[:released]

    def flush(self) -> str:
        """The text ended without a stop string: what was held back."""
        held, self._held, self._node = self._held, "", self._root
        return held
