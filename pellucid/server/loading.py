"""From a model's name to an AsyncLLM whose engine loads in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pellucid.config import EngineConfig
from pellucid.engine.subprocess_client import SubprocessEngineClient
from pellucid.frontend.async_llm import AsyncLLM
from pellucid.frontend.model_text import load_model_text
from pellucid.frontend.parsing.formats import AUTO
from pellucid.loader.model_files import ModelFiles
from pellucid.loader.resolve import resolve_model
from pellucid.server.options import ServerOptions

MIB = 1024 * 1024

Result = TypeVar("Result")


def served_names(config: EngineConfig) -> tuple[str, frozenset[str]]:
    """The model's name in the API, and the other names it answers to.

    A path says more about this machine than a client should know: its last part names the model.
    """
    ref = config.model
    short = ref
    if Path(ref).suffix == ".gguf" and "://" not in ref:
        short = Path(ref).stem
    elif ref.startswith((".", "/", "~")) or Path(ref).is_dir():
        short = Path(ref).expanduser().resolve().name
    name = config.served_model_name or short
    return name, frozenset({ref, short, name})


async def load_llm(config: EngineConfig, options: ServerOptions, show: Callable[[str], None]) -> AsyncLLM:
    """Fetch the files, start the engine on them, and meanwhile load the tokenizer here.

    show: called with what is going on, in words. Raises ModelError (or OSError) with what a person can do.
    """
    loop = asyncio.get_running_loop()
    last = 0.0

    def on_progress(done: int, total: int | None, what: str) -> None:  # on the thread that downloads
        nonlocal last
        if (now := time.monotonic()) - last > 0.2:
            last = now
            share = f"{100 * done // total} %" if total else f"{done / MIB:.0f} MiB"
            loop.call_soon_threadsafe(show, f"{what}: {share}")

    def resolve() -> ModelFiles:
        return resolve_model(config.model, local_files_only=config.local_files_only, on_progress=on_progress)

    show(f"looking for {config.model}")
    files = await _on_a_daemon(resolve)
    # everything is here now: the engine finds it without the network, and both sides read the same files
    client = SubprocessEngineClient(msgspec.structs.replace(config, local_files_only=True))
    await client.start()
    try:
        show("loading the tokenizer")
        text = await _on_a_daemon(lambda: load_model_text(files))
    except BaseException:
        await client.shutdown()
        raise
    return AsyncLLM(
        client,
        text.tokenizer,
        eos_token_ids=text.eos_token_ids,
        max_queue=options.max_queue,
        request_timeout_s=options.request_timeout_s,
        default_seed=config.seed,
        default_sampling=text.default_sampling if options.generation_config == AUTO else None,
        constraint_timeout_s=options.constraint_timeout_s,
    )


async def _on_a_daemon(work: Callable[[], Result]) -> Result:
    """Run it on a thread that nobody waits for: a signal during a long download ends the server at once."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def settle(call: Callable[[Any], None], value: Any) -> None:
        if not done.done():
            call(value)

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            outcome: tuple[Callable[[Any], None], Any] = (done.set_exception, error)
        else:
            outcome = (done.set_result, result)
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended meanwhile
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, name="pellucid-loading", daemon=True).start()
    return await done
