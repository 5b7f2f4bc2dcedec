"""Events as lines for a person: `SCHEDULE step=148 scheduled=2 tokens=2 running=2 waiting=0 free_blocks=3041`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any, TextIO

from pellucid.observability.bus import EventBus
from pellucid.observability.events import (
    EngineDied,
    EngineSnapshot,
    EngineStarted,
    Event,
    RequestFinished,
    RequestPreempted,
    RequestRefused,
    RequestReplayed,
    RequestSubmitted,
    SchedulingPaused,
    StepStarted,
)
from pellucid.observability.lines import write_line

LOG_LEVELS = ("error", "warning", "info", "trace")

# What `info` tells: how requests and engines come and go. `trace` tells everything.
INFO_KINDS: frozenset[type] = frozenset(
    {
        RequestSubmitted,
        RequestRefused,
        RequestPreempted,
        RequestFinished,
        EngineStarted,
        EngineDied,
        RequestReplayed,
        SchedulingPaused,
    }
)

_LONGEST_LIST = 8


def set_log_level(level: str) -> None:
    """Of the messages that are no events: faults, which `error` leaves at the worst of them."""
    logging.getLogger("pellucid").setLevel(logging.ERROR if level == "error" else logging.WARNING)


def attach_event_log(bus: EventBus, level: str, out: TextIO | None = None) -> None:
    """Print what `level` asks for; out: stderr by default."""
    if level in ("info", "trace"):
        bus.subscribe(event_printer(out), INFO_KINDS if level == "info" else None)


def event_printer(out: TextIO | None = None) -> Callable[[Event], None]:
    def print_event(event: Event) -> None:
        write_line(format_event(event), out or sys.stderr)

    return print_event


def format_event(event: Event) -> str:
    """One line; its first word is the event's tag in capitals, SCHEDULE for the start of a step."""
    if isinstance(event, StepStarted):
        return (
            f"SCHEDULE step={event.step} scheduled={len(event.request_ids)} tokens={sum(event.num_tokens)} "
            f"running={event.num_running} waiting={event.num_waiting} free_blocks={event.num_free_blocks}"
        )
    if isinstance(event, EngineSnapshot):
        return (
            f"SNAPSHOT step={event.step} requests={len(event.requests)} blocks={event.num_blocks} "
            f"cached_blocks={len(event.cached_blocks)} paused={_text(event.paused)}"
        )
    fields = ((name, getattr(event, name)) for name in event.__struct_fields__ if name != "time")
    words = [f"{name}={_text(value)}" for name, value in fields if value is not None and value != ""]
    return " ".join([str(event.__struct_config__.tag).upper(), *words])


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6f}"
    if isinstance(value, list):
        shown = ",".join(str(item) or "-" for item in value[:_LONGEST_LIST])
        return f"[{shown}{f',+{len(value) - _LONGEST_LIST}' if len(value) > _LONGEST_LIST else ''}]"
    text = str(value)
    return repr(text) if " " in text or not text.isprintable() else text
