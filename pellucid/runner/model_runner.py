"""One step on the machine: SchedulerOutput -> ForwardBatch -> logits -> tokens."""

from __future__ import annotations

import time
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
from pellucid.structured.masks import RuledRow, StepMasks
from pellucid.structured.rules import OutputRules

MAX_FORCED_TOKENS = 32  # that follow one sampled token in the same step


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
        max_forced_tokens: int = MAX_FORCED_TOKENS,
    ) -> None:
        """max_forced_tokens: after a sampled one, in the same step; 0: each is a step of its own, with the same result.
        For tests and measurements.
        """
        self._model = model
        self._forward = forward
        self._batches = batches
        self._sampler = sampler
        self._prompt_logprobs = prompt_logprobs
        self._processors = processors
        self.max_forced_tokens = max_forced_tokens
        self._pooler = Pooler()
        self._masks = StepMasks(model.config.vocab_size)
        self._requests: dict[str, _Kept] = {}

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
        sampling = [i for i, share in enumerate(shares) if share.samples]
        kept = [self._kept(shares[i].request) for i in sampling]
        self._masks.begin([one.ruled for one in kept if one.ruled is not None])  # while the model computes
        prompt_logprobs: dict[int, list[TokenLogprob] | str] = {}
        pooled: dict[int, bytes] = {}
        if any(share.request.owes_prompt_logprobs or share.request.pooling is not None for share in shares):
            hidden = self._model.forward(batch)
            logits = self._model.compute_logits(hidden, batch)
            prompt_logprobs = self._prompt_logprobs(self._model, hidden, batch, shares)
            pooled = self._pooler(self._model, hidden, batch, shares)
        else:
            logits = self._forward(batch)
        computed = time.perf_counter()
        self._masks.wait()
        sampled = self._sampler.sample(logits, [one.sampling_state() for one in kept])
        forced = {
            i: one.forced_after(token, self.max_forced_tokens)
            for i, one, token in zip(sampling, kept, sampled, strict=True)
            if one.ruled is not None
        }
        tokens = dict(zip(sampling, sampled, strict=True))
        results = [
            _result(tokens.get(i), forced.get(i, ()), prompt_logprobs.get(i), pooled.get(i)) for i in range(len(shares))
        ]
        return RunnerOutput(results, sample_s=time.perf_counter() - computed)

    @torch.inference_mode()
    def warm_up(self, num_blocks: int, block_size: int, num_tokens: int, num_reqs: int) -> None:
        """One step of made-up requests, before any real one. The operator's processors do not hear of it."""
        step = made_up_step(num_blocks, block_size, num_tokens, num_reqs)
        requests = [share.request for share in step.requests]
        logits = self._forward(self._batches.build(step))
        self._sampler.sample(logits, [_sampling_state(request) for request in requests])
        self._batches.forget(request.request_id for request in requests)

    def _kept(self, request: Request) -> _Kept:
        known = self._requests.get(request.request_id)
        if known is None or known.request is not request:
            known = self._requests[request.request_id] = _Kept(request, self._processors)
        return known

    def _forget(self, request_ids: Iterable[str]) -> None:
        request_ids = list(request_ids)
        self._batches.forget(request_ids)
        self._pooler.forget(request_ids)
        for request_id in request_ids:
            self._requests.pop(request_id, None)


class _Kept:
    """What is kept of a request that samples, as long as it runs."""

    def __init__(self, request: Request, processors: Sequence[LogitsProcessor]) -> None:
        self.request = request
        self.state = _sampling_state(request, processors)
        rules = request.rules
        self.ruled = (
            RuledRow(rules, request.token_ids, request.num_prompt_tokens) if isinstance(rules, OutputRules) else None
        )

    def sampling_state(self) -> SamplingState:
        if (ruled := self.ruled) is not None:
            self.state.obey(ruled.mask, must_end=ruled.state.must_end, error=ruled.state.error)
        return self.state

    def forced_after(self, sampled: SampledToken, max_tokens: int) -> list[int]:
        """The tokens after a sampled one that must be what they are: where the rules leave a single token there is
        nothing to sample, so that no step is needed to find it. The next step computes them all, and then samples.
        """
        ruled, state, request = self.ruled, self.state, self.request
        if ruled is None or sampled.error is not None or state.needs_all_logits or state.is_stop(sampled.token_id):
            return []
        ruled.push(sampled.token_id)
        num_left = request.max_num_tokens - len(request.token_ids) - 1
        forced: list[int] = []
        while len(forced) < min(max_tokens, num_left):
            token_id = ruled.only_next()
            must_end = ruled.state.must_end
            if token_id is None or not state.may_follow(token_id, 1 + len(forced), must_end=must_end):
                break
            ruled.push(token_id)
            forced.append(token_id)
            if state.is_stop(token_id):
                break
        return forced


def _sampling_state(request: Request, processors: Sequence[LogitsProcessor] = ()) -> SamplingState:
    eos_token_ids = request.value.eos_token_ids
    return SamplingState(
        request.sampling_params, request.token_ids, request.num_prompt_tokens, eos_token_ids, processors
    )


def _result(
    sampled: SampledToken | None,
    forced: Sequence[int],
    prompt_logprobs: list[TokenLogprob] | str | None,
    pooled: bytes | None,
) -> SampledRequest:
    if isinstance(prompt_logprobs, str):
        return SampledRequest(error=prompt_logprobs)
    if sampled is None:
        return SampledRequest(prompt_logprobs=prompt_logprobs, pooled=pooled)
    if sampled.error is not None:
        return SampledRequest(error=sampled.error, kv_in_doubt=sampled.model_failed)
    logprobs = None if sampled.logprobs is None else [sampled.logprobs]
    return SampledRequest(
        token_ids=[sampled.token_id, *forced],
        num_forced=len(forced),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )
