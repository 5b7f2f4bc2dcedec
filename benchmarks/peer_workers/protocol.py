"""How `benchmarks/peers.py` talks to an engine living in an environment of its own.

A worker loads its engine, prints {"ready": true, "vocab_size": ...}, then answers each line of standard input,
{"prompts": [[token ids]], "output_len": n}, with {"seconds": s}: the wall time to generate n tokens greedily for all
the prompts submitted together, end-of-text ignored. Standard library only: it runs in every engine's environment.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable


def serve(run: Callable[[list[list[int]], int], None], vocab_size: int) -> None:
    """Answer requests until standard input ends. run(prompts, output_len) blocks until all is generated."""
    answers = _claim_stdout()
    print(json.dumps({"ready": True, "vocab_size": vocab_size}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        start = time.perf_counter()
        run(request["prompts"], request["output_len"])
        print(json.dumps({"seconds": time.perf_counter() - start}), file=answers, flush=True)


_real_stdout: int | None = None


def keep_stdout_clean() -> None:
    """Send what the engine prints to stderr; call before importing it."""
    global _real_stdout
    _real_stdout = os.dup(1)
    os.dup2(2, 1)


def _claim_stdout():  # type: ignore[no-untyped-def]
    return os.fdopen(_real_stdout, "w") if _real_stdout is not None else sys.stdout
