"""What `pellucid serve` says to the person who started it: how loading goes, and then how to ask the first question."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from types import TracebackType
from typing import TextIO

from pellucid import __version__
from pellucid.core.messages import EngineReady


class ProgressLine:
    """One line that is written over on a terminal; a line per stage where the output is kept."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_terminal = out.isatty()
        self._shown = ""

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_terminal and self._shown:
            self._out.write("\r\033[K")
            self._out.flush()

    def show(self, progress: str) -> None:
        if not progress or progress == self._shown:
            return
        self._shown = progress
        self._out.write(f"\r\033[K{progress}" if self._is_terminal else f"{progress}\n")
        self._out.flush()


def greeting(
    url: str,
    model_name: str,
    ready: EngineReady,
    asks_for_key: bool,
    has_ui: bool = False,
    default_sampling: Mapping[str, float] | None = None,
) -> str:
    """Ends with a command that works as it stands, and greedily: a small model that is sampled says anything."""
    question = [{"role": "user", "content": "What is the capital of France?"}]
    body = {"model": model_name, "messages": question, "temperature": 0}
    key = " -H 'Authorization: Bearer YOUR_KEY'" if asks_for_key else ""
    kernels = ready.details.get("kernels", f"{ready.kernels} kernels")  # with the reason, where the engine gives one
    quantization = ready.details.get("quantization", "none")
    dtype = ready.dtype if quantization == "none" else f"{ready.dtype} with weights in {quantization}"
    curl = f"curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
    advised = ", ".join(f"{name} {value:g}" for name, value in (default_sampling or {}).items())
    return "\n".join(
        [
            f"pellucid {__version__} serves {model_name} at {url}",
            f"  {ready.device}, {dtype}, {kernels}; context {ready.max_model_len}, "
            f"{ready.num_blocks} KV blocks of {ready.block_size}, up to {ready.max_num_seqs} requests at a time",
            *([f"  sampling where a request says nothing, as its makers advise: {advised}"] if advised else []),
            *([f"  watch it work, and chat: {url}/ui"] if has_ui else []),
            "",
            f"  {curl}",
        ]
    )
