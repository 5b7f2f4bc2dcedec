"""Puts an engine together: the model's name in, an EngineCore that takes requests out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pellucid.config import EngineConfig
from pellucid.core.block_accounting import num_blocks_for
from pellucid.core.engine_core import EngineCore
from pellucid.core.kv_budget import (
    CPU_KV_SHARE,
    KVPoolPlan,
    accelerator_kv_bytes,
    cpu_kv_bytes,
    format_bytes,
    plan_kv_pool,
)
from pellucid.core.kv_cache_manager import KVCacheManager
from pellucid.core.messages import EngineCoreRequest, EngineLoading, EngineReady
from pellucid.core.preparation import Preparations
from pellucid.core.scheduler import Scheduler, SchedulerConfig
from pellucid.loader.config_reader import read_model_config
from pellucid.loader.model_files import ModelFiles
from pellucid.loader.resolve import resolve_model
from pellucid.models.config import ModelConfig
from pellucid.observability.bus import EventBus
from pellucid.observability.event_log import attach_event_log
from pellucid.runner import kv_memory
from pellucid.structured.compiler import GrammarCompiler
from pellucid.structured.grammar import COMPILE_TIMEOUT_S
from pellucid.structured.rules import OutputRules, needs_rules
from pellucid.structured.vocabulary import GrammarVocabulary

if TYPE_CHECKING:
    from pellucid.kernels.interface import Kernels
    from pellucid.kernels.select import KernelChoice
    from pellucid.kernels.weights import WeightSource
    from pellucid.models.model import Model
    from pellucid.runner.model_runner import ModelRunner
    from pellucid.sampling.logits_processors import LogitsProcessor

logger = logging.getLogger(__name__)

OnProgress = Callable[[EngineLoading], None]

INT4_ROUNDINGS = ("inputs", "nearest")
GPU_MEMORY_UTILIZATION = 0.9  # the share of a GPU that weights, activations and the KV pool may fill together


def build_engine_core(config: EngineConfig, on_progress: OnProgress) -> tuple[EngineCore, EngineReady]:
    """Resolve the model, load it, size and allocate the KV pool, warm up.

    on_progress: told each stage, and how far it is. Imports torch. Raises ValueError (ModelError is one) with words for
    the user where the configuration, the model or the machine do not allow it; RuntimeError for missing kernels.
    """
    begin = time.monotonic()
    loaded = load_model_parts(config, on_progress)
    core, plan, arithmetic = loaded.engine_core(on_progress)
    kernels, model_config = loaded.choice.kernels, loaded.model.config
    details = {
        "model": f"{loaded.files.name} ({model_config.architecture})",
        "kernels": loaded.choice.reason,
        "kv_pool": plan.describe(),
        "kv_memory": arithmetic,
        "kv_cache_dtype": config.kv_cache_dtype,
        "enable_prefix_caching": str(config.enable_prefix_caching),
        "quantization": config.quantization or "none",
        "int4_rounding": config.int4_rounding,
        "load_seconds": f"{time.monotonic() - begin:.2f}",
    }
    if loaded.processors:
        details["logits_processors"] = ", ".join(processor.name for processor in loaded.processors)
    ready = EngineReady(
        max_model_len=plan.max_model_len,
        num_blocks=plan.num_blocks,
        block_size=plan.block_size,
        vocab_size=model_config.vocab_size,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=loaded.step_tokens,
        device=str(kernels.device),
        dtype=str(kernels.dtype).removeprefix("torch."),
        kernels=kernels.name,
        hidden_size=model_config.hidden_size,
        structured_outputs=bool(model_config.eos_token_ids),
        details=details,
    )
    return core, ready


def load_model_parts(config: EngineConfig, on_progress: OnProgress) -> LoadedModel:
    """All of an engine that takes long to load: raises as build_engine_core does."""
    _check_counts(config)
    progress = _Progress(on_progress)
    progress("finding the model")
    files = resolve_model(config.model, local_files_only=config.local_files_only, on_progress=progress.of_download)
    model_config = read_model_config(files)
    progress("loading torch")
    choice = _select_kernels(config, model_config)
    processors = _load_processors(config, files)
    model = _load_model(config, files, model_config, choice.kernels, progress)
    return LoadedModel(config, files, model, choice, processors)


def _check_counts(config: EngineConfig) -> None:
    counts = ("max_num_seqs", "max_num_batched_tokens", "block_size", "num_kv_blocks", "kv_cache_memory", "num_threads")
    for name in counts:
        value = getattr(config, name)
        if value is not None and value < 1:
            raise ValueError(f"{name}={value}: must be at least 1")


class _Progress:
    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress = on_progress

    def __call__(self, stage: str, fraction: float = 0.0) -> None:
        self._on_progress(EngineLoading(stage=stage, fraction=fraction))

    def of_download(self, done_bytes: int, total_bytes: int | None, what: str) -> None:
        self(what, done_bytes / total_bytes if total_bytes else 0.0)


# the machine ---------------------------------------------------------------------------------------------------------


def _select_kernels(config: EngineConfig, model_config: ModelConfig) -> KernelChoice:
    import torch

    from pellucid.kernels.select import select_kernels
    from pellucid.runner.machine import choose_device, choose_dtype

    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    device = choose_device(config.device)
    dtype = choose_dtype(config.dtype, model_config.torch_dtype, device)
    return select_kernels(config.kernels, device, dtype, config.num_threads)


def rule_preparations(files: ModelFiles, model_config: ModelConfig) -> Preparations | None:
    """What makes the rules of constrained requests; the vocabulary is read when the first of them comes.

    None for a model without a token that ends a text: nothing constrained could end.
    """
    vocab_size = model_config.vocab_size
    eos_token_ids = [token_id for token_id in model_config.eos_token_ids if token_id < vocab_size]
    if not eos_token_ids:
        return None

    def make_vocabulary() -> GrammarVocabulary:
        from pellucid.frontend.tokenizer import load_tokenizer

        return GrammarVocabulary(load_tokenizer(files), eos_token_ids, vocab_size)

    compiler = GrammarCompiler(make_vocabulary)

    def start(request: EngineCoreRequest) -> Future[object] | None:
        if not needs_rules(request.sampling_params):
            return None
        return compiler.run(lambda: OutputRules(request, compiler))

    return Preparations(start, COMPILE_TIMEOUT_S)


def _load_processors(config: EngineConfig, files: ModelFiles) -> list[LogitsProcessor]:
    from pellucid.sampling.logits_processors import load_logits_processors

    if not config.logits_processors:
        return []
    from pellucid.frontend.tokenizer import load_tokenizer  # for processors alone; the engine itself knows no text

    return load_logits_processors(config.logits_processors, load_tokenizer(files))


def _load_model(
    config: EngineConfig, files: ModelFiles, model_config: ModelConfig, kernels: Kernels, progress: _Progress
) -> Model:
    from pellucid.models.load import load_model

    longest = model_config.max_position_embeddings
    if config.max_model_len is not None and not 1 < config.max_model_len <= longest:
        raise ValueError(f"max_model_len={config.max_model_len}: the model can do 2 to {longest} tokens")
    return load_model(
        model_config,
        kernels,
        _weights(config, files, model_config, kernels, progress),
        quantization=config.quantization,
        on_progress=lambda fraction: progress("loading the weights", fraction),
        max_model_len=config.max_model_len,
    )


def _weights(
    config: EngineConfig, files: ModelFiles, model_config: ModelConfig, kernels: Kernels, progress: _Progress
) -> Iterator[tuple[str, WeightSource]]:
    from pellucid.loader.weights import iter_weights

    if config.int4_rounding not in INT4_ROUNDINGS:
        raise ValueError(f"int4_rounding={config.int4_rounding!r} is not known; there are {', '.join(INT4_ROUNDINGS)}")
    by_inputs = config.quantization == "int4" and config.int4_rounding == "inputs"
    if not by_inputs or kernels.name != "cpu":  # the other kernels say that they have no int4
        return iter_weights(files, model_config)
    from pellucid.frontend.tokenizer import load_tokenizer
    from pellucid.rounding.rounded import iter_rounded_weights

    return iter_rounded_weights(
        files,
        model_config,
        lambda text: load_tokenizer(files).encode(text, add_special_tokens=False),
        on_progress=lambda fraction: progress("rounding the weights to 4 bits (once for this model)", fraction),
        available_bytes=kv_memory.available_memory_bytes(),
    )


# the KV pool and the runner ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory, and how to make an engine of it. The last engine that was made has the KV pool."""

    config: EngineConfig
    files: ModelFiles
    model: Model
    choice: KernelChoice
    processors: Sequence[LogitsProcessor] = ()

    @property
    def kernels(self) -> Kernels:
        return self.choice.kernels

    @property
    def step_tokens(self) -> int:
        default = kv_memory.default_max_num_batched_tokens(self.kernels.device.type)
        return self.config.max_num_batched_tokens or default

    def engine_core(self, on_progress: OnProgress = lambda _: None) -> tuple[EngineCore, KVPoolPlan, str]:
        """An engine, its pool, and in words where the pool's size comes from."""
        config, progress = self.config, _Progress(on_progress)
        progress("sizing the KV pool")
        plan, arithmetic = self.plan_kv_pool()
        runner = self._runner(plan)
        progress("warming up")
        runner.warm_up(plan.num_blocks, plan.block_size, num_tokens=min(16, self.step_tokens), num_reqs=1)
        bus = EventBus()
        attach_event_log(bus, config.log_level)
        kv = KVCacheManager(plan.num_blocks, plan.block_size, config.enable_prefix_caching, bus)
        scheduler = Scheduler(SchedulerConfig(config.max_num_seqs, self.step_tokens, plan.max_model_len), kv, bus)
        preparations = rule_preparations(self.files, self.model.config)
        return EngineCore(scheduler, runner, self.model.config.vocab_size, bus, preparations), plan, arithmetic

    def plan_kv_pool(self) -> tuple[KVPoolPlan, str]:
        """The pool, and in words where its size comes from."""
        config = self.config
        block_bytes = self.model.kv_bytes_per_block(config.block_size, config.kv_cache_dtype)
        free_bytes, memory_bytes, arithmetic = self._kv_memory(block_bytes)
        plan = plan_kv_pool(
            block_size=config.block_size,
            block_bytes=block_bytes,
            memory_bytes=memory_bytes,
            model_max_len=self.model.config.max_position_embeddings,
            max_num_seqs=config.max_num_seqs,
            max_model_len=config.max_model_len,
            num_kv_blocks=config.num_kv_blocks,
        )
        if plan.memory_bytes > free_bytes:
            asked = "kv_cache_memory" if config.num_kv_blocks is None else f"num_kv_blocks={config.num_kv_blocks}"
            raise ValueError(
                f"{asked}: the KV pool would take {format_bytes(plan.memory_bytes)}, {format_bytes(free_bytes)} of "
                f"memory is free; the most that fits is {free_bytes // block_bytes} blocks"
            )
        return plan, arithmetic

    def _kv_memory(self, block_bytes: int) -> tuple[int, int, str]:
        """Bytes that are free, bytes for the pool, and the arithmetic in words."""
        config = self.config
        if self.kernels.device.type == "cuda":
            free_bytes, arithmetic = self._measure_gpu()
            default_bytes = free_bytes
        else:
            free_bytes = kv_memory.available_memory_bytes()
            longest = config.max_model_len or self.model.config.max_position_embeddings
            share = cpu_kv_bytes(free_bytes)
            default_bytes = kv_memory.default_cpu_kv_bytes(
                share, num_blocks_for(longest, config.block_size) * block_bytes
            )
            arithmetic = (
                f"{format_bytes(free_bytes)} of RAM is available with the weights loaded; the pool may take "
                f"{CPU_KV_SHARE:.0%} of it = {format_bytes(share)}, and takes no more than "
                f"{format_bytes(kv_memory.DEFAULT_CPU_KV_BYTES)} unless one request of max_model_len needs it"
            )
        if config.num_kv_blocks is not None:
            return free_bytes, free_bytes, f"--num-kv-blocks {config.num_kv_blocks}"
        if config.kv_cache_memory is not None:
            return free_bytes, config.kv_cache_memory, f"--kv-cache-memory {format_bytes(config.kv_cache_memory)}"
        return free_bytes, default_bytes, arithmetic

    def _measure_gpu(self) -> tuple[int, str]:
        """Bytes left for the pool after the largest step there can be, and the arithmetic in words."""
        import torch

        config = self.config
        num_reqs = min(config.max_num_seqs, self.step_tokens)
        per_request = -(-self.step_tokens // num_reqs)
        num_blocks = num_reqs * num_blocks_for(per_request, config.block_size)
        plan = KVPoolPlan(num_blocks, config.block_size, 0, max(per_request, self.model.max_model_len))
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self._runner(plan, compiled=False).warm_up(num_blocks, config.block_size, self.step_tokens, num_reqs)
        peak = torch.cuda.max_memory_allocated()
        self.model.allocate_kv_cache(1, config.block_size, config.kv_cache_dtype)
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        memory = accelerator_kv_bytes(total, free, peak, before, GPU_MEMORY_UTILIZATION)
        arithmetic = (
            f"{format_bytes(total)} x {GPU_MEMORY_UTILIZATION} - {format_bytes(total - free)} in use - "
            f"({format_bytes(peak)} - {format_bytes(before)}) for the largest step = {format_bytes(memory)}"
        )
        return memory, arithmetic

    def _runner(self, plan: KVPoolPlan, compiled: bool = True) -> ModelRunner:
        """Make the pool (in place of an earlier one) and a runner that works on it."""
        from pellucid.runner.batch_builder import BatchBuilder
        from pellucid.runner.model_runner import ModelRunner
        from pellucid.runner.prompt_logprobs import PromptLogprobs
        from pellucid.sampling.native_vocabulary import vocabulary_ops
        from pellucid.sampling.sampler import Sampler

        config, model = self.config, self.model
        model.allocate_kv_cache(plan.num_blocks, plan.block_size, config.kv_cache_dtype)
        forward: Any = model
        if compiled:
            forward = self.kernels.compile_forward(model, self.step_tokens, config.max_num_seqs)
        batches = BatchBuilder(
            block_size=plan.block_size,
            max_num_tokens=self.step_tokens,
            max_num_reqs=min(config.max_num_seqs, self.step_tokens, plan.num_blocks),  # each has a token and a block
            max_model_len=plan.max_model_len,
            device=self.kernels.device,
        )
        vocab_size = model.config.vocab_size
        ops = vocabulary_ops(self.kernels, vocab_size)
        sampler, prompt_logprobs = Sampler(vocab_size, ops), PromptLogprobs(vocab_size, ops)
        return ModelRunner(model, forward, batches, sampler, prompt_logprobs, self.processors)
