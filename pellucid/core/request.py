"""A request inside the engine: the value it was sent as, and how far it has come."""

from __future__ import annotations

import enum

from pellucid.core.messages import EngineCoreRequest, FinishReason, TokenLogprob


class RequestStatus(enum.Enum):
    """WAITING -> RUNNING -> FINISHED_*; RUNNING -> PREEMPTED (waiting again, at the head of the queue) -> RUNNING."""

    WAITING = enum.auto()
    PREEMPTED = enum.auto()
    RUNNING = enum.auto()
    FINISHED_STOPPED = enum.auto()
    FINISHED_LENGTH = enum.auto()
    FINISHED_ABORTED = enum.auto()
    FINISHED_ERROR = enum.auto()

    @property
    def is_finished(self) -> bool:
        return self.name.startswith("FINISHED")


FINISHED_STATUS = {
    FinishReason.STOP: RequestStatus.FINISHED_STOPPED,
    FinishReason.LENGTH: RequestStatus.FINISHED_LENGTH,
    FinishReason.ABORT: RequestStatus.FINISHED_ABORTED,
    FinishReason.ERROR: RequestStatus.FINISHED_ERROR,
}


class Request:
    """token_ids holds prompt and output in one list; num_computed_tokens of them have their KV in the pool."""

    def __init__(self, value: EngineCoreRequest) -> None:
        params = value.sampling_params
        self.value = value
        self.request_id = value.request_id
        self.sampling_params = params
        self.priority = value.priority
        self.pooling = value.pooling
        self.arrival_time = value.arrival_time
        self.num_prompt_tokens = len(value.prompt_token_ids)
        self.token_ids: list[int] = [*value.prompt_token_ids, *value.output_token_ids]
        self.status = RequestStatus.WAITING
        self.rules: object | None = None  # what its output has to obey, in the runner's terms

        # The scheduler's: lower order goes first, and is unique; at max_num_tokens the request is at its end.
        self.order: tuple[int, int] = (value.priority, 0)
        self.max_num_tokens = self.num_prompt_tokens + (params.max_tokens or 0)
        self.num_computed_tokens = 0
        self.num_cached_tokens = -1  # set when first scheduled
        self.num_preemptions = 0
        self.num_forced_tokens = 0  # of the output, those that cost no step of their own, since it was added
        self.num_forced_ahead = 0  # of them, those that came with the last sampled token

        # The KV cache manager's: block ids, append-only while running; the hash of each full block, computed once;
        # and how many blocks at the start of the table have been offered to the prefix cache.
        self.block_table: list[int] = []
        self.block_hashes: list[bytes] = []
        self.num_registered_blocks = 0

        self.eos_token_ids = frozenset() if params.ignore_eos else frozenset(value.eos_token_ids)
        self.stop_token_ids = frozenset(params.stop_token_ids)

        # prompt_logprobs are gathered over the chunks of the prompt and told once, with the first output token.
        self.owes_prompt_logprobs = params.prompt_logprobs is not None and not value.output_token_ids
        self.prompt_logprobs: list[TokenLogprob] = []

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def max_total_tokens(self) -> int:
        """The longest this request can become."""
        return self.num_prompt_tokens + (self.sampling_params.max_tokens or 0)

    def add_prompt_logprobs(self, start: int, entries: list[TokenLogprob]) -> None:
        """Keep what a chunk found: computing token i tells the log-probability of token i + 1.

        entries[0] belongs to prompt position start + 1. After a preemption a chunk may repeat positions already told.
        """
        if self.owes_prompt_logprobs:
            self.prompt_logprobs += entries[len(self.prompt_logprobs) - start :]

    def take_prompt_logprobs(self) -> list[TokenLogprob] | None:
        """What was gathered, the first time; None if nothing was asked for or it has been told."""
        if not self.owes_prompt_logprobs:
            return None
        self.owes_prompt_logprobs = False
        entries, self.prompt_logprobs = self.prompt_logprobs, []
        return entries
