"""One request's way through the engine, event by event, as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from pellucid.observability.events import (
    EngineDied,
    Event,
    PrefixHit,
    RequestArrived,
    RequestFinished,
    RequestHeldBack,
    RequestPreempted,
    RequestRefused,
    RequestReplayed,
    RequestScheduled,
    RequestSubmitted,
    StepCompleted,
    StepStarted,
)

TimedText = tuple[float, str]

_ENDED_BY = {
    "miss": "the next block was not in the cache",
    "last_token": "that is all that may come from there: the last token is always computed, for its logits",
    "prompt_logprobs": "from there on the prompt's own logprobs were asked for, which need computing",
    "disabled": "prefix caching is off",
}
_FINISHED = {
    "stop": "it came to a stop: an end-of-text token or a stop token",
    "length": "it reached its max_tokens, or the end of the context",
    "abort": "it was aborted: the caller left, or had seen a stop string",
    "error": "it failed",
}


def count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def milliseconds(duration_s: float) -> str:
    return f"{duration_s * 1000:.1f} ms" if duration_s < 1 else f"{duration_s:.2f} s"


def why_held_back(event: RequestHeldBack) -> str:
    if event.limited_by == "kv_blocks":
        reserve = (
            f", of which {event.num_reserved_blocks} are kept for running requests to grow into"
            if event.num_reserved_blocks
            else ""
        )
        return (
            f"the pool had {count(event.num_free_blocks, 'free block')}{reserve}, and it needed {event.needed_blocks}"
        )
    return {
        "max_num_seqs": "as many requests were running as may (max_num_seqs)",
        "token_budget": "the step's tokens were given out already (max_num_batched_tokens)",
        "preemption": "the step had to preempt, and lets nobody in",
    }.get(event.limited_by, event.limited_by)


class Story:
    """events: in order of time. request_id: a caller's (then all its continuations are told) or an engine's."""

    def __init__(self, events: Sequence[Event], request_id: str) -> None:
        self._events = events
        submitted = [event for event in events if isinstance(event, RequestSubmitted)]
        self._submitted = next(
            (event for event in submitted if request_id in (event.request_id, event.http_request_id)), None
        )
        self._ids = [request_id] if self._submitted is None else self._submitted.engine_request_ids
        wanted = {*self._ids, request_id}
        self._refusals = [event for event in events if isinstance(event, RequestRefused) and event.request_id in wanted]
        self._own: dict[str, list[Event]] = {engine_id: [] for engine_id in self._ids}
        for event in events:
            own = self._own.get(getattr(event, "request_id", ""))
            if own is not None and not isinstance(event, RequestSubmitted | RequestRefused):
                own.append(event)

    @property
    def found(self) -> bool:
        return bool(self._refusals or self._submitted or any(self._own.values()))

    def lines(self) -> Iterator[TimedText]:
        for engine_id in self._ids:
            if len(self._ids) > 1 and self._own[engine_id]:
                yield self._own[engine_id][0].time, f"continuation {engine_id}:"
            yield from _Life(self._events, engine_id, self._own[engine_id]).lines()
        for refused in self._refusals:
            yield refused.time, f"it was refused by the {refused.by}: {refused.reason}"


class _Life:
    """One engine request, from arrival to end."""

    def __init__(self, events: Sequence[Event], request_id: str, own: list[Event]) -> None:
        self._events = events
        self._request_id = request_id
        self._own = own
        self._num_missing = 0  # tokens without KV when it was last admitted
        self._num_output_tokens = 0

    def lines(self) -> Iterator[TimedText]:
        waiting_since: float | None = None
        held_back: list[RequestHeldBack] = []
        running_since: float | None = None
        for event in self._own:
            if isinstance(event, RequestArrived):
                waiting_since, held_back, running_since = event.time, [], None
                yield event.time, _arrival(event)
            elif isinstance(event, RequestHeldBack):
                held_back.append(event)
            elif isinstance(event, PrefixHit):
                if waiting_since is not None:
                    yield event.time, self._wait(waiting_since, event.time, held_back)
                self._num_missing = event.num_tokens - event.num_cached_tokens
                yield event.time, _hit(event)
            elif isinstance(event, RequestScheduled):
                waiting_since, held_back, running_since = None, [], event.time
            elif isinstance(event, RequestPreempted):
                yield from self._computed(running_since, event.time)
                waiting_since, held_back, running_since = event.time, [], None
                yield event.time, self._preemption(event)
            elif isinstance(event, RequestReplayed):
                yield from self._replay(event)
                waiting_since = running_since = None
            elif isinstance(event, RequestFinished):
                if waiting_since is not None:
                    yield event.time, self._wait(waiting_since, event.time, held_back)
                yield from self._computed(running_since, event.time)
                waiting_since = running_since = None
                if (num_forced := event.num_forced_tokens) > 0:
                    yield event.time, _forced(num_forced)
                error = f": {event.error}" if event.error else ""
                yield (
                    event.time,
                    f"{_FINISHED.get(event.reason, event.reason)}{error} "
                    f"({count(event.num_output_tokens, 'token')} generated in all)",
                )
        end = self._events[-1].time if self._events else 0.0
        if waiting_since is not None:
            yield end, self._wait(waiting_since, end, held_back) + ", and still waits"
        elif running_since is not None:
            yield from self._computed(running_since, end)
            yield end, "it is running"

    def _wait(self, begin: float, end: float, held_back: list[RequestHeldBack]) -> str:
        waited = f"it waited {milliseconds(end - begin)}"
        ahead = next(
            (
                event
                for event in self._events
                if isinstance(event, RequestHeldBack)
                and begin <= event.time <= end
                and event.request_id != self._request_id
            ),
            None,
        )
        reasons = [f"because {why_held_back(event)}" for event in held_back[:3]]
        if ahead is not None and not (held_back and held_back[0].time < ahead.time):
            reasons.insert(0, f"behind {ahead.request_id}, which was first in the queue: {why_held_back(ahead)}")
        if reasons:
            return f"{waited} {'; then '.join(reasons)}"
        step = next(
            (
                event
                for event in self._events
                if isinstance(event, StepCompleted) and event.time < begin <= event.time + event.duration_s <= end
            ),
            None,
        )
        return f"{waited} for step {step.step} to end" if step is not None else waited

    def _preemption(self, event: RequestPreempted) -> str:
        for_whom = (
            "it was itself the last in order"
            if event.for_request_id == self._request_id
            else (f"{event.for_request_id} needed a block and this one was the last in order")
        )
        return (
            f"it was preempted: the pool had no free block, {for_whom}; "
            f"{count(event.num_computed_tokens, 'computed token')} were thrown away, to be computed again"
        )

    def _replay(self, event: RequestReplayed) -> Iterator[TimedText]:
        death = next((e for e in reversed(self._events) if isinstance(e, EngineDied) and e.time <= event.time), None)
        if death is not None:
            yield death.time, f"the engine died ({death.reason})"
        yield event.time, f"it was sent to a new engine, to go on after {count(event.num_output_tokens, 'token')}"

    def _computed(self, begin: float | None, end: float) -> Iterator[TimedText]:
        """What the steps between admission and its end or preemption did for it."""
        if begin is None:
            return
        started = {
            event.step: event
            for event in self._events
            if isinstance(event, StepStarted) and begin <= event.time <= end and self._request_id in event.request_ids
        }
        shares = [(event, event.num_tokens[event.request_ids.index(self._request_id)]) for event in started.values()]
        durations = {
            event.step: event.duration_s
            for event in self._events
            if isinstance(event, StepCompleted) and event.step in started and event.time >= begin - event.duration_s
        }
        prefill: list[tuple[StepStarted, int]] = []
        missing = self._num_missing
        while shares and missing > 0:
            prefill.append(shares.pop(0))
            missing -= prefill[-1][1]
        if prefill:
            yield prefill[0][0].time, _prefill(prefill, durations, missing)
        if shares:
            steps = [event.step for event, _ in shares]
            others = [len(event.request_ids) - 1 for event, _ in shares]
            company = f"together with {median(others):g} others on median" if any(others) else "alone"
            took = [durations[step] for step in steps if step in durations]
            pace = f", {milliseconds(median(took))} each on median" if took else ""
            yield (
                shares[0][0].time,
                f"it decoded in {count(len(steps), 'step')} ({_steps(steps)}){pace}, {company}",
            )


def _forced(number: int) -> str:
    were, their = ("was", "its") if number == 1 else ("were", "their")
    tokens = count(number, "token")
    return f"{tokens} {were} forced by its constraint or thinking budget, and cost no step of {their} own"


def _arrival(event: RequestArrived) -> str:
    output = f" and {count(event.num_output_tokens, 'token')} generated before" if event.num_output_tokens else ""
    return (
        f"it arrived with {count(event.num_prompt_tokens, 'prompt token')}{output}"
        f"{f', to become {event.max_num_tokens} at most' if event.max_num_tokens else ''}"
    )


def _hit(event: PrefixHit) -> str:
    if not event.num_cached_tokens:
        why = "its first block is not there" if event.ended_by == "miss" else _ENDED_BY.get(event.ended_by, "")
        return f"nothing of its {count(event.num_tokens, 'token')} was found in the prefix cache: {why}"
    return (
        f"{event.num_cached_tokens} of its {count(event.num_tokens, 'token')} were cached, and not computed again; "
        f"{_ENDED_BY.get(event.ended_by, '')}"
    )


def _prefill(shares: list[tuple[StepStarted, int]], durations: dict[int, float], missing: int) -> str:
    steps = [event.step for event, _ in shares]
    sizes = [num_tokens for _, num_tokens in shares]
    took = sum(durations.get(step, 0.0) for step in steps)
    pieces = f" in {len(sizes)} pieces ({', '.join(map(str, sizes))})" if len(sizes) > 1 else ""
    why = ", as a step has room for so many tokens only" if len(sizes) > 1 or missing > 0 else ""
    return f"{count(sum(sizes), 'token')} were computed in {_steps(steps)}{pieces}{why}; that took {milliseconds(took)}"


def _steps(steps: list[int]) -> str:
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
