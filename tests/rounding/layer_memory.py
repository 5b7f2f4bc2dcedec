"""usage: layer_memory.py ROWS COLUMNS ; prints what rounding such a layer took in this process, and what was counted.

In a process of its own: memory that others let go of and the allocator kept would be taken again unseen. Pages of
files do not count: how many of a library's are mapped depends on what the system happens to keep.
"""

from __future__ import annotations

import sys
import threading

import psutil
import torch

from pellucid.rounding.kernels import RoundingKernels


def own_bytes() -> int:
    memory = psutil.Process().memory_info()
    return memory.rss - memory.shared


def main() -> None:
    shape = int(sys.argv[1]), int(sys.argv[2])
    kernels, weight, x = RoundingKernels(lambda name, matrix: None), torch.rand(shape), torch.rand(512, shape[1])
    list(kernels.named([("a.weight", weight)]))
    layer = kernels.pack_linear([weight], None, "int4")
    peak, done = 0, threading.Event()
    before = own_bytes()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, own_bytes() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    kernels.linear(x, layer)
    done.set()
    watcher.join()
    print(peak, kernels.memory_bytes(len(x)))


main()
