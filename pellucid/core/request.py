"""A request inside the engine: the value it was sent as, and how far it has come."""

from __future__ import annotations

import enum

from pellucid.core.messages import EngineCoreRequest, FinishReason


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
    """token_ids holds prompt and output in one list; num_computed_tokens says how many of them have their KV in the pool."""

    def __init__(self, value: EngineCoreRequest) -> None:
        self.value = value
        self.request_id = value.request_id
        self.sampling_params = value.sampling_params
        self.priority = value.priority
        self.arrival_time = value.arrival_time
        self.num_prompt_tokens = len(value.prompt_token_ids)
        self.token_ids: list[int] = [*value.prompt_token_ids, *value.output_token_ids]
        self.status = RequestStatus.WAITING
        self.num_computed_tokens = 0
        self.num_cached_tokens = -1  # set when first scheduled
        self.block_table: list[int] = []  # block ids, append-only while running

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
        assert self.sampling_params.max_tokens is not None
        return self.num_prompt_tokens + self.sampling_params.max_tokens
