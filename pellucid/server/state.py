"""What the routes share. There is one of it per app, made in `run.serve` (or by a test), and nothing is global."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from pellucid import __version__
from pellucid.core.messages import EngineReady
from pellucid.engine.client import EngineState
from pellucid.frontend.async_llm import AsyncLLM
from pellucid.frontend.parsing.formats import AnswerFormats, find_formats
from pellucid.frontend.yes_no_reranker import YesNoReranker
from pellucid.observability.metrics import Metrics, cache_config_labels
from pellucid.server.errors import model_not_found, unavailable
from pellucid.server.logprobs import TokenTexts
from pellucid.server.observers import Observers
from pellucid.server.options import ServerOptions

Hook = Callable[[], Awaitable[None]]


@dataclass
class ServerState:
    """llm: None until the model's files are here and its tokenizer is loaded; `progress` tells how far that is.

    model_name: the name the API shows. aliases: other names it answers to, such as the one typed on the command line.
    formats: how the model writes calls and reasoning.
    """

    options: ServerOptions
    model_name: str
    metrics: Metrics
    observers: Observers
    aliases: frozenset[str] = frozenset()
    llm: AsyncLLM | None = None
    progress: str = "starting"
    draining: bool = False
    unknown_fields: set[str] = field(default_factory=set)  # of the open dialects; each is logged once
    told_of_tools: bool = False  # that the model was not taught any, with the first request that has some
    num_engine_streams: int = 0  # pages that watch the engine now
    created: int = field(default_factory=lambda: int(time.time()))
    on_start: list[Hook] = field(default_factory=list)  # once the port is taken; beside the loading of the model
    on_end: list[Hook] = field(default_factory=list)  # once the engine has ended what ran
    formats: AnswerFormats = field(default_factory=AnswerFormats)
    reranker: YesNoReranker | None = None  # what /score and /rerank ask; None: they compare vectors
    _texts: TokenTexts | None = None

    def attach(self, llm: AsyncLLM) -> None:
        """From here on requests can be taken (as soon as the engine is ready). Raises ValueError where an option does
        not fit the model.
        """
        if template := self.options.reranker_template:
            self.reranker = YesNoReranker.load(template, llm.tokenizer)
        self.llm = llm
        self.metrics.count_waiting = lambda: llm.num_waiting
        llm.watchers.listeners.append(self.observers.on_events)
        self._texts = TokenTexts(llm.tokenizer.token_bytes)
        options = self.options
        self.formats = find_formats(llm.tokenizer, options.tool_call_parser, options.reasoning_parser)

    def engine(self) -> AsyncLLM:
        """Raises ApiError (503) where there is none to ask yet."""
        if self.draining:
            raise unavailable("The server is shutting down.", code="shutting_down")
        if self.llm is None or self.llm.ready is None:
            raise unavailable(f"The model is loading: {self.loading_progress}.", code="model_loading", retry_after_s=2)
        return self.llm

    @property
    def ready(self) -> EngineReady:
        ready = self.engine().ready
        assert ready is not None  # `engine` has seen to it
        self.metrics.cache_config = self.metrics.cache_config or cache_config_labels(ready)
        return ready

    @property
    def texts(self) -> TokenTexts:
        self.engine()
        assert self._texts is not None
        return self._texts

    @property
    def loading_progress(self) -> str:
        return self.progress if self.llm is None else self.llm.client.progress or self.progress

    def health(self) -> tuple[int, dict[str, str]]:
        """HTTP status and body of /health."""
        if self.draining:
            return 503, {"status": "stopping"}
        if self.llm is None:
            return 503, {"status": EngineState.LOADING.value, "progress": self.progress}
        if self.llm.state is EngineState.READY:
            return 200, {"status": "ok"}
        return 503, {"status": self.llm.state.value, "progress": self.llm.client.progress}

    def check_model(self, name: str | None) -> None:
        """Raises ApiError (404) for a model that is not served here."""
        if name is not None and name != self.model_name and name not in self.aliases:
            raise model_not_found(name, self.model_name)

    @property
    def fingerprint(self) -> str:
        """Changes with whatever could change the text of a seeded request: OpenAI's system_fingerprint."""
        ready = self.ready
        names = ("model", "quantization", "int4_rounding", "kv_cache_dtype", "logits_processors")
        details = (ready.details.get(name) for name in names)
        defaults = sorted(self.engine().default_sampling.items())
        parts = (__version__, self.model_name, ready.device, ready.dtype, ready.kernels, *details, *defaults)
        return f"fp_{hashlib.blake2b(repr(parts).encode(), digest_size=5).hexdigest()}"
