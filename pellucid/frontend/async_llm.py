"""AsyncLLM: the front door to an engine for asyncio programs and for the server. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pellucid.config import EngineConfig
from pellucid.core.messages import EngineReady, SchedulerStats
from pellucid.engine.client import EngineClient, EngineState
from pellucid.frontend.outputs import RequestOutput
from pellucid.observability.events import Event
from pellucid.sampling.params import SamplingParams

if TYPE_CHECKING:
    from pellucid.frontend.tokenizer import Tokenizer

EventListener = Callable[[Sequence[Event], SchedulerStats], None]


class RequestStream:
    """The deltas of one request: `async for output in stream`. Left, closed or cancelled, it aborts the request at once.

    Each RequestOutput holds what is new since the last one, for the children that have something new; the last one has
    `finished=True`. A reader that is slow gets fewer, larger deltas; nothing queues up behind it.
    Raises RequestError (or its subclasses RequestTimeoutError, EngineUnavailableError) where the request failed.
    """

    request_id: str
    prompt_token_ids: list[int]
    seeds: list[int]  # one per child, known from the start

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> RequestOutput:
        raise NotImplementedError

    async def final(self) -> RequestOutput:
        """Everything (that has not been read yet) as one finished RequestOutput."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Abort whatever is not finished. More than once is no error."""
        raise NotImplementedError


class AsyncLLM:
    """Requests in, streams out, over an EngineClient that lives in another process or on another thread.

    client: owned from here on; `start` starts it, `shutdown` stops it.
    max_queue: how many requests may wait for their first step; one more is refused. None: no bound.
    request_timeout_s: how long a request may take from arrival to its end, where the caller gives none.
    """

    def __init__(
        self,
        client: EngineClient,
        tokenizer: Tokenizer,
        *,
        max_queue: int | None = 256,
        request_timeout_s: float | None = None,
        default_seed: int | None = None,
    ) -> None:
        self.client = client
        self.tokenizer = tokenizer
        self.event_listeners: list[EventListener] = []  # called with every step's events, before its outputs

    @classmethod
    async def from_config(cls, config: EngineConfig, *, in_process: bool = False, **options: Any) -> AsyncLLM:
        """Load the model's tokenizer, start its engine (a process of its own, or a thread of this one), wait for it."""
        raise NotImplementedError

    async def start(self) -> None:
        """Begin loading the engine; returns at once."""
        raise NotImplementedError

    async def wait_ready(self) -> EngineReady:
        """Raises RuntimeError with the root cause where the engine cannot start."""
        raise NotImplementedError

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
        """Child requests that are not in the running batch as of the last step."""
        raise NotImplementedError

    @property
    def num_unfinished(self) -> int:
        raise NotImplementedError

    def check_admission(self) -> None:
        """Raises QueueFullError or EngineUnavailableError where a request would be refused now: cheap, for before parsing."""
        raise NotImplementedError

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
    ) -> RequestStream:
        """Submit now, read later: every refusal is raised here, before the first output.

        A plain function, so that a server can refuse before it sends headers: `async for o in llm.generate(...)`.
        final_only: one RequestOutput, when all is done (cheaper where nobody watches).
        Raises QueueFullError, EngineUnavailableError, ContextLengthExceededError, ValueError (parameters, token ids).
        """
        raise NotImplementedError

    def chat(
        self, messages: Sequence[Mapping[str, Any]], params: SamplingParams, **options: Any
    ) -> RequestStream:
        """`generate` on the messages rendered with the model's chat template; options go to the template's own
        (add_generation_prompt, continue_final_message, tools, chat_template_kwargs) or to `generate`."""
        raise NotImplementedError

    def abort(self, request_id: str) -> None:
        """Stop a request from outside; its stream ends with FinishReason.ABORT."""
        raise NotImplementedError

    async def drain(self, timeout_s: float) -> bool:
        """Refuse what is new (EngineUnavailableError), wait for what runs. True when all finished in time."""
        raise NotImplementedError

    async def shutdown(self) -> None:
        """Abort what is left and stop the engine; leaves no process behind."""
        raise NotImplementedError
