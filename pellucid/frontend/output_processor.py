"""From the engine's outputs to what a caller reads: text, stop strings, deltas that merge while nobody reads them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from pellucid.core.messages import EngineCoreOutput, FinishReason, TokenLogprob
from pellucid.frontend.content_stops import ContentStops
from pellucid.frontend.detokenizer import IncrementalDetokenizer, TokenTable
from pellucid.frontend.outputs import CompletionOutput, RequestMetrics, RequestOutput
from pellucid.frontend.requests import ChildRequest, PreparedRequest
from pellucid.frontend.stop_strings import StopStrings
from pellucid.observability.events import Event, RequestPreempted, RequestScheduled
from pellucid.sampling.params import SamplingParams
from pellucid.sampling.reasoning import ReasoningTracker


class CompletionProcessor:
    """One continuation: its tokens in, its text out.

    A token is released together with its text: one whose text is held back (it may begin a stop string, or is a part of
    a code point) waits. At the end every token is released, also those whose text a stop string has cut off, since
    they were generated and are counted.
    """

    def __init__(self, child: ChildRequest, prompt_token_ids: Sequence[int], table: TokenTable) -> None:
        params = child.value.sampling_params
        self.child = child
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.error: str | None = None
        self.num_tokens = 0
        self.num_unread_tokens = 0
        self._seed = child.seed
        self._min_tokens = params.min_tokens
        self._includes_stop = params.include_stop_str_in_output
        self._has_logprobs = params.logprobs is not None
        self._detokenizer = (
            IncrementalDetokenizer(table, prompt_token_ids, params.skip_special_tokens, params.shown_special_token_ids)
            if params.detokenize
            else None
        )
        self._stop = _stops_of(params, table) if self._detokenizer else None
        self._text_length = 0  # characters detokenized
        self._released_length = 0  # of them, those that have left the stop strings' hands
        self._held: deque[tuple[int, TokenLogprob | None, int]] = deque()  # token, logprob, released_length it needs
        # released and not yet read:
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._finish_is_unread = False

    @property
    def has_news(self) -> bool:
        return bool(self._token_ids or self._text or self._finish_is_unread)

    def process(self, output: EngineCoreOutput) -> bool:
        """Take an output in. Returns whether a stop string ended the text while the engine goes on."""
        if self.finish_reason is not None:
            return False
        reason = output.finish_reason
        for index, token_id in enumerate(output.new_token_ids):
            is_last = index == len(output.new_token_ids) - 1
            # the token that ended the request (EOS, a stop token) is no part of its text
            has_text = self._includes_stop or not (is_last and reason is FinishReason.STOP)
            logprob = output.logprobs[index] if output.logprobs else None
            if self._push(token_id, logprob, has_text):
                self._finish(FinishReason.STOP, self._stop_string)
                return reason is None
        if reason is not None:
            stopped = self._detokenizer is not None and self._release(self._detokenizer.flush())
            if stopped:
                self._finish(FinishReason.STOP, self._stop_string)
            else:
                self._finish(reason, output.stop_reason, output.error)
        return False

    def fail(self, reason: FinishReason, error: str | None = None) -> None:
        """End it from outside, with the text that was certain."""
        if self.finish_reason is None:
            self._finish(reason, None, error)

    def take(self) -> CompletionOutput:
        """What is new since the last call."""
        completion = CompletionOutput(
            index=self.child.index,
            text="".join(self._text),
            token_ids=self._token_ids,
            logprobs=self._logprobs if self._has_logprobs else None,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            error=self.error,
            seed=self._seed,
        )
        self._text, self._token_ids, self._logprobs = [], [], []
        self._finish_is_unread = False
        self.num_unread_tokens = 0
        return completion

    @property
    def _stop_string(self) -> str | None:
        return self._stop.stopped_by if self._stop is not None else None

    def _push(self, token_id: int, logprob: TokenLogprob | None, has_text: bool) -> bool:
        """Returns whether this token's text completes a stop string."""
        self.num_tokens += 1
        self.num_unread_tokens += 1 if logprob is None else len(logprob.token_ids)
        detokenizer = self._detokenizer
        if detokenizer is None:
            self._release_token(token_id, logprob)
            return False
        if isinstance(self._stop, ContentStops):
            self._stop.saw(token_id)
        text = detokenizer.push(token_id) if has_text else ""
        is_partial = detokenizer.has_pending_bytes
        if self._stop is None and not is_partial and not self._held:  # the usual case: nothing has to wait
            if text:
                self._text.append(text)
                self._text_length += len(text)
                self._released_length += len(text)
            self._release_token(token_id, logprob)
            return False
        needs = self._text_length + len(text) + (1 if is_partial else 0)
        self._held.append((token_id, logprob, needs))
        return self._release(text)

    def _release(self, text: str) -> bool:
        """Pass text through the stop strings, and let go of the tokens it completes."""
        self._text_length += len(text)
        if self._stop is not None:
            text = self._stop.feed(text, armed=self.num_tokens > self._min_tokens)
        if text:
            self._text.append(text)
            self._released_length += len(text)
        while self._held and self._held[0][2] <= self._released_length:
            token_id, logprob, _ = self._held.popleft()
            self._release_token(token_id, logprob)
        return self._stop_string is not None

    def _release_token(self, token_id: int, logprob: TokenLogprob | None) -> None:
        self._token_ids.append(token_id)
        if logprob is not None:
            self._logprobs.append(logprob)

    def _finish(self, reason: FinishReason, stop_reason: int | str | None, error: str | None = None) -> None:
        if self._stop is not None and (held := self._stop.flush()):
            self._text.append(held)
        while self._held:
            token_id, logprob, _ = self._held.popleft()
            self._release_token(token_id, logprob)
        self.finish_reason, self.stop_reason, self.error = reason, stop_reason, error
        self._finish_is_unread = True


def _stops_of(params: SamplingParams, table: TokenTable) -> StopStrings | ContentStops | None:
    if not params.stop:
        return None
    stops = StopStrings(params.stop, params.include_stop_str_in_output)
    if params.reasoning is None:
        return stops
    return ContentStops(stops, ReasoningTracker(params.reasoning, table.token_bytes))


class RequestProcessor:
    """One caller's request: its n continuations, and what is known of it as a whole."""

    def __init__(self, prepared: PreparedRequest, table: TokenTable) -> None:
        self.prepared = prepared
        self.metrics = RequestMetrics(arrival_time=prepared.arrival_time)
        self.num_cached_tokens = 0
        self.is_finished = False
        self._completions = {
            child.value.request_id: CompletionProcessor(child, prepared.prompt_token_ids, table)
            for child in prepared.children
        }
        self._prompt_logprobs: list[TokenLogprob | None] | None = None
        self._pooled: bytes | None = None
        self._first_child_id = prepared.children[0].value.request_id

    @property
    def num_unread_tokens(self) -> int:
        """A measure of what waits for the reader; every alternative of a logprob counts."""
        return sum(completion.num_unread_tokens for completion in self._completions.values())

    @property
    def num_output_tokens(self) -> int:
        return sum(completion.num_tokens for completion in self._completions.values())

    @property
    def error(self) -> str | None:
        """Of the first continuation that has one."""
        return next((c.error for c in self._completions.values() if c.finish_reason is FinishReason.ERROR), None)

    def unfinished_ids(self) -> list[str]:
        """The child requests that the engine has to be told to abort, where this request is to end now."""
        return [child_id for child_id, c in self._completions.items() if c.finish_reason is None]

    def process(self, output: EngineCoreOutput) -> bool:
        """Take an output of one of the children in. Returns whether the engine must be told to abort that child."""
        now = time.time()
        if output.new_token_ids:
            self.metrics.first_token_time = self.metrics.first_token_time or now
            self.metrics.last_token_time = now
        if output.request_id == self._first_child_id:
            # the other children find the whole prompt in the cache, since this one has just put it there
            self.num_cached_tokens = output.num_cached_tokens
            self._pooled = output.pooled
            if output.prompt_logprobs is not None:
                self._prompt_logprobs = [None, *output.prompt_logprobs]
        completion = self._completions[output.request_id]
        must_abort = completion.process(output)
        if completion.finish_reason is not None:
            self.is_finished = not self.unfinished_ids()
            if self.is_finished:
                self.metrics.finished_time = now
        return must_abort

    def on_event(self, event: Event) -> None:
        if isinstance(event, RequestScheduled):
            self.metrics.first_scheduled_time = self.metrics.first_scheduled_time or event.time
        elif isinstance(event, RequestPreempted):
            self.metrics.num_preemptions += 1

    def fail(self, reason: FinishReason, error: str | None = None) -> None:
        for completion in self._completions.values():
            completion.fail(reason, error)
        self.is_finished = True
        self.metrics.finished_time = self.metrics.finished_time or time.time()

    def take(self) -> RequestOutput:
        """What is new since the last call, of the continuations that have something new; `outputs` is empty where none
        has.
        """
        outputs = [completion.take() for completion in self._completions.values() if completion.has_news]
        prompt_logprobs = self._prompt_logprobs
        if outputs:
            self._prompt_logprobs = None
        return RequestOutput(
            request_id=self.prepared.request_id,
            prompt=self.prepared.prompt,
            prompt_token_ids=self.prepared.prompt_token_ids,
            outputs=outputs,
            finished=self.is_finished,
            prompt_logprobs=prompt_logprobs,
            pooled=self._pooled,
            num_cached_tokens=self.num_cached_tokens,
            metrics=self.metrics,
        )
