"""`pellucid explain`: what happened to a request, in a step, in the cache, in sentences. Pure: events in, lines out."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from pellucid.observability.events import (
    BlockEvicted,
    EngineSnapshot,
    Event,
    PrefixHit,
    RequestFinished,
    RequestHeldBack,
    RequestPreempted,
    RequestScheduled,
    StepCompleted,
    StepStarted,
)
from pellucid.observability.story import Story, count, milliseconds, why_held_back


class Line(msgspec.Struct, frozen=True):
    """time: seconds of time.time(); None for what has no moment of its own."""

    time: float | None
    text: str


class Explanation(msgspec.Struct, frozen=True):
    subject: str
    lines: list[Line]

    def text(self) -> str:
        """For a terminal: the time of day once, and then seconds since."""
        start = next((line.time for line in self.lines if line.time is not None), None)
        heading = self.subject if start is None else f"{self.subject}, from {clock(start)}"
        rows = [heading]
        for line in self.lines:
            at = "" if line.time is None or start is None else f"+{max(line.time - start, 0.0):.3f} s"
            rows.append(f"{at:>12}  {line.text}")
        return "\n".join(rows)


class UnknownSubjectError(LookupError):
    """What is asked for is not among the events there are; str() says how far these reach."""


def clock(time_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(time_s)) + f".{int(time_s * 1000) % 1000:03}"


def explain_request(events: Sequence[Event], request_id: str) -> Explanation:
    """The story of every continuation, one after another. Raises UnknownSubjectError.

    request_id: as in the response, as in x-request-id, or as the engine's events have it.
    """
    story = Story(events, request_id)
    if not story.found:
        raise UnknownSubjectError(
            f"no request {request_id!r} among the last {len(events)} events; "
            "take the id of a response, or its x-request-id header"
        )
    lines = [Line(time_s, text) for time_s, text in story.lines()]
    return Explanation(f"request {request_id}", lines)


def explain_step(events: Sequence[Event], step: int) -> Explanation:
    """Raises UnknownSubjectError. After an engine was replaced steps are counted anew: the last one is told."""
    completed = next((e for e in reversed(events) if isinstance(e, StepCompleted) and e.step == step), None)
    started = next((e for e in reversed(events) if isinstance(e, StepStarted) and e.step == step), None)
    if completed is None:
        known = [event.step for event in events if isinstance(event, StepCompleted)]
        reach = f"they hold steps {min(known)} to {max(known)}" if known else "they hold no step"
        raise UnknownSubjectError(f"no step {step} among the last {len(events)} events: {reach}")
    end = completed.time + completed.duration_s
    lines = [
        Line(
            completed.time,
            f"{count(completed.num_reqs, 'request')} and {count(completed.num_tokens, 'token')} were computed "
            f"together, {count(completed.num_sampled, 'token')} came out"
            + (f", {completed.num_forced} of them forced by a constraint" if completed.num_forced else ""),
        )
    ]
    for event in events:
        if isinstance(event, RequestHeldBack) and event.step == step and event.time >= completed.time - 1e-6:
            lines.append(Line(event.time, f"{event.request_id} was not let in: {why_held_back(event)}"))
        elif completed.time <= event.time <= end:
            if isinstance(event, RequestScheduled):
                lines.append(Line(event.time, f"{event.request_id} was let in from the queue"))
            elif isinstance(event, RequestPreempted):
                lines.append(Line(event.time, f"{event.request_id} was preempted for {event.for_request_id}"))
            elif isinstance(event, RequestFinished):
                lines.append(Line(event.time, f"{event.request_id} finished: {event.reason}"))
    if started is not None:
        lines += [
            Line(started.time, f"{request_id}: {count(num_tokens, 'token')}")
            for request_id, num_tokens in zip(started.request_ids, started.num_tokens, strict=True)
        ]
        lines.append(
            Line(
                started.time,
                f"{started.num_waiting} were left waiting, {count(started.num_free_blocks, 'block')} left free",
            )
        )
    lines.append(
        Line(
            end,
            f"it took {milliseconds(completed.duration_s)}: schedule {milliseconds(completed.schedule_s)}, forward "
            f"{milliseconds(completed.forward_s)}, sample {milliseconds(completed.sample_s)}, output "
            f"{milliseconds(completed.output_s)}",
        )
    )
    lines.sort(key=lambda line: line.time or 0.0)
    return Explanation(f"step {step}", lines)


def explain_cache(events: Sequence[Event], snapshot: EngineSnapshot | None, max_prefixes: int = 20) -> Explanation:
    """Which prefixes live and how often they were hit (snapshot; None: not known, as from a trace file), what was
    found lately, and what was evicted.
    """
    lines: list[Line] = []
    if snapshot is not None:
        lines += [Line(None, text) for text in _contents(snapshot, max_prefixes)]
    hits = [event for event in events if isinstance(event, PrefixHit)]
    if hits:
        found, asked = sum(hit.num_cached_tokens for hit in hits), sum(hit.num_tokens for hit in hits)
        used = sum(hit.num_cached_tokens > 0 for hit in hits)
        lines.append(
            Line(
                None,
                f"of the last {count(len(hits), 'admission')}, {used} found a prefix: {found} of {asked} tokens "
                f"({found / max(asked, 1):.0%})",
            )
        )
    evicted = [event for event in events if isinstance(event, BlockEvicted)]
    if not evicted:
        lines.append(Line(None, "no block was evicted among the events that are kept"))
    for_whom: dict[str, list[BlockEvicted]] = {}
    for event in evicted:
        for_whom.setdefault(event.for_request_id, []).append(event)
    for request_id, taken in list(for_whom.items())[-10:]:
        lines.append(Line(taken[0].time, f"{count(len(taken), 'cached block')} evicted for {request_id}"))
    return Explanation("the prefix cache", lines)


def _contents(snapshot: EngineSnapshot, max_prefixes: int) -> list[str]:
    blocks = {block.block_hash: block for block in snapshot.cached_blocks}
    in_use = sum(block.ref_cnt > 0 for block in blocks.values())
    size = snapshot.block_size
    lines = [
        f"{len(blocks)} of {snapshot.num_blocks} blocks can be found ({count(len(blocks) * size, 'token')}): "
        f"{in_use} in use, {len(blocks) - in_use} kept until their room is needed; "
        f"{count(snapshot.num_evictions, 'block')} evicted since the engine's start"
    ]
    if snapshot.prefix_cache_queries:
        rate = snapshot.prefix_cache_hits / snapshot.prefix_cache_queries
        lines.append(
            f"{snapshot.prefix_cache_hits} of {snapshot.prefix_cache_queries} tokens asked for since then were found "
            f"({rate:.0%})"
        )
    children: dict[str | None, list[str]] = {}
    for key, block in blocks.items():
        parent = block.parent_hash if block.parent_hash in blocks else None
        children.setdefault(parent, []).append(key)

    def prefix(root: str) -> tuple[int, int, list[str]]:
        """From its first block on, as long as every request went the same way: blocks, hits, what it branches into."""
        length, key = 1, root
        while len(below := children.get(key, [])) == 1 and blocks[below[0]].num_hits == blocks[root].num_hits:
            key = below[0]
            length += 1
        return length, blocks[root].num_hits, children.get(key, [])

    roots = sorted(children.get(None, []), key=lambda key: -blocks[key].num_hits)
    for root in roots[:max_prefixes]:
        length, hits, branches = prefix(root)
        held = blocks[root].ref_cnt
        lines.append(
            f"prefix {root[:8]}: {count(length, 'block')} = {count(length * size, 'token')}, "
            f"hit {count(hits, 'time')}, held by {count(held, 'request')} now"
            + (f"; {count(len(branches), 'way')} on from there" if branches else "")
        )
    if len(roots) > max_prefixes:
        lines.append(f"and {len(roots) - max_prefixes} prefixes more, hit less often")
    return lines
