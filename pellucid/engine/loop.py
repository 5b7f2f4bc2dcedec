"""The step loop around an EngineCore: the same in the engine process and on a thread of the caller's process."""

from __future__ import annotations

import importlib
import logging
import queue
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from pellucid.core.messages import (
    AbortRequests,
    Control,
    ControlAction,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineInput,
    EngineReady,
    FinishReason,
    Shutdown,
    Watch,
)
from pellucid.engine.wire import MessageTooLarge

logger = logging.getLogger(__name__)


class Core(Protocol):
    """What the loop needs of an EngineCore. One thread calls all of it."""

    def add_request(self, request: EngineCoreRequest) -> None:
        """Take a request in; one that can never run is answered by the next step, or by a ValueError."""

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """Drop these and free what they hold; unknown ids are no error."""

    def watch(self, detail: bool) -> None:
        """Tell every event from now on, beginning with a snapshot; or only what is always told."""

    def control(self, action: ControlAction) -> None:
        """Pause, make a single step, or go on."""

    def has_work(self) -> bool:
        """Whether a step would have anything to do or to tell."""

    def step(self) -> EngineCoreOutputs:
        """One step; with nothing to do it only reports events and statistics."""


Builder = Callable[..., tuple[Core, EngineReady]]  # (config, on_progress) -> what build_engine_core gives
DEFAULT_BUILDER = "pellucid.engine.build:build_engine_core"


def load_builder(name: str) -> Builder:
    """`package.module:function`. Raises ValueError where there is no such thing."""
    module_name, _, attribute = name.partition(":")
    try:
        builder: Any = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"no engine builder {name!r}: {error}") from error
    return builder


class EngineLoop:
    """Drains the inbox between steps, makes steps while there is work, blocks while there is none.

    publish: called on the loop's thread with every step's outputs, one message a step. Where it raises
    MessageTooLarge, they go one by one, and a request whose output is too large by itself ends with an error.
    """

    def __init__(self, core: Core, publish: Callable[[EngineCoreOutputs], None]) -> None:
        self.inbox: queue.SimpleQueue[EngineInput] = queue.SimpleQueue()
        self.num_steps = 0
        self._core = core
        self._publish = publish
        self._step_started_at: float | None = None  # time.monotonic(); None between steps

    @property
    def step_running_s(self) -> float:
        """How long the step in progress has been running; 0.0 between steps. Any thread may ask."""
        started_at = self._step_started_at
        return 0.0 if started_at is None else time.monotonic() - started_at

    def run(self) -> None:
        """Returns after a Shutdown. An exception of the core's step comes through to the caller."""
        while True:
            message: EngineInput | None = None
            if not self._core.has_work():
                message = self.inbox.get()
            refused = self._drain(message)
            if refused is None:
                return
            # Also when aborts have left nothing to do: the step then reports the freed blocks.
            self._step(refused)

    def _drain(self, message: EngineInput | None) -> list[EngineCoreOutput] | None:
        """Handle `message` and all that waits behind it. Returns the refusals, None when told to shut down."""
        refused: list[EngineCoreOutput] = []
        while True:
            if isinstance(message, Shutdown):
                return None
            if isinstance(message, AbortRequests):
                self._core.abort_requests(message.request_ids)
            elif isinstance(message, Watch):
                self._core.watch(message.detail)
            elif isinstance(message, Control):
                self._core.control(message.action)
            elif message is not None and (refusal := self._add(message)) is not None:
                refused.append(refusal)
            try:
                message = self.inbox.get_nowait()
            except queue.Empty:
                return refused

    def _add(self, request: EngineCoreRequest) -> EngineCoreOutput | None:
        # One request never takes the engine down: whatever is wrong with it, it alone hears of it.
        try:
            self._core.add_request(request)
        except ValueError as error:
            message = str(error)
        except Exception as error:
            logger.exception("request %s could not be added", request.request_id)
            message = f"the engine could not take this request: {type(error).__name__}: {error}"
        else:
            return None
        return EngineCoreOutput(request_id=request.request_id, finish_reason=FinishReason.ERROR, error=message)

    def _step(self, refused: list[EngineCoreOutput]) -> None:
        self._step_started_at = time.monotonic()
        try:
            outputs = self._core.step()
        finally:
            self._step_started_at = None
        self.num_steps += 1
        if refused:
            outputs = msgspec.structs.replace(outputs, outputs=[*refused, *outputs.outputs])
        try:
            self._publish(outputs)
        except MessageTooLarge:
            self._publish_one_by_one(outputs)

    def _publish_one_by_one(self, outputs: EngineCoreOutputs) -> None:
        self._publish(msgspec.structs.replace(outputs, outputs=[]))
        for output in outputs.outputs:
            try:
                self._publish(EngineCoreOutputs(outputs=[output], stats=outputs.stats))
            except MessageTooLarge as error:
                self._core.abort_requests([output.request_id])
                refusal = EngineCoreOutput(
                    request_id=output.request_id,
                    finish_reason=FinishReason.ERROR,
                    error=f"what this request asks for cannot be sent: {error}; ask for fewer prompt_logprobs",
                )
                self._publish(EngineCoreOutputs(outputs=[refusal], stats=outputs.stats))


def describe_error(error: BaseException) -> str:
    """The root cause in one line, as the last words a user reads."""
    parts = [_one_line(error)]
    cause = error.__cause__
    while cause is not None and len(parts) < 4:
        if (line := _one_line(cause)) not in parts[-1]:
            parts.append(line)
        cause = cause.__cause__
    return "; caused by ".join(parts)


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError):
        return f"out of memory{': ' + text if text else ''}"
    if text and isinstance(error, (ValueError, RuntimeError, OSError)) and not isinstance(error, UnicodeError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
