"""One step on the machine: SchedulerOutput -> ForwardBatch -> logits -> tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from pellucid.core.messages import TokenLogprob
from pellucid.core.request import Request
from pellucid.core.scheduler_output import RunnerOutput, SampledRequest, SchedulerOutput
from pellucid.kernels.interface import ForwardFunction
from pellucid.models.model import Model
from pellucid.runner.batch_builder import BatchBuilder
from pellucid.runner.pooling import Pooler
from pellucid.runner.prompt_logprobs import PromptLogprobs
from pellucid.runner.warm_up import made_up_step
from pellucid.sampling.logits_processors import LogitsProcessor
from pellucid.sampling.sampler import SampledToken, Sampler
from pellucid.sampling.state import SamplingState


class ModelRunner:
    """Keeps nothing of a request that does not follow from its value; what it keeps is only to save work.

    model: with its KV cache allocated. forward: the model, or what Kernels.compile_forward made of it.
    """

    def __init__(
        self,
        model: Model,
        forward: ForwardFunction,
        batches: BatchBuilder,
        sampler: Sampler,
        prompt_logprobs: PromptLogprobs,
        processors: Sequence[LogitsProcessor] = (),
    ) -> None:
        self._model = model
        self._forward = forward
        self._batches = batches
        self._sampler = sampler
        self._prompt_logprobs = prompt_logprobs
        self._processors = processors
        self._pooler = Pooler()
        self._states: dict[str, tuple[Request, SamplingState]] = {}

    @torch.inference_mode()
    def execute(self, scheduled: SchedulerOutput) -> RunnerOutput:
        """Write the keys and values of every scheduled token; sample for the requests that reached their end.

        What goes wrong with one request is its result's `error`. Raises where the batch as a whole fails; the same
        shares may then be executed again, together or one by one, with the same result.
        """
        self._forget(scheduled.finished_request_ids)
        self._forget(request.request_id for request in scheduled.preempted)
        shares = scheduled.requests
        batch = self._batches.build(scheduled)
        prompt_logprobs: dict[int, list[TokenLogprob] | str] = {}
        pooled: dict[int, bytes] = {}
        if any(share.request.owes_prompt_logprobs or share.request.pooling is not None for share in shares):
            hidden = self._model.forward(batch)
            logits = self._model.compute_logits(hidden, batch)
            prompt_logprobs = self._prompt_logprobs(self._model, hidden, batch, shares)
            pooled = self._pooler(self._model, hidden, batch, shares)
        else:
            logits = self._forward(batch)
        sampling = [i for i, share in enumerate(shares) if share.samples]
        sampled = self._sampler.sample(logits, [self._state(shares[i].request) for i in sampling])
        tokens = dict(zip(sampling, sampled, strict=True))
        return RunnerOutput([_result(tokens.get(i), prompt_logprobs.get(i), pooled.get(i)) for i in range(len(shares))])

    @torch.inference_mode()
    def warm_up(self, num_blocks: int, block_size: int, num_tokens: int, num_reqs: int) -> None:
        """One step of made-up requests, before any real one. The operator's processors do not hear of it."""
        step = made_up_step(num_blocks, block_size, num_tokens, num_reqs)
        requests = [share.request for share in step.requests]
        logits = self._forward(self._batches.build(step))
        self._sampler.sample(logits, [_sampling_state(request) for request in requests])
        self._batches.forget(request.request_id for request in requests)

    def _state(self, request: Request) -> SamplingState:
        known = self._states.get(request.request_id)
        if known is not None and known[0] is request:
            return known[1]
        state = _sampling_state(request, self._processors)
        self._states[request.request_id] = (request, state)
        return state

    def _forget(self, request_ids: Iterable[str]) -> None:
        request_ids = list(request_ids)
        self._batches.forget(request_ids)
        self._pooler.forget(request_ids)
        for request_id in request_ids:
            self._states.pop(request_id, None)


def _sampling_state(request: Request, processors: Sequence[LogitsProcessor] = ()) -> SamplingState:
    eos_token_ids = request.value.eos_token_ids
    return SamplingState(
        request.sampling_params, request.token_ids, request.num_prompt_tokens, eos_token_ids, processors
    )


def _result(
    sampled: SampledToken | None, prompt_logprobs: list[TokenLogprob] | str | None, pooled: bytes | None
) -> SampledRequest:
    if isinstance(prompt_logprobs, str):
        return SampledRequest(error=prompt_logprobs)
    if sampled is None:
        return SampledRequest(prompt_logprobs=prompt_logprobs, pooled=pooled)
    if sampled.error is not None:
        return SampledRequest(error=sampled.error)
    logprobs = None if sampled.logprobs is None else [sampled.logprobs]
    return SampledRequest(token_ids=[sampled.token_id], logprobs=logprobs, prompt_logprobs=prompt_logprobs)
