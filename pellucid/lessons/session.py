"""`pellucid lessons run`: load the model once, run every stage on it, then the claims and the engine itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from pellucid.config import EngineConfig
from pellucid.core.block_accounting import num_blocks_for
from pellucid.engine.build import load_model_parts
from pellucid.lessons.claims import Claim, measure_claims
from pellucid.lessons.engine_run import run_engine
from pellucid.lessons.ladder import STAGES, Measurement, run_stage
from pellucid.lessons.task import Task
from pellucid.lessons.workbench import Workbench
from pellucid.lessons.workloads import LONG_PROMPT, MAX_OUTPUT, MAX_PROMPT, mixed_lengths

BLOCK_SIZE = 16
TOKEN_BUDGET = 128
ENGINE = 0  # its number in LadderResult.measured; the stages count from 1

OnStage = Callable[[str], None]


@dataclass(frozen=True)
class LadderResult:
    """measured: by the stage's number, the engine's own run as ENGINE. same_tokens: all of them gave the same text."""

    model: str
    kernels: str
    num_requests: int
    max_batch: int
    measured: dict[int, Measurement]
    claims: list[Claim]
    same_tokens: bool

    def as_dict(self) -> dict[str, object]:
        return {
            "model": self.model,
            "kernels": self.kernels,
            "num_requests": self.num_requests,
            "max_batch": self.max_batch,
            "same_tokens": self.same_tokens,
            "stages": [{"number": number, **m.as_dict()} for number, m in self.measured.items()],
            "claims": [claim.as_dict() for claim in self.claims],
        }


def run_ladder(
    config: EngineConfig,
    *,
    num_requests: int = 24,
    max_batch: int = 4,
    stages: Sequence[int] = tuple(STAGES),
    with_claims: bool = True,
    on_stage: OnStage = lambda _: None,
) -> LadderResult:
    """Measure the stages, in order, on one workload. config: which model and kernels; the rest of it is set here.

    Raises ValueError for a stage that there is not, and for what the model or the machine do not allow.
    """
    unknown = [number for number in stages if number not in STAGES]
    if unknown:
        raise ValueError(f"there is no stage {unknown[0]}; choose from {min(STAGES)} to {max(STAGES)}")
    num_blocks = max(  # enough for the rectangles of the common workload, and for the long prompts of the claims
        max_batch * num_blocks_for(MAX_PROMPT + MAX_OUTPUT, BLOCK_SIZE),
        2 * num_blocks_for(LONG_PROMPT, BLOCK_SIZE) + 4 * max_batch,
    )
    config = msgspec.structs.replace(
        config,
        block_size=BLOCK_SIZE,
        num_kv_blocks=num_blocks,
        max_num_seqs=max_batch,
        max_num_batched_tokens=TOKEN_BUDGET,
    )
    on_stage("loading the model")
    loaded = load_model_parts(config, lambda _: None)
    vocab_size = loaded.model.config.vocab_size
    workload = mixed_lengths(num_requests, vocab_size)
    bench = Workbench(
        loaded.model, num_blocks=num_blocks, block_size=BLOCK_SIZE, max_batch=max_batch, token_budget=TOKEN_BUDGET
    )
    warm_up(bench, workload)
    measured: dict[int, Measurement] = {}
    outputs: list[list[list[int]]] = []
    for number in sorted(stages):
        name, run = STAGES[number]
        on_stage(f"stage {number}: {name}")
        measured[number], tasks = run_stage(bench, name, run, workload)
        outputs.append([task.output for task in tasks])
    claims = []
    if with_claims:
        on_stage("the claims")
        claims = measure_claims(bench, measured, vocab_size)
    on_stage("the engine itself")
    core, _, _ = loaded.engine_core()
    measured[ENGINE], tasks = run_engine(core, workload)
    outputs.append([task.output for task in tasks])
    return LadderResult(
        model=loaded.files.name,
        kernels=loaded.choice.reason,
        num_requests=num_requests,
        max_batch=max_batch,
        measured=measured,
        claims=claims,
        same_tokens=all(output == outputs[0] for output in outputs),
    )


def warm_up(bench: Workbench, workload: Sequence[Task]) -> None:
    """A few tokens of the workload, unmeasured: after it the weights and the kernels' code are in memory."""
    run_stage(bench, *STAGES[6], [Task(list(task.token_ids), 4) for task in workload[:2]])
