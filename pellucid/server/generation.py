"""The path that every dialect shares: prompts go to the engine, and what comes back is read, accounted for, let go.

A dialect turns its request into token ids and SamplingParams, calls `submit`, and turns the outputs into its own shape.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pellucid.core.messages import FinishReason, Pooling
from pellucid.frontend.async_llm import AsyncLLM, RequestStream
from pellucid.frontend.outputs import (
    ContextLengthExceededError,
    QueueFullError,
    RequestError,
    RequestMetrics,
    RequestOutput,
)
from pellucid.observability.events import RequestRefused, RequestSubmitted
from pellucid.observability.metrics import Metrics
from pellucid.observability.otel import RequestSpan
from pellucid.sampling.params import SamplingParams
from pellucid.sampling.validate import InvalidParameterError
from pellucid.server.errors import ApiError, context_length_exceeded, from_request_error, invalid, unavailable
from pellucid.server.middleware.context import RequestRecord

MAX_SEQUENCES = 2048  # of one request: as many as it may have prompts


@dataclass(frozen=True)
class Submission:
    """What the engine is asked, in the engine's terms. param: the field of the dialect that holds the prompt."""

    prompts: Sequence[list[int]]
    params: SamplingParams
    param: str
    priority: int = 0
    cache_salt: str | None = None
    pooling: Pooling | None = None

    @property
    def operation(self) -> str:
        """As the semantic conventions for generative AI call it."""
        if self.pooling is not None:
            return "embeddings"
        return "text_completion" if self.param == "prompt" else "chat"


def submit(
    llm: AsyncLLM, submission: Submission, *, request_id: str, metrics: Metrics, record: RequestRecord, final_only: bool
) -> Generation:
    """Raises ApiError for every refusal, having let go of what was taken."""
    _check_num_choices(submission)
    streams: list[RequestStream] = []
    try:
        llm.check_admission()  # once: the bound of the queue is not one on the prompts of a request
        for i, prompt in enumerate(submission.prompts):
            _check_fits(llm, prompt)
            stream = llm.generate(
                prompt,
                submission.params,
                request_id=request_id if len(submission.prompts) == 1 else f"{request_id}-{i}",
                priority=submission.priority,
                cache_salt=submission.cache_salt,
                final_only=final_only,
                pooling=submission.pooling,
                is_admitted=True,
            )
            streams.append(stream)
    except Exception as error:
        for stream in streams:
            llm.abort(stream.request_id)
        refusal = _refused(error, submission.param, llm, metrics, record)
        if record.send_span is not None and isinstance(refusal, ApiError):
            now, kind = time.time(), refusal.code or refusal.type
            record.send_span(
                RequestSpan(submission.operation, request_id, now, now, error_type=kind, error=refusal.message)
            )
        raise refusal from error
    llm.publish(
        RequestSubmitted(
            request_id=request_id,
            time=time.time(),
            http_request_id=record.request_id,
            engine_request_ids=[engine_id for stream in streams for engine_id in stream.engine_request_ids],
        )
    )
    return Generation(request_id, streams, submission, metrics, record)


def check_admission(llm: AsyncLLM, metrics: Metrics, record: RequestRecord) -> None:
    """Raises ApiError where a request would be refused now; for before its body is read."""
    try:
        llm.check_admission()
    except RequestError as error:
        raise _refused(error, "", llm, metrics, record) from error


def _check_num_choices(submission: Submission) -> None:
    """Prompts and n have bounds each; their product would be more than the server could even queue in a minute."""
    num_prompts, n = len(submission.prompts), submission.params.n
    if num_prompts * n > MAX_SEQUENCES:
        raise invalid(
            f"Invalid 'n': integer above maximum value. Expected a value <= {MAX_SEQUENCES // num_prompts} with "
            f"{num_prompts} prompts, but got {n} instead.",
            code="integer_above_max_value",
            param="n",
        )


def _check_fits(llm: AsyncLLM, prompt: list[int]) -> None:
    """Raises ContextLengthExceededError for a prompt within the model's context that the KV pool can't ever hold."""
    if (ready := llm.ready) is not None:
        capacity = ready.num_blocks * ready.block_size
        if capacity < len(prompt) < ready.max_model_len:
            raise ContextLengthExceededError(len(prompt), capacity)


def _refused(error: Exception, param: str, llm: AsyncLLM, metrics: Metrics, record: RequestRecord) -> Exception:
    """Tell those who read along, and return what the client gets."""
    if isinstance(error, RequestError | ValueError):
        reason = str(error)
        llm.publish(RequestRefused(request_id=record.request_id, time=time.time(), reason=reason, by="front door"))
    return _refusal(error, param, metrics)


def _refusal(error: Exception, param: str, metrics: Metrics) -> Exception:
    if isinstance(error, ContextLengthExceededError):
        metrics.on_rejected("context_length")
        return context_length_exceeded(error.max_model_len, error.num_prompt_tokens, param=param)
    if isinstance(error, RequestError):
        metrics.on_rejected("queue_full" if isinstance(error, QueueFullError) else "unavailable")
        return from_request_error(error)
    if isinstance(error, InvalidParameterError):
        return invalid(error.message, code=error.code, param=error.param)
    if isinstance(error, ValueError):  # token ids beyond the vocabulary, a life that never fits the pool
        return invalid(str(error), param=param)
    return error


class _Progress:
    """How far one prompt's choices have come."""

    def __init__(self, num_choices: int) -> None:
        self.num_tokens = 0
        self.last_time: list[float | None] = [None] * num_choices
        self.reasons: dict[int, str] = {}
        self.num_cached_tokens = 0
        self.finished = False


class Generation:
    """The outputs of one HTTP request: `async for prompt_index, output in generation`, or `finals()`.

    Raises ApiError where the engine failed. Whoever holds it calls `aclose` at the end, whatever the end was: that
    aborts what still runs and completes the account.
    """

    def __init__(
        self,
        request_id: str,
        streams: list[RequestStream],
        submission: Submission,
        metrics: Metrics,
        record: RequestRecord,
    ) -> None:
        params = submission.params
        self.request_id = request_id
        self.streams = streams
        self.num_choices = params.n
        self._submission = submission
        self._started_at = time.time()
        self._times: list[RequestMetrics] = []  # of the prompts that came to their end
        self._is_closed = False
        self._metrics = metrics
        self._record = record
        self._progress = [_Progress(params.n) for _ in streams]
        self._merged: _Merged | None = None
        self._failed = False
        for stream in streams:
            metrics.on_submitted(len(stream.prompt_token_ids), params.n, params.max_tokens)
            record.num_prompt_tokens += len(stream.prompt_token_ids)

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> tuple[int, RequestOutput]:
        try:
            if len(self.streams) == 1:
                index, output = 0, await self.streams[0].__anext__()
            else:
                if self._merged is None:
                    self._merged = _Merged(self.streams)
                index, output = await self._merged.next()
        except RequestError as error:
            self._failed = True
            raise from_request_error(error) from error
        self._account(index, output)
        return index, output

    def listen(self, listener: Callable[[], bool]) -> None:
        """See RequestStream.listen. Several prompts have no listener: their outputs come through a queue, in order."""
        if len(self.streams) == 1:
            self.streams[0].listen(listener)

    def take(self) -> tuple[int, RequestOutput] | None:
        """For a listener: what is new."""
        output = self.streams[0].take()
        if output is None:
            return None
        self._account(0, output)
        return 0, output

    async def finals(self) -> list[RequestOutput]:
        """Everything, one finished output per prompt."""
        try:
            outputs = await asyncio.gather(*(stream.final() for stream in self.streams))
        except RequestError as error:
            self._failed = True
            raise from_request_error(error) from error
        for index, output in enumerate(outputs):
            self._account(index, output)
        return outputs

    def usage(self) -> dict[str, Any]:
        """Tokens so far, in OpenAI's shape."""
        num_prompt_tokens = sum(len(stream.prompt_token_ids) for stream in self.streams)
        num_output_tokens = sum(progress.num_tokens for progress in self._progress)
        return {
            "prompt_tokens": num_prompt_tokens,
            "completion_tokens": num_output_tokens,
            "total_tokens": num_prompt_tokens + num_output_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(progress.num_cached_tokens for progress in self._progress)},
        }

    async def aclose(self) -> None:
        if self._merged is not None:
            self._merged.cancel()
        for stream in self.streams:
            await stream.aclose()
        reason = "error" if self._failed else "abort"
        for progress in self._progress:
            if not progress.finished:
                progress.finished = True
                for choice in range(self.num_choices):
                    self._finish_choice(progress, choice, reason)
        if not self._is_closed:
            self._is_closed = True
            for stream in self.streams:  # also what nobody has read: it was computed
                self._record.num_output_tokens += stream.num_output_tokens
                self._record.num_cached_tokens += stream.num_cached_tokens
            self._send_span()

    def _send_span(self) -> None:
        if self._record.send_span is None:
            return
        reasons = [reason for progress in self._progress for reason in progress.reasons.values()]
        bad = next((reason for reason in reasons if reason in ("error", "abort")), "")
        self._record.send_span(
            RequestSpan(
                operation=self._submission.operation,
                request_id=self.request_id,
                start=min([self._started_at, *(times.arrival_time for times in self._times)]),
                end=time.time(),
                params=self._submission.params,
                num_input_tokens=sum(len(stream.prompt_token_ids) for stream in self.streams),
                num_output_tokens=sum(progress.num_tokens for progress in self._progress),
                num_cached_tokens=sum(progress.num_cached_tokens for progress in self._progress),
                finish_reasons=reasons,
                error_type=bad,
                error={"error": "the engine failed it", "abort": "the client left"}.get(bad, ""),
                times=self._times,
            )
        )

    def _account(self, index: int, output: RequestOutput) -> None:
        progress = self._progress[index]
        progress.num_cached_tokens = output.num_cached_tokens
        now = time.monotonic()
        for choice in output.outputs:
            num_tokens = len(choice.token_ids)
            if num_tokens:
                last = progress.last_time[choice.index]
                self._metrics.on_tokens(num_tokens, None if last is None else now - last)
                progress.last_time[choice.index] = now
                progress.num_tokens += num_tokens
            if choice.finish_reason is FinishReason.ABORT:
                self._failed = True
                raise unavailable("The server stopped this request before it was finished.")
            if choice.finish_reason is not None:
                self._finish_choice(progress, choice.index, choice.finish_reason.value)
        if output.finished:
            progress.finished = True
            self._times.append(output.metrics)
            self._metrics.on_finished(self.num_choices, progress.num_tokens, output.num_cached_tokens, output.metrics)

    def _finish_choice(self, progress: _Progress, choice: int, reason: str) -> None:
        if choice not in progress.reasons:
            progress.reasons[choice] = reason
            self._metrics.on_choice_finished(reason)
            self._record.finish_reasons.append(reason)


class _Merged:
    """Several streams as one, in the order in which their outputs come."""

    def __init__(self, streams: Sequence[RequestStream]) -> None:
        self._queue: asyncio.Queue[tuple[int, RequestOutput | BaseException | None]] = asyncio.Queue(len(streams))
        self._num_open = len(streams)
        self._tasks = [asyncio.create_task(self._pump(i, stream)) for i, stream in enumerate(streams)]

    async def next(self) -> tuple[int, RequestOutput]:
        while self._num_open:
            index, item = await self._queue.get()
            if item is None:
                self._num_open -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                return index, item
        raise StopAsyncIteration

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _pump(self, index: int, stream: RequestStream) -> None:
        try:
            async for output in stream:
                await self._queue.put((index, output))
            await self._queue.put((index, None))
        except Exception as error:
            await self._queue.put((index, error))
