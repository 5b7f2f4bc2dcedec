"""What crosses between a front end and an engine: closed msgspec structs, so that nothing but data can cross.

The same structs serve the in-process engine and the engine process; only the transport differs.
"""

from __future__ import annotations

import enum
from typing import Literal

import msgspec

from pellucid.observability.events import Event
from pellucid.sampling.params import SamplingParams


class FinishReason(str, enum.Enum):
    """Why a request ended, in the words OpenAI's clients know, plus ABORT and ERROR of our own."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


Pooling = Literal["last", "mean"]


class EngineCoreRequest(msgspec.Struct, frozen=True, kw_only=True, tag="add"):
    """A request as a value: with `output_token_ids` filled it is a request being replayed, and continues bit for bit.

    prompt_token_ids: at least one token. sampling_params.seed and .max_tokens are never None here.
    arrival_time: seconds of time.time(), for FCFS order and metrics. deadline: same clock, None for no limit.
    pooling: no token is wanted but a vector: of the hidden states of the prompt, after the final norm, the last one or
    the mean. The sampling parameters have no meaning then.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    eos_token_ids: tuple[int, ...] = ()
    output_token_ids: list[int] = msgspec.field(default_factory=list)
    arrival_time: float = 0.0
    deadline: float | None = None
    priority: int = 0  # lower runs first
    cache_salt: str | None = None
    pooling: Pooling | None = None


class AbortRequests(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    request_ids: list[str]


class Shutdown(msgspec.Struct, frozen=True, kw_only=True, tag="shutdown"):
    """Finish nothing more; leave the step loop after the current step."""


class Watch(msgspec.Struct, frozen=True, kw_only=True, tag="watch"):
    """detail: from now on send every event, beginning with a snapshot; not detail: only those of ALWAYS_PUBLISHED."""

    detail: bool


class ControlAction(str, enum.Enum):
    PAUSE = "pause"  # schedule nothing; requests still arrive and leave
    STEP = "step"  # one step, then paused again
    RESUME = "resume"


class Control(msgspec.Struct, frozen=True, kw_only=True, tag="control"):
    """An operator's hand on the scheduler."""

    action: ControlAction


EngineInput = EngineCoreRequest | AbortRequests | Watch | Control | Shutdown


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities (natural log, of the unmodified distribution, -inf clamped to -9999.0) at one position.

    token_ids[0] is the token that stands there and ranks[0] its rank (1 = most likely);
    the others are the most likely alternatives, best first, and then those that were asked for by id.
    """

    token_ids: list[int]
    logprobs: list[float]
    ranks: list[int]


class EngineCoreOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one step added to one request."""

    request_id: str
    new_token_ids: list[int] = msgspec.field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None  # one per new token, when asked for
    prompt_logprobs: list[TokenLogprob] | None = None  # for prompt positions 1..n-1, once, with the first token
    pooled: bytes | None = None  # the vector of a request with pooling, float32 little-endian, with its end
    num_cached_tokens: int = 0  # prompt tokens served from the prefix cache
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None  # the stop token or the stop string
    error: str | None = None  # with FinishReason.ERROR: what went wrong, in the words the user will read


class SchedulerStats(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the scheduler after a step."""

    step: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0  # free or cached-but-evictable
    num_cached_blocks: int = 0  # evictable blocks that hold a cached prefix
    num_scheduled_tokens: int = 0
    num_preemptions: int = 0  # since start
    num_forced_tokens: int = (
        0  # that a constraint left no choice about, and that cost no step of their own; since start
    )
    prefix_cache_queries: int = 0  # tokens asked for, since start
    prefix_cache_hits: int = 0  # tokens found, since start


class EngineCoreOutputs(msgspec.Struct, frozen=True, kw_only=True, tag="outputs"):
    """Everything one step has to say: one message."""

    outputs: list[EngineCoreOutput] = msgspec.field(default_factory=list)
    stats: SchedulerStats = SchedulerStats()
    events: list[Event] = msgspec.field(default_factory=list)


class EngineReady(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """Sent once by an engine process that can take requests."""

    max_model_len: int
    num_blocks: int
    block_size: int
    vocab_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    device: str
    dtype: str
    kernels: str
    hidden_size: int = 0  # elements of a pooled vector; 0: this engine makes none
    structured_outputs: bool = False  # whether it can constrain output, and end reasoning at a budget
    details: dict[str, str] = msgspec.field(default_factory=dict)  # other facts worth a line at start


class EngineLoading(msgspec.Struct, frozen=True, kw_only=True, tag="loading"):
    """Progress of start-up, for /health and the terminal."""

    stage: str
    fraction: float  # 0..1 of this stage


class EngineFailed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The engine could not start; `error` is the root cause in one line."""

    error: str


class EngineHeartbeat(msgspec.Struct, frozen=True, kw_only=True, tag="heartbeat"):
    """Sent five times a second by the engine's I/O thread: alive, and how long the current step has run."""

    step: int
    step_running_s: float  # 0.0 when idle


EngineMessage = EngineCoreOutputs | EngineReady | EngineLoading | EngineFailed | EngineHeartbeat
