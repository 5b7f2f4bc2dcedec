"""What an engine is told at start. Torch-free, so that the front end and `--help` stay quick."""

from __future__ import annotations

import msgspec


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """None means: choose what is right for the machine and the model at hand."""

    model: str  # a directory, a .gguf file, a hub id, or pypi:PACKAGE
    served_model_name: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    quantization: str | None = None  # int8 | int4 at load; None keeps what the file has, also GGUF blocks
    int4_rounding: str = "inputs"  # inputs: by what each matrix is multiplied with | nearest: each weight by itself
    kv_cache_dtype: str = "auto"
    kernels: str = "auto"  # auto | torch | cpu
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    block_size: int = 16
    num_kv_blocks: int | None = None
    kv_cache_memory: int | None = None  # bytes
    enable_prefix_caching: bool = True
    seed: int | None = None  # for requests that bring none; None: drawn
    num_threads: int | None = None
    local_files_only: bool = False
    logits_processors: tuple[str, ...] = ()  # "package.module:Class"
    log_level: str = "warning"  # error | warning | info (how requests come and go) | trace (a line an event)
