"""AsyncLLM: the front door to an engine for asyncio programs and for the server. Torch-free."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from pellucid.config import EngineConfig
from pellucid.core.messages import EngineReady, Pooling, SchedulerStats
from pellucid.engine.client import EngineClient, EngineState
from pellucid.engine.inprocess_client import InProcessEngineClient
from pellucid.engine.subprocess_client import SubprocessEngineClient
from pellucid.frontend.departures import Departures
from pellucid.frontend.fill_in_the_middle import FillInTheMiddle, fill_in_the_middle_of
from pellucid.frontend.grammar_checks import GrammarChecks
from pellucid.frontend.grammar_messages import Vocabulary
from pellucid.frontend.model_text import load_model_text
from pellucid.frontend.output_processor import RequestProcessor
from pellucid.frontend.outputs import EngineUnavailableError, QueueFullError
from pellucid.frontend.request_stream import ActiveRequest, RequestStream
from pellucid.frontend.requests import PreparedRequest, RequestPreparer
from pellucid.frontend.rounds import Rounds
from pellucid.frontend.tokenizer import Tokenizer
from pellucid.frontend.watchers import Watchers
from pellucid.loader.resolve import resolve_model
from pellucid.observability.events import Event
from pellucid.sampling.params import SamplingParams, StructuredOutputsParams
from pellucid.structured.grammar import COMPILE_TIMEOUT_S
from pellucid.structured.vocabulary import tokens_of

MAX_UNREAD_TOKENS = 1 << 16


class AsyncLLM:
    """Requests in, streams out, over an EngineClient that lives in another process or on another thread.

    client: owned from here on; `start` starts it, `shutdown` stops it.
    eos_token_ids: what ends an answer; None: the tokenizer's own.
    max_queue: how many requests may wait for their first step; one more is refused. None: no bound.
    request_timeout_s: how long a request may take from arrival to its end, where the caller gives none.
    default_seed: of requests that bring none; None: each gets its own, drawn.
    default_sampling: what whoever makes SamplingParams of a client's request begins with, by their names.
    max_unread_tokens: a stream with more than that unread is aborted with an error; None: no bound.
    constraint_timeout_s: how long `check_constraint` lets one be compiled; the engine's own bound stands besides.
    """

    def __init__(
        self,
        client: EngineClient,
        tokenizer: Tokenizer,
        *,
        eos_token_ids: Sequence[int] | None = None,
        max_queue: int | None = 256,
        request_timeout_s: float | None = None,
        default_seed: int | None = None,
        default_sampling: Mapping[str, float] | None = None,
        max_unread_tokens: int | None = MAX_UNREAD_TOKENS,
        constraint_timeout_s: float = COMPILE_TIMEOUT_S,
    ) -> None:
        self.client = client
        self.tokenizer = tokenizer
        self.watchers = Watchers(client)
        self.default_sampling: Mapping[str, float] = default_sampling or {}
        if eos_token_ids is None:
            eos_token_ids = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
        self._eos_token_ids = tuple(eos_token_ids)
        self._max_queue = max_queue
        self._request_timeout_s = request_timeout_s
        self._default_seed = default_seed
        self._max_unread_tokens = max_unread_tokens
        self._preparer: RequestPreparer | None = None
        self._grammar_checks = GrammarChecks(self._vocabulary, constraint_timeout_s)
        self._requests: dict[str, ActiveRequest] = {}
        self._children: dict[str, ActiveRequest] = {}  # by the engine's request ids
        self._rounds = Rounds()
        self._is_draining = False
        self._departures = Departures()
        self._idle = asyncio.Event()
        self._idle.set()
        client.on_events = self._on_events

    @classmethod
    async def from_config(cls, config: EngineConfig, *, in_process: bool = False, **options: Any) -> AsyncLLM:
        """Find the model's files, start its engine (a process of its own, or a thread of this one), wait until it is
        ready. options: those of AsyncLLM. Raises ModelError, OSError, or RuntimeError with the root cause.
        """
        files = await asyncio.to_thread(resolve_model, config.model, local_files_only=config.local_files_only)
        # everything is here now: the engine finds it without the network, and both sides read the same files
        local = msgspec.structs.replace(config, local_files_only=True)
        client: EngineClient = InProcessEngineClient(local) if in_process else SubprocessEngineClient(local)
        await client.start()
        try:
            text = await asyncio.to_thread(load_model_text, files)
            options = {"default_seed": config.seed, "default_sampling": text.default_sampling, **options}
            llm = cls(
                client,
                text.tokenizer,
                eos_token_ids=text.eos_token_ids,
                **options,
            )
            await llm.wait_ready()
        except BaseException:
            await client.shutdown()
            raise
        return llm

    async def start(self) -> None:
        """Begin loading the engine; returns at once."""
        await self.client.start()

    async def wait_ready(self) -> EngineReady:
        """Raises RuntimeError with the root cause where the engine cannot start."""
        return await self.client.wait_ready()

    @property
    def state(self) -> EngineState:
        return self.client.state

    @property
    def ready(self) -> EngineReady | None:
        return self.client.ready

    @property
    def stats(self) -> SchedulerStats:
        return self.client.stats

    @property
    def num_waiting(self) -> int:
        """Engine requests (a request with n counts n times) that are not in the running batch as of the last step."""
        return max(0, len(self._children) - self.client.stats.num_running)

    @property
    def num_unfinished(self) -> int:
        return len(self._requests)

    def check_admission(self) -> None:
        """Raises QueueFullError or EngineUnavailableError where a request would be refused now; cheap."""
        state = self.client.state
        if self._is_draining:
            raise EngineUnavailableError("the server is shutting down")
        if state in (EngineState.FAILED, EngineState.STOPPED):
            raise EngineUnavailableError(self.client.progress)
        if self.client.ready is None:
            raise EngineUnavailableError(f"the engine is loading ({self.client.progress})")
        if self._max_queue is not None and self.num_waiting >= self._max_queue:
            raise QueueFullError(
                f"{self.num_waiting} requests are waiting already, and max_queue={self._max_queue}",
                retry_after_s=self._departures.retry_after_s(self.num_waiting),
            )

    def generate(
        self,
        prompt: str | list[int],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        timeout_s: float | None = None,
        final_only: bool = False,
        pooling: Pooling | None = None,
        is_admitted: bool = False,
    ) -> RequestStream:
        """Submit now, read later: every refusal is raised here, before the first output.

        A plain function, so that a server can refuse before it sends headers: `async for o in llm.generate(...)`.
        request_id: made up where none is given. final_only: one RequestOutput, when all is done (cheaper where nobody
        watches). pooling: no text but RequestOutput.pooled. is_admitted: the caller has asked `check_admission`.
        Raises QueueFullError, EngineUnavailableError, ContextLengthExceededError, ValueError (parameters,
        token ids, an id in use).
        """
        if not is_admitted:
            self.check_admission()
        timeout_s = self._request_timeout_s if timeout_s is None else timeout_s
        prepared = self._prepare(request_id, prompt, params, priority, cache_salt, timeout_s, pooling)
        if taken := [c.value.request_id for c in prepared.children if c.value.request_id in self._children]:
            raise ValueError(f"request id {taken[0]!r} is in use")
        request = ActiveRequest(
            RequestProcessor(prepared, self.tokenizer),
            timeout_s=timeout_s,
            final_only=final_only,
            max_unread_tokens=self._max_unread_tokens,
            client=self.client,
            on_end=self._forget,
            rounds=self._rounds,
        )
        self._requests[prepared.request_id] = request
        self._idle.clear()
        for child in prepared.children:
            self._children[child.value.request_id] = request
            self.client.add(child.value, request.on_output)
        return RequestStream(request)

    @cached_property
    def fill_in_the_middle(self) -> FillInTheMiddle | None:
        """How this model is asked for a text between two others; None where it can't be."""
        return fill_in_the_middle_of(self.tokenizer)

    async def check_constraint(self, constraint: StructuredOutputsParams) -> None:
        """Compile it in a process of its own (`pellucid grammars`): `generate` takes any, and one that does not compile
        ends with RequestError, or takes the engine down with it.

        Raises ConstraintError; QueueFullError or EngineUnavailableError where it can't be tried now.
        """
        if self.client.ready is None:
            raise EngineUnavailableError(f"the engine is loading ({self.client.progress})")
        await self._grammar_checks.check(constraint)

    def _vocabulary(self) -> Vocabulary:
        assert self.client.ready is not None  # check_constraint
        return Vocabulary(
            tokens=tokens_of(self.tokenizer, self.client.ready.vocab_size),
            special_token_ids=sorted(self.tokenizer.special_token_ids),
            eos_token_ids=list(self._eos_token_ids),
        )

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        **options: Any,
    ) -> list[int]:
        """A conversation as token ids, by the model's chat template; options are those of ChatTemplate.render.

        Any thread may call it. Raises ChatTemplateError.
        """
        return self.tokenizer.encode_chat(messages, **options)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> RequestStream:
        """`generate` on the conversation as the model's template renders it; options are those of `generate`."""
        token_ids = self.render_chat(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            **(chat_template_kwargs or {}),
        )
        return self.generate(token_ids, params, **options)

    def publish(self, event: Event) -> None:
        """Tell those who read along something that happened on this side of the engine."""
        self.watchers.tell([event], self.client.stats)

    def abort(self, request_id: str) -> None:
        """Stop a request from outside; its stream ends with FinishReason.ABORT. One that is gone is no error."""
        request = self._requests.get(request_id)
        if request is not None:
            request.abort()

    async def drain(self, timeout_s: float) -> bool:
        """Refuse what is new (EngineUnavailableError), wait for what runs. True when all finished in time."""
        self._is_draining = True
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except asyncio.TimeoutError:
            return False
        return True

    async def shutdown(self) -> None:
        """Stop the engine; what still runs ends with EngineUnavailableError. Leaves no process behind."""
        self._is_draining = True
        for request in list(self._requests.values()):
            request.fail(EngineUnavailableError("the server was shut down before this request was finished"))
        await self._grammar_checks.shutdown()
        await self.client.shutdown()

    def _prepare(
        self,
        request_id: str | None,
        prompt: str | list[int],
        params: SamplingParams,
        priority: int,
        cache_salt: str | None,
        timeout_s: float | None,
        pooling: Pooling | None,
    ) -> PreparedRequest:
        if request_id is None:
            request_id = uuid.uuid4().hex
        if request_id in self._requests:
            raise ValueError(f"request id {request_id!r} is in use")
        if self._preparer is None:
            assert self.client.ready is not None  # check_admission
            self._preparer = RequestPreparer(self.tokenizer, self._eos_token_ids, self.client.ready, self._default_seed)
        return self._preparer.prepare(
            request_id,
            prompt,
            params,
            priority=priority,
            cache_salt=cache_salt,
            timeout_s=timeout_s,
            pooling=pooling,
        )

    def _forget(self, request: ActiveRequest) -> None:
        prepared = request.processor.prepared
        self._requests.pop(prepared.request_id, None)
        for child in prepared.children:
            self._children.pop(child.value.request_id, None)
        self._departures.add(len(prepared.children))
        if not self._requests:
            self._idle.set()

    def _on_events(self, events: Sequence[Event], stats: SchedulerStats) -> None:
        for event in events:
            request = self._children.get(getattr(event, "request_id", ""))
            if request is not None:
                request.processor.on_event(event)
        self.watchers.tell(events, stats)
