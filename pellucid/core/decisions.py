"""The scheduler's decisions as events: one line where a decision is made, the rest here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pellucid.core.messages import EngineCoreOutput
from pellucid.core.request import Request
from pellucid.core.scheduler_output import SchedulerOutput
from pellucid.observability.bus import EventBus
from pellucid.observability.events import (
    PrefixHit,
    RequestArrived,
    RequestFinished,
    RequestHeldBack,
    RequestPreempted,
    RequestScheduled,
    StepStarted,
    TokensSampled,
    TokensScheduled,
)


class DecisionLog:
    """Publishes on the bus; what is made per token, only when somebody reads it."""

    def __init__(self, bus: EventBus, now: Callable[[], float]) -> None:
        self._bus = bus
        self._now = now
        self._held_back: tuple[str, str, int] | None = None  # who waits at the head of the queue, and why, as told

    def arrived(self, request: Request) -> None:
        self._bus.publish(
            RequestArrived(
                request_id=request.request_id,
                time=self._now(),
                num_prompt_tokens=request.num_prompt_tokens,
                num_output_tokens=request.num_output_tokens,
                max_num_tokens=request.max_num_tokens,
                pools=request.pooling is not None,
            )
        )

    def held_back(
        self, request: Request, step: int, limited_by: str, needed: int, num_free: int, num_reserved: int
    ) -> None:
        reason = (request.request_id, limited_by, needed)
        if reason != self._held_back:
            self._held_back = reason
            self._bus.publish(
                RequestHeldBack(
                    request_id=request.request_id,
                    time=self._now(),
                    step=step,
                    limited_by=limited_by,
                    needed_blocks=needed,
                    num_free_blocks=num_free,
                    num_reserved_blocks=num_reserved,
                )
            )

    def admitted(self, request: Request, num_cached_tokens: int, ended_by: str) -> None:
        time_s = self._now()
        self._held_back = None
        self._bus.publish(
            PrefixHit(
                request_id=request.request_id,
                time=time_s,
                num_tokens=request.num_tokens,
                num_cached_tokens=num_cached_tokens,
                ended_by=ended_by,
            )
        )
        self._bus.publish(
            RequestScheduled(request_id=request.request_id, time=time_s, num_cached_tokens=num_cached_tokens)
        )

    def preempted(self, request: Request, for_request: Request) -> None:
        self._bus.publish(
            RequestPreempted(
                request_id=request.request_id,
                time=self._now(),
                num_computed_tokens=request.num_computed_tokens,
                for_request_id=for_request.request_id,
            )
        )

    def finished(self, request: Request, reason: str, error: str | None) -> None:
        self._bus.publish(
            RequestFinished(
                request_id=request.request_id,
                time=self._now(),
                reason=reason,
                num_output_tokens=request.num_output_tokens,
                error=error,
                num_forced_tokens=request.num_forced_tokens,
            )
        )

    def scheduled(self, output: SchedulerOutput, num_running: int, num_waiting: int, num_free_blocks: int) -> None:
        request_ids = [share.request.request_id for share in output.requests]
        num_tokens = [share.num_tokens for share in output.requests]
        if self._bus.wants(TokensScheduled):
            self._bus.publish(
                TokensScheduled(
                    step=output.step,
                    time=self._now(),
                    request_ids=request_ids,
                    starts=[share.start for share in output.requests],
                    num_tokens=num_tokens,
                    limited_by=["" if share.samples or share.pools else "token_budget" for share in output.requests],
                )
            )
        self._bus.publish(
            StepStarted(
                step=output.step,
                time=self._now(),
                request_ids=request_ids,
                num_tokens=num_tokens,
                num_running=num_running,
                num_waiting=num_waiting,
                num_free_blocks=num_free_blocks,
            )
        )

    def sampled(self, results: Sequence[tuple[Request, EngineCoreOutput]], step: int) -> None:
        tokens = TokensSampled(step=step, time=self._now(), request_ids=[], indexes=[], token_ids=[], forced=[])
        for request, output in results:
            end = request.num_output_tokens
            first, first_forced = end - len(output.new_token_ids), end - request.num_forced_ahead
            tokens.request_ids.extend([request.request_id] * (end - first))
            tokens.indexes.extend(range(first, end))
            tokens.token_ids.extend(output.new_token_ids)
            tokens.forced.extend(index >= first_forced for index in range(first, end))
        self._bus.publish(tokens)
