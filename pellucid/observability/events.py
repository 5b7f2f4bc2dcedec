"""Every decision the engine makes, as one typed event. Logs, metrics, traces and pages read these and nothing else."""

from __future__ import annotations

import msgspec


class RequestArrived(msgspec.Struct, frozen=True, kw_only=True, tag="arrived"):
    request_id: str
    time: float
    num_prompt_tokens: int


class RequestScheduled(msgspec.Struct, frozen=True, kw_only=True, tag="scheduled"):
    """A waiting request became a running one (first time, or again after a preemption)."""

    request_id: str
    time: float
    num_cached_tokens: int


class RequestPreempted(msgspec.Struct, frozen=True, kw_only=True, tag="preempted"):
    request_id: str
    time: float
    num_computed_tokens: int  # thrown away, to be recomputed
    for_request_id: str  # who needed the blocks


class RequestFinished(msgspec.Struct, frozen=True, kw_only=True, tag="finished"):
    request_id: str
    time: float
    reason: str
    num_output_tokens: int


class StepCompleted(msgspec.Struct, frozen=True, kw_only=True, tag="step"):
    step: int
    time: float  # at its start
    num_reqs: int
    num_tokens: int
    schedule_s: float
    execute_s: float
    update_s: float


Event = RequestArrived | RequestScheduled | RequestPreempted | RequestFinished | StepCompleted
