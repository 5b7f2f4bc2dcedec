"""Stage 7: a block that is given back still holds what was computed. Whoever begins alike need not compute it again."""

from __future__ import annotations

from collections import Counter

from pellucid.core.prefix_cache import block_hash, root_hash
from pellucid.lessons.paged_blocks import Blocks
from pellucid.lessons.paged_continuous import everything, serve
from pellucid.lessons.task import Queue, Task
from pellucid.lessons.workbench import Workbench


def run(bench: Workbench, queue: Queue) -> None:
    serve(bench, queue, SharedBlocks(bench), everything)


class SharedBlocks(Blocks):
    """Full blocks can be found by what is in them, and may be in several tables.

    The key of a block is a hash of its tokens and of the key before it, and so stands for everything up to its end:
    keys and values of a token depend on all tokens before it. A free block keeps its key until it is reused; the free
    list is in the order in which blocks were given back, so that the one unused for longest is overwritten first.
    """

    def __init__(self, bench: Workbench) -> None:
        super().__init__(bench)
        self._block_size = bench.block_size
        self._block_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}
        self._num_holders: Counter[int] = Counter()
        self._keys: dict[Task, list[bytes]] = {}  # of a task's full blocks, as far as somebody asked

    def admit(self, task: Task) -> int:
        """Start with the blocks of the longest known beginning. The last token is computed in any case: of it we need
        not the keys and values but the logits."""
        shared = []
        for key in self._keys_of(task, len(task.token_ids) - 1):
            if key not in self._block_of:
                break
            shared.append(self._block_of[key])
        for block in shared:
            self._free.pop(block, None)
            self._num_holders[block] += 1
        self.tables[task] = shared
        return len(shared) * self._block_size

    def computed(self, task: Task) -> None:
        """Let others find the blocks that are full now. They are never written again, so that sharing is safe."""
        for block, key in zip(self.tables[task], self._keys_of(task, task.num_computed), strict=False):
            if block not in self._key_of and key not in self._block_of:
                self._block_of[key] = block
                self._key_of[block] = key

    def release(self, task: Task) -> None:
        super().release(task)
        self._keys.pop(task, None)

    def _take(self) -> int:
        block = super()._take()
        if block in self._key_of:
            del self._block_of[self._key_of.pop(block)]
        self._num_holders[block] = 1
        return block

    def _give_back(self, block: int) -> None:
        self._num_holders[block] -= 1
        if not self._num_holders[block]:
            super()._give_back(block)

    def _keys_of(self, task: Task, num_tokens: int) -> list[bytes]:
        """The keys of the blocks that are full with num_tokens tokens."""
        keys, size = self._keys.setdefault(task, []), self._block_size
        while (len(keys) + 1) * size <= num_tokens:
            begin = len(keys) * size
            keys.append(block_hash(keys[-1] if keys else root_hash(), task.token_ids[begin : begin + size]))
        return keys[: num_tokens // size]
