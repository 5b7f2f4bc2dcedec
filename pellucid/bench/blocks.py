"""`pellucid bench blocks`: the same requests in paged blocks and in contiguous slots."""

from __future__ import annotations

from collections.abc import Sequence

from pellucid.core.block_accounting import Reservation, contiguous_reservation
from pellucid.core.kv_cache_manager import KVCacheManager
from pellucid.core.messages import EngineCoreRequest
from pellucid.core.request import Request
from pellucid.sampling.params import SamplingParams


def block_report(request_tokens: Sequence[int], block_size: int, total_blocks: int) -> dict[str, object]:
    """Allocate requests of these lengths, all at once, in the engine's own KV cache manager, and say what it took.

    Raises ValueError for a length below 1, and where the requests need more than total_blocks.
    """
    if not request_tokens or min(request_tokens) < 1:
        raise ValueError(f"request_tokens={list(request_tokens)}: at least one request, each of at least one token")
    kv = KVCacheManager(total_blocks, block_size, enable_prefix_caching=False)
    for index, num_tokens in enumerate(request_tokens):
        request = Request(
            EngineCoreRequest(
                request_id=str(index), prompt_token_ids=[0] * num_tokens, sampling_params=SamplingParams(max_tokens=1)
            )
        )
        kv.admit(request, [])
    used_blocks = total_blocks - kv.num_free_blocks
    paged = Reservation(used_blocks * block_size, sum(request_tokens))
    contiguous = contiguous_reservation(request_tokens)
    return {
        "block_usage": {
            "allocated_tokens": paged.allocated_tokens,
            "block_utilization": paged.utilization,
            "free_blocks": kv.num_free_blocks,
            "internal_fragmentation_tokens": paged.internal_fragmentation_tokens,
            "reserved_tokens": paged.reserved_tokens,
            "used_blocks": used_blocks,
        },
        "contiguous_fixed_slot_baseline": {
            "internal_fragmentation_tokens": contiguous.internal_fragmentation_tokens,
            "reserved_tokens": contiguous.reserved_tokens,
            "utilization": contiguous.utilization,
        },
        "fragmentation_tokens_saved_vs_contiguous": contiguous.internal_fragmentation_tokens
        - paged.internal_fragmentation_tokens,
    }
