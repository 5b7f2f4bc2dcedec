"""What a front end keeps of the requests it has handed to an engine, so that the next engine can go on with them.

A request is a value: (prompt, parameters, tokens so far). This keeps that value up to date from the outputs that were
passed on, and gives it again when the engine is gone. Pure bookkeeping: no clock, no sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec

from pellucid.core.messages import EngineCoreOutput, EngineCoreRequest, FinishReason
from pellucid.engine.client import OutputSink


class InFlightRequest:
    """One request, from `add` to its last output."""

    def __init__(self, value: EngineCoreRequest, sink: OutputSink) -> None:
        self.value = value
        self.sink = sink
        self.output_token_ids = list(value.output_token_ids)
        self.num_cached_tokens: int | None = None  # as the first output said; later lives say something else
        self.has_prompt_logprobs = False
        self.num_deaths = 0  # engines that died with it, one after another, without a token of it in between
        self.is_sent = False  # to the engine that lives now
        self.is_replay = False  # an earlier engine had it

    def replay_value(self) -> EngineCoreRequest:
        params = self.value.sampling_params
        if self.has_prompt_logprobs:  # passed on already; without them the prompt may also come from the prefix cache
            params = msgspec.structs.replace(params, prompt_logprobs=None)
        return msgspec.structs.replace(self.value, output_token_ids=list(self.output_token_ids), sampling_params=params)

    def take(self, output: EngineCoreOutput) -> EngineCoreOutput:
        """Account for an output, and return it as the caller should see it: as if there had been one engine only."""
        if output.new_token_ids:
            self.output_token_ids += output.new_token_ids
            self.num_deaths = 0
        if output.prompt_logprobs is not None:
            self.has_prompt_logprobs = True
        if self.num_cached_tokens is None:
            if output.new_token_ids:
                self.num_cached_tokens = output.num_cached_tokens
        elif output.num_cached_tokens != self.num_cached_tokens:
            output = msgspec.structs.replace(output, num_cached_tokens=self.num_cached_tokens)
        return output


class InFlightRequests:
    """All requests a client has in flight, in the order they came, and which of them the engine may have now.

    Suspects. A request with `suspect_after` engine deaths behind it (and no token since) may be what kills them, or may
    only have been in bad company. So suspects go to the next engine one at a time, and all else waits: one that gets a
    token is cleared, one that is alone with an engine that dies, for the `max_deaths`th time or more, is ended.
    """

    def __init__(self, suspect_after: int = 2, max_deaths: int = 3) -> None:
        self._requests: dict[str, InFlightRequest] = {}
        self._suspect_after = suspect_after
        self._max_deaths = max_deaths
        self._suspects: list[str] = []  # the first of them is on trial

    def __len__(self) -> int:
        return len(self._requests)

    def ids(self) -> list[str]:
        return list(self._requests)

    def add(self, value: EngineCoreRequest, sink: OutputSink) -> None:
        """Raises ValueError where a request of this id is in flight."""
        if value.request_id in self._requests:
            raise ValueError(f"request {value.request_id!r} is already in flight")
        self._requests[value.request_id] = InFlightRequest(value, sink)

    def remove(self, request_ids: Iterable[str]) -> list[str]:
        """Forget these; returns those which the engine knows and has to be told about."""
        known = []
        for request_id in request_ids:
            request = self._requests.pop(request_id, None)
            if request is not None and request.is_sent:
                known.append(request_id)
        self._trim_suspects()
        return known

    def sendable(self) -> list[EngineCoreRequest]:
        """The values that the living engine should be given now; they count as sent from here on."""
        if self._suspects:
            on_trial = self._requests[self._suspects[0]]
            candidates: Sequence[InFlightRequest] = [on_trial]
        else:
            candidates = list(self._requests.values())
        unsent = [request for request in candidates if not request.is_sent]
        for request in unsent:
            request.is_sent = True
        return [request.replay_value() for request in unsent]

    def deliver(self, output: EngineCoreOutput) -> Callable[[], None] | None:
        """Account for an output. Returns the call that passes it on, None where nobody waits for it any more."""
        request = self._requests.get(output.request_id)
        if request is None or not request.is_sent:
            return None
        seen = request.take(output)
        if output.finish_reason is not None:
            del self._requests[output.request_id]
        self._trim_suspects()
        return partial(request.sink, seen)

    def was_in_a_dead_engine(self, request_id: str) -> bool:
        return self._requests[request_id].is_replay

    @property
    def on_trial(self) -> bool:
        return bool(self._suspects)

    def engine_died(self, cause: str) -> list[Callable[[], None]]:
        """Take back what the dead engine had. Returns the calls that end the requests found guilty, with an error."""
        ended = []
        sent = [request for request in self._requests.values() if request.is_sent]
        for request in sent:
            request.is_sent = False
            request.is_replay = True
            request.num_deaths += 1
            if len(sent) == 1 and request.num_deaths >= self._max_deaths:
                error = (
                    f"the engine died {request.num_deaths} times while it worked on this request, "
                    f"the last time on this request alone ({cause})"
                )
                ended.append(self._end(request, error))
        self._suspects = [request_id for request_id, r in self._requests.items() if r.num_deaths >= self._suspect_after]
        return ended

    def fail_all(self, cause: str) -> list[Callable[[], None]]:
        """There will be no engine any more: the calls that end every request with an error."""
        return [self._end(request, cause) for request in list(self._requests.values())]

    def _end(self, request: InFlightRequest, error: str) -> Callable[[], None]:
        self._requests.pop(request.value.request_id, None)
        self._trim_suspects()
        output = EngineCoreOutput(
            request_id=request.value.request_id,
            num_cached_tokens=request.num_cached_tokens or 0,
            finish_reason=FinishReason.ERROR,
            error=error,
        )
        return partial(request.sink, output)

    def _trim_suspects(self) -> None:
        if self._suspects:
            self._suspects = [
                request_id
                for request_id in self._suspects
                if (r := self._requests.get(request_id)) is not None and r.num_deaths >= self._suspect_after
            ]
