"""How much memory the KV cache takes, and how large a pool fits: the arithmetic of `pellucid plan` and the runner."""

from __future__ import annotations

from dataclasses import dataclass

from pellucid.core.block_accounting import num_blocks_for

CPU_KV_SHARE = 0.4  # of the memory that is available once the weights are loaded


def kv_block_bytes(num_layers: int, num_kv_heads: int, head_dim: int, block_size: int, bytes_per_value: int = 2) -> int:
    """One block over all layers, keys and values."""
    return kv_cache_bytes(num_layers, num_kv_heads, head_dim, block_size, 1, bytes_per_value)


def kv_cache_bytes(
    num_layers: int, num_kv_heads: int, head_dim: int, seq_len: int, batch_size: int, bytes_per_value: int = 2
) -> int:
    """Keys and values of batch_size sequences of seq_len tokens."""
    return 2 * num_layers * num_kv_heads * head_dim * seq_len * batch_size * bytes_per_value


def weight_bytes(num_parameters: int, bytes_per_parameter: float) -> int:
    return round(num_parameters * bytes_per_parameter)


def accelerator_kv_bytes(
    total_bytes: int, free_bytes: int, peak_bytes: int, current_bytes: int, memory_utilization: float
) -> int:
    """What an accelerator has for the KV pool, measured after a warm-up at the largest batch.

    total_bytes, free_bytes: the device's, now. peak_bytes, current_bytes: allocated by this process at the worst and
    now; the activations that come and go again need the difference. memory_utilization: the share of the device that
    this process may fill, 0 to 1. Never negative.
    """
    if not 0.0 < memory_utilization <= 1.0:
        raise ValueError(f"memory_utilization={memory_utilization}: must be above 0 and at most 1")
    used_bytes = total_bytes - free_bytes
    return max(int(total_bytes * memory_utilization - used_bytes - peak_bytes + current_bytes), 0)


def cpu_kv_bytes(available_bytes: int, share: float = CPU_KV_SHARE) -> int:
    """What a machine without an accelerator gives the KV pool, of the RAM available after the weights are loaded."""
    return int(available_bytes * share)


@dataclass(frozen=True)
class KVPoolPlan:
    num_blocks: int
    block_size: int
    block_bytes: int  # over all layers
    max_model_len: int

    @property
    def memory_bytes(self) -> int:
        return self.num_blocks * self.block_bytes

    @property
    def num_tokens(self) -> int:
        return self.num_blocks * self.block_size

    def describe(self) -> str:
        """The arithmetic in one line, for the log and for `pellucid plan`."""
        return (
            f"KV pool: {self.num_blocks} blocks x {self.block_size} tokens x "
            f"{format_bytes(self.block_bytes / self.block_size)} a token = {format_bytes(self.memory_bytes)}; "
            f"{self.num_tokens / self.max_model_len:.1f} requests of max_model_len={self.max_model_len} at once"
        )


def plan_kv_pool(
    *,
    block_size: int,
    block_bytes: int,
    memory_bytes: int,
    model_max_len: int,
    max_num_seqs: int,
    max_model_len: int | None = None,
    num_kv_blocks: int | None = None,
) -> KVPoolPlan:
    """Size the pool, and the longest request with it.

    memory_bytes: the room there is. model_max_len: what the model was trained for. max_model_len: what was asked for;
    None lets it shrink to what fits. num_kv_blocks: what was asked for, whatever room there is; None takes the room,
    but no more than max_num_seqs requests of max_model_len can use.
    Raises ValueError, with the numbers and the way out, where what was asked for does not fit.
    """
    if max_model_len is not None and not 1 < max_model_len <= model_max_len:
        raise ValueError(f"max_model_len={max_model_len}: the model can do 2 to {model_max_len} tokens")
    wanted = max_model_len or model_max_len
    if num_kv_blocks is None:
        num_blocks = min(memory_bytes // block_bytes, max_num_seqs * num_blocks_for(wanted, block_size))
    else:
        num_blocks = num_kv_blocks
    if num_blocks < 1:
        raise ValueError(
            f"a KV block of {block_size} tokens takes {format_bytes(block_bytes)}, {format_bytes(memory_bytes)} is "
            f"free (give --kv-cache-memory, or a smaller --block-size)"
        )
    fits = num_blocks * block_size
    if wanted > fits and max_model_len is not None:
        needed = num_blocks_for(wanted, block_size) * block_bytes
        if num_kv_blocks is not None:
            remedy = f"--num-kv-blocks {num_blocks_for(wanted, block_size)}"
        else:
            remedy = f"--kv-cache-memory {-(-needed // 2**20)}MiB"
        raise ValueError(
            f"max_model_len={wanted} needs {format_bytes(needed)} of KV cache, "
            f"{format_bytes(num_blocks * block_bytes)} is free; the largest that fits is {fits} (or give {remedy})"
        )
    return KVPoolPlan(num_blocks, block_size, block_bytes, min(wanted, fits))


def format_bytes(num_bytes: float) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes:.0f} bytes"
