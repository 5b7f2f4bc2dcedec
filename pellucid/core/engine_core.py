"""The engine's heart: decide, compute, account. Start reading here."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence
from typing import Protocol

from pellucid.core.admission import check_value
from pellucid.core.messages import (
    ControlAction,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
    SchedulerStats,
)
from pellucid.core.preparation import Preparations
from pellucid.core.scheduler import Scheduler
from pellucid.core.scheduler_output import RunnerOutput, SampledRequest, SchedulerOutput
from pellucid.core.snapshot import snapshot
from pellucid.observability.bus import ALWAYS_PUBLISHED, EventBus
from pellucid.observability.events import Event, RequestRefused, SchedulingPaused, StepCompleted
from pellucid.sampling.validate import SamplingLimits

IDLE_WAIT_S = 0.005  # so long a step waits for a grammar where there is nothing else to do

logger = logging.getLogger(__name__)


class Runner(Protocol):
    """Computes a step: model_runner.ModelRunner, or a function of the tokens in tests."""

    def execute(self, scheduled: SchedulerOutput) -> RunnerOutput:
        """One forward pass over the ragged batch: write the KV of every scheduled token, sample where `samples` is set.

        Raises whatever goes wrong with the batch as a whole; what goes wrong with one request is its result's `error`.
        After raising it may be called again with parts of the same step: to write the same KV twice must be harmless.
        """


class EngineCore:
    """One step at a time. Owns no threads and no sockets; whoever owns one calls step() while has_work().

    No request can stop it: what is wrong with a request is answered with an error output, an exception in a step ends
    the request that caused it. An exception that leaves step() means that the engine itself is broken and must be
    replaced (requests are values: they go on in the next one).
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        vocab_size: int,
        bus: EventBus,
        preparations: Preparations | None = None,
    ) -> None:
        """preparations: what makes the rules for constrained output; without it such requests are refused."""
        self.scheduler = scheduler
        self.runner = runner
        self.vocab_size = vocab_size
        self.bus = bus
        self._preparations = preparations
        self._limits = SamplingLimits(structured_outputs=preparations is not None)
        self._outputs: list[EngineCoreOutput] = []  # since the last step
        self._events: list[Event] = []
        self._news = False  # the world has not yet heard of the present stats
        self._paused = False
        self._single_steps = 0  # to be made although it is paused
        bus.subscribe(self._events.append, ALWAYS_PUBLISHED)

    def step(self) -> EngineCoreOutputs:
        """Advance every request that fits in a step; returns all that happened since the last one."""
        time_s, begin = self.bus.now(), time.perf_counter()
        self._queue_prepared()
        self._outputs += self.scheduler.expire_deadlines()
        scheduled = self.scheduler.schedule() if self._may_schedule else None  # who runs, how many tokens each
        if scheduled:
            self._single_steps -= self._paused
            decided = time.perf_counter()
            sampled = self._execute(scheduled)  # one forward pass over the ragged batch
            computed = time.perf_counter()
            num_forced = -self.scheduler.num_forced_tokens
            outputs = self.scheduler.update_from_output(scheduled, sampled)
            num_forced += self.scheduler.num_forced_tokens
            self._outputs += outputs
            self.bus.publish(
                StepCompleted(
                    step=scheduled.step,
                    time=time_s,
                    num_reqs=len(scheduled.requests),
                    num_tokens=scheduled.num_tokens,
                    num_sampled=sum(len(output.new_token_ids) for output in outputs),
                    num_forced=num_forced,
                    schedule_s=decided - begin,
                    forward_s=computed - decided - sampled.sample_s,
                    sample_s=sampled.sample_s,
                    output_s=time.perf_counter() - computed,
                )
            )
        return self._take_outputs()

    def add_request(self, request: EngineCoreRequest) -> None:
        """Queue it. One that is invalid or can never fit is answered with an error output by the next step."""
        preparations = self._preparations
        if request.request_id in self.scheduler.requests or (preparations and request.request_id in preparations):
            # No output: it would end the request that has the id. Ids are made by the front end; this is its mistake.
            logger.error("request id %r is in use; the second request is dropped", request.request_id)
            self._refused(request, "its id is in use")
            return
        try:
            check_value(request, self.vocab_size, self._limits)
            if preparations is None or not preparations.begin(request):
                self._outputs += self.scheduler.add_request(request)
        except ValueError as error:
            self._refuse(request, str(error))
        self._news = True

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """Stop these and free what they hold, at once; no outputs follow. Unknown ids are ignored."""
        self.scheduler.abort_requests(request_ids)
        if self._preparations:
            self._preparations.drop(request_ids)
        self._outputs = [output for output in self._outputs if output.request_id not in request_ids]  # a refusal
        self._news = True

    def watch(self, detail: bool) -> None:
        """Tell every event from now on, beginning with a snapshot; or only what is always told."""
        self.bus.subscribe(self._events.append, None if detail else ALWAYS_PUBLISHED)
        if detail:
            self.bus.publish(snapshot(self.scheduler, self.bus.now(), self._paused))
        self._news = True

    def control(self, action: ControlAction) -> None:
        """Stop scheduling, make one step, or go on. Requests arrive and leave all the same."""
        if action is ControlAction.STEP:
            self._single_steps += self._paused and self._has_requests
            return
        paused, self._single_steps = action is ControlAction.PAUSE, 0
        if paused != self._paused:
            self._paused = paused
            self.bus.publish(SchedulingPaused(time=self.bus.now(), paused=paused))
            self._news = True

    def has_work(self) -> bool:
        """Would step() compute or tell something?"""
        return self._news or self._may_run or bool(self._preparations)

    def stats(self) -> SchedulerStats:
        return self.scheduler.stats()

    @property
    def _has_requests(self) -> bool:
        return self.scheduler.has_requests() or bool(self._preparations)

    @property
    def _may_schedule(self) -> bool:
        return not self._paused or self._single_steps > 0

    @property
    def _may_run(self) -> bool:
        return self._may_schedule and self.scheduler.has_requests()

    def _execute(self, scheduled: SchedulerOutput) -> RunnerOutput:
        try:
            return self._checked(scheduled, self.runner.execute(scheduled))
        except Exception as error:
            logger.exception("step %d of %d requests failed", scheduled.step, len(scheduled.requests))
            if len(scheduled.requests) == 1:
                return RunnerOutput([SampledRequest(error=describe_error(error))])
            return self._execute_one_by_one(scheduled)

    def _execute_one_by_one(self, scheduled: SchedulerOutput) -> RunnerOutput:
        """Find out who broke the step; the others get what the step would have given them (a row's bits do not depend
        on its neighbours). In batch order, since a request may share blocks that an earlier one writes in this step.
        """
        results: list[SampledRequest] = []
        sample_s = 0.0
        for index, share in enumerate(scheduled.requests):
            first = index == 0
            alone = SchedulerOutput(
                step=scheduled.step,
                requests=[share],
                num_tokens=share.num_tokens,
                preempted=scheduled.preempted if first else (),
                finished_request_ids=scheduled.finished_request_ids if first else (),
            )
            try:
                output = self._checked(alone, self.runner.execute(alone))
                results += output.requests
                sample_s += output.sample_s
            except Exception as error:
                logger.error("request %s broke the step: %s", share.request.request_id, describe_error(error))
                results.append(SampledRequest(error=describe_error(error)))
        return RunnerOutput(results, sample_s)

    @staticmethod
    def _checked(scheduled: SchedulerOutput, sampled: RunnerOutput) -> RunnerOutput:
        if len(sampled.requests) != len(scheduled.requests):
            raise RuntimeError(
                f"the model runner answered for {len(sampled.requests)} of {len(scheduled.requests)} requests"
            )
        return sampled

    def _queue_prepared(self) -> None:
        """Queue the requests whose rules are made by now."""
        preparations = self._preparations
        if not preparations:
            return
        if not self._news and not self._may_run:
            preparations.wait(IDLE_WAIT_S)
        for prepared in preparations.take_done():
            try:
                if prepared.error is not None:
                    raise ValueError(prepared.error)
                self._outputs += self.scheduler.add_request(prepared.request, prepared.rules)
            except ValueError as error:
                self._refuse(prepared.request, str(error))

    def _refuse(self, request: EngineCoreRequest, error: str) -> None:
        self._refused(request, error)
        self._outputs.append(
            EngineCoreOutput(request_id=request.request_id, finish_reason=FinishReason.ERROR, error=error)
        )

    def _refused(self, request: EngineCoreRequest, reason: str) -> None:
        self.bus.publish(RequestRefused(request_id=request.request_id, time=self.bus.now(), reason=reason))

    def _take_outputs(self) -> EngineCoreOutputs:
        message = EngineCoreOutputs(outputs=self._outputs, stats=self.stats(), events=list(self._events))
        self._outputs, self._news = [], False
        self._events.clear()
        if not self._has_requests:
            self._single_steps = 0  # what finds nothing to do is not saved up for what comes later
        return message


def describe_error(error: Exception) -> str:
    """One line for the user: what happened, without the addresses that Python puts into its messages."""
    text = re.sub(r"\b0x[0-9a-fA-F]+", "0x…", " ".join(str(error).split()))[:300]
    name = type(error).__name__
    return f"the model step failed: {name}: {text}" if text else f"the model step failed: {name}"
