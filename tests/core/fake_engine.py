"""An engine core over a fake model that notices every wrong block, stale cache entry and gap in the positions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pellucid.core.engine_core import EngineCore
from pellucid.core.kv_cache_manager import KVCacheManager
from pellucid.core.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, TokenLogprob
from pellucid.core.request import Request
from pellucid.core.scheduler import Scheduler, SchedulerConfig
from pellucid.core.scheduler_output import RunnerOutput, SampledRequest, ScheduledRequest, SchedulerOutput
from pellucid.observability.bus import EventBus
from pellucid.sampling.params import SamplingParams

VOCAB_SIZE = 1000


def next_token(context: Sequence[int], salt: str | None = None) -> int:
    """The fake model: the next token is a function of the token values before it, and of nothing else."""
    digest = hashlib.blake2b(repr((list(context), salt)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % VOCAB_SIZE


def continuation(request: EngineCoreRequest, num_tokens: int | None = None) -> list[int]:
    """What the fake model says, computed without any engine."""
    tokens = list(request.prompt_token_ids)
    for _ in range(num_tokens or request.sampling_params.max_tokens or 0):
        tokens.append(next_token(tokens, request.cache_salt))
    return tokens[len(request.prompt_token_ids) :]


def prompt(first: int, length: int) -> list[int]:
    """Prompts that share no prefix."""
    return [first, *range(100, 99 + length)]


def make_request(request_id: str, prompt: Sequence[int], max_tokens: int = 16, **more: object) -> EngineCoreRequest:
    params = {name: more.pop(name) for name in list(more) if name in SamplingParams.__struct_fields__}
    return EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=list(prompt),
        sampling_params=SamplingParams(**{"max_tokens": max_tokens, "seed": 0, "temperature": 0.0, **params}),
        **more,
    )


class SimulatedClock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


@dataclass
class FakeRunner:
    """Keeps a KV store by physical slot. As in a model of several layers, what is written for a token depends on what
    stands in the slots before it: a wrong block, a stale cache entry or a token never written taints all that follows.

    Every query compares its whole context with what should stand there. `before_step` may raise, to
    break a step; `fail` says which requests get an error of their own, and whether their KV was written before.
    kv_in_doubt: what it says of such requests; to be True where the KV was not written.

    max_forced: so many tokens may follow a sampled one unsampled, as long as is_forced(request, how many tokens this
    step has given it) says so. They heed neither max_tokens nor an end-of-text token.
    """

    block_size: int
    sample: Callable[[Request], int] = lambda request: next_token(request.token_ids, request.value.cache_salt)
    before_step: Callable[[SchedulerOutput], None] | None = None
    fail: Callable[[ScheduledRequest], str | None] | None = None
    writes_before_failing: bool = True
    kv_in_doubt: bool = True
    max_forced: int = 0
    is_forced: Callable[[Request, int], bool] = lambda request, so_far: bool((request.num_tokens + so_far) % 3)
    slots: dict[int, bytes] = field(default_factory=dict)
    steps: list[list[tuple[str, int, int]]] = field(default_factory=list)  # (request id, start, num_tokens)
    _tables: dict[str, list[int]] = field(default_factory=dict)  # copies, as a runner keeps that only appends to them
    _contents: dict[Request, list[bytes]] = field(default_factory=dict)  # what should stand at each position

    def execute(self, scheduled: SchedulerOutput) -> RunnerOutput:
        if self.before_step:
            self.before_step(scheduled)
        self.steps.append([(share.request.request_id, share.start, share.num_tokens) for share in scheduled.requests])
        for request_id in (*scheduled.finished_request_ids, *(gone.request_id for gone in scheduled.preempted)):
            self._tables.pop(request_id, None)
        for share in scheduled.requests:
            table = self._tables.setdefault(share.request.request_id, [])
            table += share.request.block_table[len(table) :]
        assert scheduled.num_tokens == sum(share.num_tokens for share in scheduled.requests)
        failures = [self.fail(share) if self.fail else None for share in scheduled.requests]
        for share, error in zip(scheduled.requests, failures, strict=True):  # every key is written before any is read
            if error is None or self.writes_before_failing:
                self._write(share)
        return RunnerOutput([self._result(*pair) for pair in zip(scheduled.requests, failures, strict=True)])

    def _write(self, share: ScheduledRequest) -> None:
        request = share.request
        assert share.num_tokens >= 1
        assert share.start == request.num_computed_tokens, "positions are not contiguous"
        assert share.start + share.num_tokens <= request.num_tokens
        for position in range(share.start, share.start + share.num_tokens):
            before = self.slots.get(self._slot(request, position - 1), b"nothing") if position else b""
            self.slots[self._slot(request, position)] = _content(before, request, position)

    def _result(self, share: ScheduledRequest, error: str | None) -> SampledRequest:
        request = share.request
        if error is not None:
            return SampledRequest(error=error, kv_in_doubt=self.kv_in_doubt)
        end = share.start + share.num_tokens
        for position, content in enumerate(self._expected(request, end)):
            if self.slots.get(self._slot(request, position)) != content:
                return SampledRequest(token_ids=[self._garbage(request)] if share.samples else [])
        assert share.samples == (end == request.num_tokens)
        prompt_logprobs = None
        if request.sampling_params.prompt_logprobs is not None:
            last = min(end, request.num_prompt_tokens - 1)
            prompt_logprobs = [prompt_logprob(request.token_ids, i + 1) for i in range(share.start, last)]
        if not share.samples:
            return SampledRequest(prompt_logprobs=prompt_logprobs, pooled=b"\0\0\x80?" if share.pools else None)
        token_ids = [self.sample(request)]
        while len(token_ids) <= self.max_forced and self.is_forced(request, len(token_ids)):
            token_ids.append(next_token([*request.token_ids, *token_ids], request.value.cache_salt))
        return SampledRequest(token_ids=token_ids, num_forced=len(token_ids) - 1, prompt_logprobs=prompt_logprobs)

    def _garbage(self, request: Request) -> int:
        """What a model makes of wrong keys: another token. (An exception here would be taken for a failed step.)"""
        return (self.sample(request) + 1) % VOCAB_SIZE

    def _slot(self, request: Request, position: int) -> int:
        return (
            self._tables[request.request_id][position // self.block_size] * self.block_size + position % self.block_size
        )

    def _expected(self, request: Request, num_tokens: int) -> list[bytes]:
        contents = self._contents.setdefault(request, [])
        for position in range(len(contents), num_tokens):
            contents.append(_content(contents[-1] if contents else b"", request, position))
        return contents[:num_tokens]


def _content(before: bytes, request: Request, position: int) -> bytes:
    seen = repr((before, position, request.token_ids[position], request.value.cache_salt)).encode()
    return hashlib.blake2b(seen, digest_size=16).digest()


def prompt_logprob(token_ids: Sequence[int], position: int) -> TokenLogprob:
    return TokenLogprob(token_ids=[token_ids[position]], logprobs=[-float(sum(token_ids[:position]))], ranks=[1])


class FakeEngine:
    """An EngineCore with all it needs, and what came out of it so far."""

    def __init__(
        self,
        num_blocks: int = 64,
        block_size: int = 4,
        max_num_seqs: int = 16,
        max_num_batched_tokens: int = 64,
        max_model_len: int = 200,
        enable_prefix_caching: bool = True,
        **runner: object,
    ) -> None:
        self.clock = SimulatedClock()
        self.bus = EventBus(now=self.clock)
        self.kv = KVCacheManager(num_blocks, block_size, enable_prefix_caching, self.bus)
        config = SchedulerConfig(max_num_seqs, max_num_batched_tokens, max_model_len)
        self.scheduler = Scheduler(config, self.kv, self.bus, now=self.clock, monotonic=self.clock)
        self.runner = FakeRunner(block_size, **runner)
        self.core = EngineCore(self.scheduler, self.runner, VOCAB_SIZE, self.bus)
        self.tokens: dict[str, list[int]] = {}
        self.last: dict[str, EngineCoreOutput] = {}  # the finishing output
        self.all_outputs: list[EngineCoreOutput] = []
        self.events: list = []

    def add(self, *requests: EngineCoreRequest) -> None:
        for request in requests:
            self.tokens[request.request_id] = list(request.output_token_ids)
            self.core.add_request(request)

    def step(self) -> EngineCoreOutputs:
        outputs = self.core.step()
        self.clock.time += 0.01
        for output in outputs.outputs:
            assert output.request_id not in self.last, "an output after the last one"
            self.tokens[output.request_id] += output.new_token_ids
            if output.finish_reason is not None:
                self.last[output.request_id] = output
        self.all_outputs += outputs.outputs
        self.events += outputs.events
        return outputs

    def run(self, max_steps: int = 10_000) -> None:
        for _ in range(max_steps):
            if not self.core.has_work():
                return
            self.step()
        raise AssertionError(f"not finished after {max_steps} steps")


def assert_pool_is_consistent(kv: KVCacheManager, requests: Sequence[Request]) -> None:
    """Every block has exactly one owner: the tables of running requests, the cache (evictable), or the free list."""
    pool = kv.pool
    free = list(pool.free_blocks())
    assert len(free) == len({block.block_id for block in free}) == pool.num_free_blocks, "twice on the free list"
    holders: dict[int, int] = {}
    for request in requests:
        assert len(set(request.block_table)) == len(request.block_table), "a block twice in one table"
        for block_id in request.block_table:
            holders[block_id] = holders.get(block_id, 0) + 1
    evictable = [block for block in free if block.block_hash is not None]
    assert pool.num_evictable_blocks == len(evictable)
    assert free[len(free) - len(evictable) :] == evictable, "an empty block must be used before a cached one"
    for block in pool.blocks:
        assert block.ref_cnt == holders.get(block.block_id, 0)
        assert (block.ref_cnt == 0) == (block in free)
        if block.block_hash is not None:
            assert pool.lookup(block.block_hash) is block
    plain = len(free) - len(evictable)
    assert plain + len(evictable) + len(holders) == pool.num_blocks, "free + cached + live = total"


def assert_idle(engine: FakeEngine) -> None:
    """No leak: nobody holds anything, nothing is queued, every block can be had."""
    assert_pool_is_consistent(engine.kv, [])
    stats = engine.core.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_free_blocks) == (0, 0, stats.num_blocks)
    assert not engine.scheduler.requests
    assert not engine.scheduler.running
    assert not engine.core.has_work()
    assert not engine.scheduler._deadlines
