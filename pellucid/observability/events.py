"""Every decision the engine makes, as one typed event. Logs, metrics, traces and pages read these and nothing else.

`time` is seconds of time.time() when it happened. Which of them are always published, and which only when somebody
asked for them, is said in `pellucid.observability.bus`. The hash of a block is written as the first eight of its bytes,
in hexadecimal: enough to tell blocks apart. No event holds text or token ids of a prompt.
"""

from __future__ import annotations

import msgspec

# a request's life ---------------------------------------------------------------------------------------------------


class RequestSubmitted(msgspec.Struct, frozen=True, kw_only=True, tag="submitted"):
    """The front door handed a caller's request to the engine, as one request for each continuation.

    request_id: as in the caller's response. http_request_id: its x-request-id header.
    """

    request_id: str
    time: float
    http_request_id: str
    engine_request_ids: list[str]


class RequestArrived(msgspec.Struct, frozen=True, kw_only=True, tag="arrived"):
    """The engine took the request: it waits. num_output_tokens > 0: it is continued after an engine was lost.

    max_num_tokens: prompt and output together can become no longer. pools: it wants a vector, and generates nothing.
    """

    request_id: str
    time: float
    num_prompt_tokens: int
    num_output_tokens: int = 0
    max_num_tokens: int = 0
    pools: bool = False


class RequestRefused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """A request was not taken, by the engine or before it at the front door; the reason is what the caller reads.

    A request that is refused before it has an id of its own goes by its x-request-id. by: "engine" or "front door".
    """

    request_id: str
    time: float
    reason: str
    by: str = "engine"


class RequestHeldBack(msgspec.Struct, frozen=True, kw_only=True, tag="held_back"):
    """The request at the head of the queue could not join this step; told once, until the reason changes.

    limited_by: "max_num_seqs", "token_budget", "kv_blocks", or "preemption" (a step that preempts admits nobody).
    needed_blocks counts what it would take from the pool; num_reserved_blocks is what running requests keep for growth.
    """

    request_id: str
    time: float
    step: int
    limited_by: str
    needed_blocks: int = 0
    num_free_blocks: int = 0
    num_reserved_blocks: int = 0


class PrefixHit(msgspec.Struct, frozen=True, kw_only=True, tag="prefix_hit"):
    """What the prefix cache gave a request when it was admitted (perhaps nothing).

    ended_by: "miss" (the next block is not in the cache), "last_token" (all that can be used was found: the block that
    holds the last token is always computed), "prompt_logprobs" (the logits of these positions are still owed),
    "pooling" (the hidden states of all positions are wanted), or "disabled".
    """

    request_id: str
    time: float
    num_tokens: int
    num_cached_tokens: int
    ended_by: str


class RequestScheduled(msgspec.Struct, frozen=True, kw_only=True, tag="scheduled"):
    """A waiting request was admitted and became a running one (first time, or again after a preemption)."""

    request_id: str
    time: float
    num_cached_tokens: int


class RequestPreempted(msgspec.Struct, frozen=True, kw_only=True, tag="preempted"):
    """A running request gave its blocks back and waits again, at the head of the queue."""

    request_id: str
    time: float
    num_computed_tokens: int  # thrown away, to be recomputed
    for_request_id: str  # who needed the blocks; itself, when it was the newest one


class RequestFinished(msgspec.Struct, frozen=True, kw_only=True, tag="finished"):
    """reason: "stop", "length", "abort" (the caller left) or "error".

    num_forced_tokens: of the output, those that a constraint left no choice about and that cost no step of their own
    (in this engine, where an earlier one was lost).
    """

    request_id: str
    time: float
    reason: str
    num_output_tokens: int
    error: str | None = None
    num_forced_tokens: int = 0


# a step ------------------------------------------------------------------------------------------------------------


class TokensScheduled(msgspec.Struct, frozen=True, kw_only=True, tag="tokens_scheduled"):
    """Tokens [start, start + num_tokens) of each request of the batch are computed in this step; the lists are aligned.

    limited_by: "" when that reaches the request's end (a token is sampled or a vector made), else "token_budget".
    """

    step: int
    time: float
    request_ids: list[str]
    starts: list[int]
    num_tokens: list[int]
    limited_by: list[str]


class StepStarted(msgspec.Struct, frozen=True, kw_only=True, tag="step_started"):
    """The batch of a step, decided but not yet computed; num_tokens is aligned with request_ids."""

    step: int
    time: float
    request_ids: list[str]
    num_tokens: list[int]
    num_running: int
    num_waiting: int
    num_free_blocks: int


class TokensSampled(msgspec.Struct, frozen=True, kw_only=True, tag="tokens_sampled"):
    """What came out of a step, an entry a token: the lists are aligned, a request is named once for each of its tokens.

    indexes count a request's output tokens from 0. forced: a constraint left no other, and it cost no step of its own.
    """

    step: int
    time: float
    request_ids: list[str]
    indexes: list[int]
    token_ids: list[int]
    forced: list[bool]


class StepCompleted(msgspec.Struct, frozen=True, kw_only=True, tag="step"):
    """A step is computed and accounted for, and how long each part took, one after another.

    schedule: who runs. forward: the batch as tensors and the model. sample: logits to tokens. output: accounting for
    them. Where the forward pass runs behind Python's back (on a GPU), sampling waits for it and is charged with it.
    """

    step: int
    time: float  # at its start
    num_reqs: int
    num_tokens: int
    num_sampled: int  # tokens that came out
    schedule_s: float
    forward_s: float
    sample_s: float
    output_s: float
    num_forced: int = 0  # of the tokens that came out, those that a constraint left no choice about

    @property
    def duration_s(self) -> float:
        return self.schedule_s + self.forward_s + self.sample_s + self.output_s


# the KV pool -------------------------------------------------------------------------------------------------------


class BlocksAllocated(msgspec.Struct, frozen=True, kw_only=True, tag="blocks_allocated"):
    """New blocks at the end of a request's table (a prefix hit's blocks first: those are shared)."""

    request_id: str
    time: float
    block_ids: list[int]
    num_shared: int = 0


class BlocksFreed(msgspec.Struct, frozen=True, kw_only=True, tag="blocks_freed"):
    """A request let go of its table; a block that others still hold, or that is cached, lives on."""

    request_id: str
    time: float
    block_ids: list[int]


class BlockCached(msgspec.Struct, frozen=True, kw_only=True, tag="block_cached"):
    """A full block can be found by others from now on. parent_hash: of the block before it; None for a first one."""

    request_id: str
    time: float
    block_id: int
    block_hash: str
    parent_hash: str | None = None


class BlockEvicted(msgspec.Struct, frozen=True, kw_only=True, tag="block_evicted"):
    """The least recently used cached block was taken for new content."""

    time: float
    block_id: int
    block_hash: str
    for_request_id: str


class BlockWithdrawn(msgspec.Struct, frozen=True, kw_only=True, tag="block_withdrawn"):
    """A cached block can no longer be found, since what was computed into it is in doubt (a failed request)."""

    time: float
    block_id: int
    block_hash: str


# the engine ----------------------------------------------------------------------------------------------------------


class EngineStarted(msgspec.Struct, frozen=True, kw_only=True, tag="engine_started"):
    """An engine process can take requests; load_s since it was launched."""

    time: float
    num_restarts: int
    load_s: float


class EngineDied(msgspec.Struct, frozen=True, kw_only=True, tag="engine_died"):
    """An engine process is gone; num_in_flight requests will be replayed."""

    time: float
    reason: str
    num_in_flight: int


class RequestReplayed(msgspec.Struct, frozen=True, kw_only=True, tag="replayed"):
    """A front end sent a request that was in flight to a new engine."""

    request_id: str
    time: float
    num_output_tokens: int


class SchedulingPaused(msgspec.Struct, frozen=True, kw_only=True, tag="paused"):
    """An operator stopped the scheduler (paused) or let it go on. A paused one makes single steps on demand."""

    time: float
    paused: bool


# the whole at once ---------------------------------------------------------------------------------------------------


class RequestState(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it stands. status: "waiting", "preempted" or "running"."""

    request_id: str
    status: str
    arrival_time: float
    num_prompt_tokens: int
    num_tokens: int  # prompt and output
    max_num_tokens: int
    pools: bool
    num_computed_tokens: int
    num_cached_tokens: int
    block_ids: list[int]


class CachedBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A block that the prefix cache can find. ref_cnt: how many requests hold it; 0: it may be evicted."""

    block_id: int
    block_hash: str
    parent_hash: str | None
    num_hits: int  # how often it was given to a request since it was cached
    ref_cnt: int


class EngineSnapshot(msgspec.Struct, frozen=True, kw_only=True, tag="snapshot"):
    """Everything as it stands, told to one who begins to watch; the events after it carry it on.

    requests: running ones in order, then the queue. cached_blocks: those that can be evicted, next one first, then
    those in use. Counters are since the engine's start.
    """

    time: float
    step: int
    paused: bool
    num_blocks: int
    block_size: int
    requests: list[RequestState]
    cached_blocks: list[CachedBlock]
    num_evictions: int
    prefix_cache_queries: int  # tokens
    prefix_cache_hits: int


Event = (
    RequestSubmitted
    | RequestArrived
    | RequestRefused
    | RequestHeldBack
    | PrefixHit
    | RequestScheduled
    | RequestPreempted
    | RequestFinished
    | TokensScheduled
    | StepStarted
    | TokensSampled
    | StepCompleted
    | BlocksAllocated
    | BlocksFreed
    | BlockCached
    | BlockEvicted
    | BlockWithdrawn
    | EngineStarted
    | EngineDied
    | RequestReplayed
    | SchedulingPaused
    | EngineSnapshot
)
