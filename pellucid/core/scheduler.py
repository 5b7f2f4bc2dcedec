"""Who runs in the next step, and for how many tokens; and what follows from the tokens that come back."""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from pellucid.core.admission import check_whole_life
from pellucid.core.decisions import DecisionLog
from pellucid.core.finish import Ending, find_ending
from pellucid.core.heap import RemovableHeap
from pellucid.core.kv_cache_manager import KVCacheManager
from pellucid.core.messages import EngineCoreOutput, EngineCoreRequest, FinishReason, SchedulerStats
from pellucid.core.request import FINISHED_STATUS, Request, RequestStatus
from pellucid.core.scheduler_output import RunnerOutput, SampledRequest, ScheduledRequest, SchedulerOutput
from pellucid.observability.bus import EventBus
from pellucid.observability.events import TokensSampled

_ORDER = attrgetter("order")


@dataclass(frozen=True)
class SchedulerConfig:
    """max_num_seqs: running requests. max_num_batched_tokens: tokens in a step. max_model_len: tokens of a request."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")


class Scheduler:
    """Every running request is taken from num_computed_tokens towards its end, as far as the token budget allows: a
    decode, a chunk of a prompt and the recomputation after a preemption are the same thing.

    Order is strict: by priority, then by arrival at the engine. Nobody overtakes in the queue, and blocks are only ever
    taken from a request further back. So the first request in order always moves, alone if need be (admission made sure
    that it fits alone), and everyone becomes first: no starvation, no livelock.

    now: the wall clock, for events. monotonic: for deadlines, which must not move when somebody sets the clock.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVCacheManager,
        bus: EventBus | None = None,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.kv = kv
        self.requests: dict[str, Request] = {}
        self.running: list[Request] = []  # in order
        self.waiting: RemovableHeap[Request] = RemovableHeap()  # preempted ones first among their priority
        self.step = 0
        self.num_preemptions = 0
        self.num_forced_tokens = 0
        self._bus = bus if bus is not None else EventBus()
        self._log = DecisionLog(self._bus, now)
        self._now = now
        self._monotonic = monotonic
        self._num_arrived = 0
        self._deadlines: RemovableHeap[Request] = RemovableHeap()
        self._finished_request_ids: list[str] = []  # for the runner, with the next step
        self._preempted: list[Request] = []
        self._num_scheduled_tokens = 0
        self._did_not_fit: tuple[Request | None, int, int] = (None, 0, 0)  # who, at which num_releases, needing what

    # requests come and go --------------------------------------------------------------------------------------------

    def add_request(self, value: EngineCoreRequest, rules: object | None = None) -> list[EngineCoreOutput]:
        """Queue a request; returns an output only when it is finished already (a replay that had come to its end).

        Raises ValueError, with the numbers, for one that can never fit or whose id is in use.
        """
        if value.request_id in self.requests:
            raise ValueError(f"request id {value.request_id!r} is in use")
        request = Request(value)
        request.rules = rules
        check_whole_life(request, self.kv, self.config.max_model_len)
        request.max_num_tokens = min(request.max_total_tokens, self.config.max_model_len)
        self._num_arrived += 1
        request.order = (request.priority, self._num_arrived)
        self.requests[request.request_id] = request
        self.waiting.push((request.priority, 1, self._num_arrived), request)
        if value.deadline is not None:
            # Wall time on the wire, since two processes share it; from here on it must not jump.
            self._deadlines.push(self._monotonic() + value.deadline - self._now(), request)
        self._log.arrived(request)
        ending = find_ending(request) if request.num_output_tokens else None
        return [self._finish(request, ending)] if ending else []

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """Drop these at once and silently: whoever asked does not listen any more. Unknown ids are ignored."""
        for request_id in request_ids:
            request = self.requests.get(request_id)
            if request is not None:
                self._finish(request, Ending(FinishReason.ABORT))

    def expire_deadlines(self) -> list[EngineCoreOutput]:
        """End the requests whose time is up, waiting or running."""
        expired = []
        now = self._monotonic()
        while self._deadlines and self._deadlines.first_key() <= now:
            request = self._deadlines.pop()
            allowed_s = (request.value.deadline or 0.0) - request.arrival_time
            place = "running" if request.status is RequestStatus.RUNNING else "waiting in the queue"
            error = (
                f"timed out: not finished {allowed_s:g} s after it arrived ({place}, {request.num_output_tokens} of at "
                f"most {request.sampling_params.max_tokens} tokens generated)"
            )
            expired.append(self._finish(request, Ending(FinishReason.ERROR), error=error))
        return expired

    def has_requests(self) -> bool:
        return bool(self.requests)

    # one step --------------------------------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """Decide the next step. Empty when there is nothing to do.

        The blocks of all scheduled tokens are in the requests' tables; num_computed_tokens moves in update_from_output.
        """
        scheduled: list[ScheduledRequest] = []
        num_preemptions = self.num_preemptions
        budget = self._schedule_running(scheduled)
        if self.waiting:
            if self.num_preemptions > num_preemptions:
                self._hold_back("preemption")  # whoever just gave way would be let in again at once
            else:
                budget = self._admit_waiting(scheduled, budget)
        self._num_scheduled_tokens = self.config.max_num_batched_tokens - budget
        if not scheduled:
            return SchedulerOutput(self.step, (), 0)
        self.step += 1
        finished, self._finished_request_ids = self._finished_request_ids, []
        preempted, self._preempted = self._preempted, []
        output = SchedulerOutput(self.step, scheduled, self._num_scheduled_tokens, preempted, finished)
        self._log.scheduled(output, len(self.running), len(self.waiting), self.kv.num_free_blocks)
        return output

    def _schedule_running(self, scheduled: list[ScheduledRequest]) -> int:
        """First those that need one token (and those forced after it), then the unfinished prompts; returns what is
        left of the token budget.

        A long prompt must not stop everybody's stream for the steps it takes. The unfinished ones hold the blocks of
        all their tokens since admission, so only the first loop can run out of blocks; it goes from front to back and
        preempts from the back, and so never takes from one that it has scheduled.
        """
        budget = self.config.max_num_batched_tokens
        kv, block_size, running = self.kv, self.kv.block_size, self.running
        unfinished: list[Request] = []
        index = 0
        while index < len(running) and budget:
            request = running[index]
            start, end = request.num_computed_tokens, len(request.token_ids)
            num_tokens = end - start
            if num_tokens > 1 + request.num_forced_ahead:
                unfinished.append(request)
            else:
                if end > len(request.block_table) * block_size and not self._make_room(request, end):
                    break  # it gave way itself: it was the last
                if num_tokens > 1:
                    budget -= self._schedule_chunk(request, budget, scheduled)
                else:
                    if not end % block_size:
                        kv.cache_blocks(request, end)
                    scheduled.append(ScheduledRequest(request, 1, start, request.pooling is None))
                    budget -= 1
            index += 1
        for request in unfinished:
            if not budget:
                break
            budget -= self._schedule_chunk(request, budget, scheduled)
        return budget

    def _schedule_chunk(self, request: Request, budget: int, scheduled: list[ScheduledRequest]) -> int:
        start, end = request.num_computed_tokens, len(request.token_ids)
        num_tokens = min(end - start, budget)
        self.kv.cache_blocks(request, start + num_tokens)
        samples = start + num_tokens == end and request.pooling is None
        scheduled.append(ScheduledRequest(request, num_tokens, start, samples))
        return num_tokens

    def _admit_waiting(self, scheduled: list[ScheduledRequest], budget: int) -> int:
        """Let requests in from the head of the queue, as long as they fit; returns what is left of the token budget."""
        while self.waiting:
            if len(self.running) >= self.config.max_num_seqs:
                self._hold_back("max_num_seqs")
                break
            if not budget:
                self._hold_back("token_budget")
                break
            request = self.waiting.peek()
            who, num_releases, needed = self._did_not_fit
            if who is request and num_releases == self.kv.pool.num_releases:
                self._hold_back("kv_blocks", needed)  # nothing came back since: no need to look again
                break
            computed = self.kv.get_computed_blocks(request)
            needed = self.kv.num_blocks_taken(request, computed)
            if needed + self._num_reserved_blocks() > self.kv.num_free_blocks:
                self._did_not_fit = (request, self.kv.pool.num_releases, needed)
                self._hold_back("kv_blocks", needed)
                break
            self.waiting.pop()
            self._log.admitted(request, len(computed) * self.kv.block_size, self.kv.hit_ended_by(request, computed))
            self.kv.admit(request, computed)
            request.status = RequestStatus.RUNNING
            insort(self.running, request, key=_ORDER)
            budget -= self._schedule_chunk(request, budget, scheduled)
        return budget

    def _num_reserved_blocks(self) -> int:
        """What admission leaves for running requests to grow into, lest it admits now what it preempts a moment later.

        A block each, but no more than a 64th of the pool. None when nothing runs: what fits alone must get in.
        """
        return min(len(self.running), self.kv.pool.num_blocks // 64)

    def _hold_back(self, limited_by: str, needed_blocks: int = 0) -> None:
        head, free, reserved = self.waiting.peek(), self.kv.num_free_blocks, self._num_reserved_blocks()
        self._log.held_back(head, self.step + 1, limited_by, needed_blocks, free, reserved)

    def _make_room(self, request: Request, num_tokens: int) -> bool:
        """Grow the request's table, at the cost of the last in order; False when that was the request itself."""
        while not self.kv.allocate_slots(request, num_tokens):
            victim = self.running[-1]
            self._preempt(victim, request)
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request, for_request: Request) -> None:
        """Back to the head of the queue; its value (the tokens so far) is all that is kept."""
        self._log.preempted(request, for_request)
        self._leave_running(request)
        self.kv.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_preemptions += 1
        self.num_preemptions += 1
        self._preempted.append(request)
        self.waiting.push((request.priority, 0, request.order[1]), request)

    def _leave_running(self, request: Request) -> None:
        del self.running[bisect_left(self.running, request.order, key=_ORDER)]

    # what came back --------------------------------------------------------------------------------------------------

    def update_from_output(self, scheduled: SchedulerOutput, sampled: RunnerOutput) -> list[EngineCoreOutput]:
        """Account for a computed step: tokens appended, finished requests freed, one output for each that has news.

        A request that failed may not have written its KV, or wrongly: nobody is to find it. Whoever was admitted in
        this very step on the promise that it would is preempted, and computes for itself. (Whoever shares more with
        such a one shares the doubtful blocks, too: a prefix is shared from its start.) But where only nothing could be
        sampled, what was computed stays: else whoever sends such a request would empty the cache for all.
        """
        outputs: list[EngineCoreOutput] = []
        doubtful: set[int] = set()  # ids of blocks that a failed request was to write in this step
        told: list[tuple[Request, EngineCoreOutput]] = []
        for share, result in zip(scheduled.requests, sampled.requests, strict=True):
            request = share.request
            if request.status is not RequestStatus.RUNNING:
                continue
            error, in_doubt = result.error, result.error is None or result.kv_in_doubt
            relies_on_doubtful = bool(doubtful) and not doubtful.isdisjoint(request.block_table)
            if error is None and share.samples and not result.token_ids:
                error = "the model runner returned no token"
            if error is None and result.pooled is None and share.pools:
                error = "the model runner returned no vector"
            if error is not None:
                if in_doubt or relies_on_doubtful:
                    culprit = request
                    doubtful.update(self._written_blocks(share))
                    self.kv.withdraw_blocks(request)
                outputs.append(self._finish(request, Ending(FinishReason.ERROR), error=error))
            elif relies_on_doubtful:
                self.kv.withdraw_blocks(request)
                self._preempt(request, culprit)
            else:
                request.num_computed_tokens = share.start + share.num_tokens
                if result.prompt_logprobs is not None:
                    request.add_prompt_logprobs(share.start, result.prompt_logprobs)
                if result.pooled is not None:
                    outputs.append(self._finish(request, Ending(FinishReason.STOP), pooled=result.pooled))
                elif result.token_ids:
                    outputs.append(self._append(request, result))
                    told.append((request, outputs[-1]))
        if told and self._bus.wants(TokensSampled):
            self._log.sampled(told, scheduled.step)
        return outputs

    def _append(self, request: Request, result: SampledRequest) -> EngineCoreOutput:
        new_token_ids, logprobs = result.token_ids, result.logprobs
        num_sampled = len(new_token_ids) - result.num_forced
        request.num_forced_ahead = 0
        for num_new, token_id in enumerate(new_token_ids, 1):
            request.token_ids.append(token_id)
            if num_new > num_sampled:
                request.num_forced_ahead += 1
                request.num_forced_tokens += 1
                self.num_forced_tokens += 1
            ending = find_ending(request)
            if ending:  # what may follow in new_token_ids is past the end
                return self._finish(request, ending, new_token_ids[:num_new], logprobs and logprobs[:num_new])
        return EngineCoreOutput(
            request_id=request.request_id,
            new_token_ids=new_token_ids,
            logprobs=logprobs,
            prompt_logprobs=request.take_prompt_logprobs() if request.owes_prompt_logprobs else None,
            num_cached_tokens=request.num_cached_tokens,
        )

    def _finish(
        self,
        request: Request,
        ending: Ending,
        new_token_ids: Sequence[int] = (),
        logprobs: list | None = None,
        error: str | None = None,
        pooled: bytes | None = None,
    ) -> EngineCoreOutput:
        """Every end of a request comes through here: all it held is free afterwards."""
        if request.status is RequestStatus.RUNNING:
            self._leave_running(request)
        else:
            self.waiting.remove(request)
        self.kv.free(request)
        self._deadlines.remove(request)
        del self.requests[request.request_id]
        request.status = FINISHED_STATUS[ending.reason]
        self._finished_request_ids.append(request.request_id)
        self._log.finished(request, ending.reason.value, error)
        return EngineCoreOutput(
            request_id=request.request_id,
            new_token_ids=list(new_token_ids),
            logprobs=logprobs,
            prompt_logprobs=request.take_prompt_logprobs() if new_token_ids else None,
            pooled=pooled,
            num_cached_tokens=max(request.num_cached_tokens, 0),
            finish_reason=ending.reason,
            stop_reason=ending.stop_reason,
            error=error,
        )

    def _written_blocks(self, share: ScheduledRequest) -> list[int]:
        first, end = share.start // self.kv.block_size, self.kv.num_blocks_for(share.start + share.num_tokens)
        return share.request.block_table[first:end]

    def stats(self) -> SchedulerStats:
        pool = self.kv.pool
        return SchedulerStats(
            step=self.step,
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            num_blocks=pool.num_blocks,
            num_free_blocks=pool.num_free_blocks,
            num_cached_blocks=pool.num_evictable_blocks,
            num_scheduled_tokens=self._num_scheduled_tokens,
            num_preemptions=self.num_preemptions,
            num_forced_tokens=self.num_forced_tokens,
            prefix_cache_queries=self.kv.num_prefix_queries,
            prefix_cache_hits=self.kv.num_prefix_hits,
        )
