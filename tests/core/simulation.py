"""A deterministic life of an engine: everything that happens follows from the seed.

`python tests/core/simulation.py SEED` replays one seed and prints its steps.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field

from fake_engine import (
    FakeEngine,
    assert_idle,
    assert_pool_is_consistent,
    continuation,
    make_request,
    prompt_logprob,
)

from pellucid.core.messages import EngineCoreOutput, EngineCoreRequest, FinishReason
from pellucid.core.request import RequestStatus
from pellucid.core.scheduler_output import ScheduledRequest, SchedulerOutput
from pellucid.observability.events import BlockEvicted, Event, RequestHeldBack, RequestPreempted, StepCompleted

EOS = 7
MAX_STEPS = 5000


@dataclass
class Client:
    """What the outside knows of a request, and what it may expect."""

    request: EngineCoreRequest
    fate: (
        str  # "finishes", "refused", "poison" (breaks every step it is in), "fails" (an error of its own at some token)
    )
    fails_at: int = 0
    tokens: list[int] = field(default_factory=list)
    last: EngineCoreOutput | None = None
    aborted: bool = False
    told_prompt_logprobs: bool = False
    has_failed: bool = False  # a step of it got the error that is its fate

    @property
    def in_flight(self) -> bool:
        return self.last is None and not self.aborted

    def expected(self) -> list[int]:
        tokens = continuation(self.request)
        return tokens[: tokens.index(EOS) + 1] if self.request.eos_token_ids and EOS in tokens else tokens


class Simulation:
    """Arrivals, aborts, deadlines, exhaustion, failures of steps and requests, deaths of the engine."""

    def __init__(self, seed: int, trace: bool = False) -> None:
        self.random = random.Random(seed)
        self.trace = trace
        pick = self.random
        self.settings = {
            "num_blocks": pick.randint(6, 30),
            "block_size": pick.choice([1, 2, 4, 5]),
            "max_num_seqs": pick.randint(1, 8),
            "max_num_batched_tokens": pick.choice([1, 3, 17, 64]),
            "max_model_len": pick.choice([30, 1000]),
            "enable_prefix_caching": pick.random() < 0.8,
        }
        self.max_forced = pick.choice([0, 0, 2, 7])
        self.capacity = min(self.settings["num_blocks"] * self.settings["block_size"] + 1, 60)
        self.prefixes = [[pick.randrange(50) for _ in range(pick.randint(1, 20))] for _ in range(pick.choice([1, 3]))]
        self.clients: dict[str, Client] = {}
        self.history: list[str] = []
        self.num_deaths = self.num_evictions = self.num_held_back = self.num_retractions = 0
        self.num_forced = self.num_preempted_in_a_run = 0
        self.breaks_next_step = False
        self.engine = self._new_engine()

    def run(self) -> None:
        num_arrivals, burstiness = self.random.randint(3, 25), self.random.choice([0.1, 0.3, 0.85])
        for _ in range(MAX_STEPS):
            while num_arrivals and self.random.random() < burstiness:
                num_arrivals -= 1
                self._arrive()
            self._disturb()
            if not num_arrivals and not self.engine.core.has_work():
                break
            self._step()
        else:
            raise AssertionError("starvation or livelock")
        self._check_the_end()

    # what may happen -------------------------------------------------------------------------------------------------

    def _arrive(self) -> None:
        pick = self.random
        name = f"r{len(self.clients)}"
        prompt = [*pick.choice(self.prefixes), *(pick.randrange(50) for _ in range(pick.randint(0, 8)))]
        if pick.random() < 0.2:
            prompt = pick.choice(self.prefixes)[: pick.randint(1, 20)]
        max_tokens = pick.randint(1, 20)
        fate = pick.choices(["finishes", "poison", "fails"], [20, 2, 4])[0]
        if len(prompt) + max_tokens > self.capacity:
            prompt, max_tokens = prompt[: self.capacity // 2], self.capacity - self.capacity // 2
        max_len = self.settings["max_model_len"]
        if pick.random() < 0.05:
            prompt, fate = [1] * (self.settings["num_blocks"] * self.settings["block_size"] + 2), "refused"
        elif len(prompt) + max_tokens > max_len:
            prompt, max_tokens = prompt[: max_len // 2], max_len // 2
        deadline = self.engine.clock.time + pick.uniform(0.05, 3.0) if pick.random() < 0.1 else None
        request = make_request(
            name,
            prompt,
            max_tokens,
            arrival_time=self.engine.clock.time,
            deadline=deadline,
            priority=pick.choice([0, 0, 0, -1, 2]),
            cache_salt=pick.choice([None, None, None, "salt"]),
            eos_token_ids=pick.choice([(), (EOS,)]),
            prompt_logprobs=pick.choice([None, None, None, None, 1]),
        )
        fails_at = len(prompt) - 1 + pick.choice([0, pick.randint(0, max_tokens - 1)])
        self.clients[name] = Client(request, fate, fails_at)
        self.engine.add(request)

    def _disturb(self) -> None:
        chance = self.random.random()
        if chance < 0.02:
            in_flight = [name for name, client in self.clients.items() if client.in_flight]
            for name in self.random.sample(in_flight, min(len(in_flight), self.random.randint(1, 3))):
                self.clients[name].aborted = True
                self.engine.core.abort_requests([name])
        elif chance < 0.025:
            self._kill_engine()
        elif chance < 0.04:
            self.breaks_next_step = True
        elif chance < 0.05:
            self.engine.clock.time += self.random.uniform(0, 2)

    def _kill_engine(self) -> None:
        """kill -9: nothing is left of it; the front end replays what it was waiting for, as values."""
        self.num_deaths += 1
        now = self.engine.clock.time
        self.engine = self._new_engine()
        self.engine.clock.time = now
        for client in self.clients.values():
            if client.in_flight:
                value = client.request
                fields = {name: getattr(value, name) for name in value.__struct_fields__}
                self.engine.add(EngineCoreRequest(**{**fields, "output_token_ids": list(client.tokens)}))

    def _new_engine(self) -> FakeEngine:
        writes = self.random.random() < 0.5
        engine = FakeEngine(
            **self.settings,
            before_step=self._break_step,
            fail=self._fail_request,
            writes_before_failing=writes,
            kv_in_doubt=not writes or self.max_forced > 0,
            max_forced=self.max_forced,
        )
        engine.bus.subscribe(self._count, {BlockEvicted, RequestHeldBack, RequestPreempted, StepCompleted})
        return engine

    def _count(self, event: Event) -> None:
        self.num_evictions += isinstance(event, BlockEvicted)
        self.num_held_back += isinstance(event, RequestHeldBack)
        if isinstance(event, StepCompleted):
            self.num_forced += event.num_forced
        if isinstance(event, RequestPreempted):
            requests = self.engine.scheduler.requests
            self.num_preempted_in_a_run += requests[event.request_id].num_forced_ahead > 0
            # of one that relied on blocks of a request that failed
            self.num_retractions += event.for_request_id not in requests

    def _break_step(self, scheduled: SchedulerOutput) -> None:
        names = [share.request.request_id for share in scheduled.requests]
        poison = [name for name in names if self.clients[name].fate == "poison"]
        if poison:
            raise RuntimeError(f"broken by {poison}")
        if self.breaks_next_step and len(names) > 1:
            self.breaks_next_step = False
            raise MemoryError("too large a batch, just this time")

    def _fail_request(self, share: ScheduledRequest) -> str | None:
        client = self.clients[share.request.request_id]
        fails = client.fate == "fails" and share.start + share.num_tokens > client.fails_at
        client.has_failed |= fails
        return "logits are not finite" if fails else None

    # what must hold --------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        engine = self.engine
        num_before = len(engine.runner.steps)
        outputs = engine.step()
        for output in outputs.outputs:
            self._hear(output)
        for step in engine.runner.steps[num_before:]:
            assert sum(num for *_, num in step) <= self.settings["max_num_batched_tokens"]
            assert len(step) <= self.settings["max_num_seqs"]
        running = engine.scheduler.running
        assert_pool_is_consistent(engine.kv, running)
        assert [request.order for request in running] == sorted(request.order for request in running)
        assert all(request.status is RequestStatus.RUNNING for request in running)
        assert len(engine.scheduler.requests) == len(running) + len(engine.scheduler.waiting)
        assert {name for name, client in self.clients.items() if client.in_flight} == set(engine.scheduler.requests)
        told = [(output.request_id, output.new_token_ids, output.error) for output in outputs.outputs]
        line = f"{outputs.stats.step} {engine.runner.steps[num_before:]} {told}"
        self.history.append(line)
        if self.trace:
            print(line)

    def _hear(self, output: EngineCoreOutput) -> None:
        client = self.clients[output.request_id]
        assert client.in_flight, "an output after the last one"
        client.tokens += output.new_token_ids
        assert client.tokens == client.expected()[: len(client.tokens)]
        assert bool(output.new_token_ids) or output.finish_reason is not None
        if output.prompt_logprobs is not None:
            assert not client.told_prompt_logprobs
            client.told_prompt_logprobs = True
            prompt = client.request.prompt_token_ids
            assert output.prompt_logprobs == [prompt_logprob(prompt, i) for i in range(1, len(prompt))]
        if output.finish_reason is not None:
            client.last = output

    def _check_the_end(self) -> None:
        assert_idle(self.engine)
        for client in self.clients.values():
            if client.aborted:
                continue
            assert client.last is not None
            error, reason = client.last.error, client.last.finish_reason
            if reason is FinishReason.ERROR:
                assert error is not None
                if client.request.deadline is not None and error.startswith("timed out"):
                    continue
                said = {"poison": "broken by", "fails": "not finite", "refused": "the prompt has|KV blocks"}[
                    client.fate
                ]
                assert any(words in error for words in said.split("|")), error
            else:
                assert client.tokens == client.expected()
                assert (reason is FinishReason.STOP) == bool(client.request.eos_token_ids and client.tokens[-1] == EOS)
                asked = client.request.sampling_params.prompt_logprobs is not None
                assert client.told_prompt_logprobs == asked
                # What was to fail or to break a step may have ended before, by an EOS or by tokens that no step had to
                # compute, but never got a token out of it.
                assert not client.has_failed
                early = client.tokens[-1] == EOS or self.max_forced
                assert client.fate == "finishes" or (client.fate == "fails" and early)


if __name__ == "__main__":
    Simulation(int(sys.argv[1]), trace=True).run()
