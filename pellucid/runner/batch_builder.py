"""From the scheduler's decision to the tensors of a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch

from pellucid.core.request import Request
from pellucid.core.scheduler_output import ScheduledRequest, SchedulerOutput
from pellucid.kernels.forward_batch import ForwardBatch

_ALIGNMENT = 16  # int32 elements: each tensor of a batch begins at a cache line


class BlockTableRows:
    """The block tables of the running requests as rows of one matrix, so that a step only copies what is new.

    A row holds a request's blocks and then zeros. A table is append-only while its request runs; after a preemption it
    is another list, by which it is known that the row must be written anew.
    """

    def __init__(self, num_rows: int, max_blocks: int) -> None:
        """num_rows: to begin with; there will be more when they are needed. max_blocks: of one request."""
        self.matrix = np.zeros((num_rows, max_blocks), np.int32)
        self._rows: dict[str, int] = {}
        self._tables: list[list[int]] = [[] for _ in range(num_rows)]  # what each row is a copy of ...
        self._lengths = [0] * num_rows  # ... and how much of it
        self._free = list(range(num_rows))[::-1]

    def row_of(self, request: Request) -> int:
        """The index of the request's row, which is up to date on return."""
        table = request.block_table
        row = self._rows.get(request.request_id)
        if row is None:
            row = self._rows[request.request_id] = self._take_row()
        length = self._lengths[row]
        if self._tables[row] is not table:
            self.matrix[row, :length] = 0
            self._tables[row], length = table, 0
        if len(table) > length:
            self.matrix[row, length : len(table)] = table[length:]
            self._lengths[row] = len(table)
        return row

    def forget(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            row = self._rows.pop(request_id, None)
            if row is not None:
                self.matrix[row, : self._lengths[row]] = 0
                self._tables[row], self._lengths[row] = [], 0
                self._free.append(row)

    def _take_row(self) -> int:
        if not self._free:
            num_rows = len(self.matrix)
            self.matrix = np.concatenate([self.matrix, np.zeros_like(self.matrix)])
            self._tables += [[] for _ in range(num_rows)]
            self._lengths += [0] * num_rows
            self._free = list(range(num_rows, 2 * num_rows))[::-1]
        return self._free.pop()


class BatchBuilder:
    """One ForwardBatch a step, in one stretch of memory that the next step uses again (and that a device gets in one
    copy): a batch is good until the next one is built. On the CPU the tensors of a step of the same shape are the same
    objects: while the same requests decode, none is made anew.
    """

    def __init__(
        self,
        *,
        block_size: int,
        max_num_tokens: int,
        max_num_reqs: int,
        max_model_len: int,
        device: torch.device | str = "cpu",
    ) -> None:
        """max_num_tokens, max_num_reqs: of a step. max_model_len: the longest a request becomes."""
        self._block_size = block_size
        self._max_num_tokens = max_num_tokens
        self._max_num_reqs = max_num_reqs
        self._device = torch.device(device)
        max_blocks = -(-max_model_len // block_size)
        self._rows = BlockTableRows(max_num_reqs, max_blocks)
        self._token_indices = np.arange(max_num_tokens, dtype=np.int32)
        capacity = 3 * max_num_tokens + 3 * (max_num_reqs + 1) + max_num_reqs * max_blocks + 7 * _ALIGNMENT
        on_device = self._device.type == "cuda"
        self._staging = torch.zeros(capacity, dtype=torch.int32, pin_memory=on_device)
        self._host = self._staging.numpy()
        self._views: dict[str, torch.Tensor] = {}  # of the last batch ...
        self._shapes: list[tuple[int, ...]] = []  # ... and their shapes

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop what is kept for these requests; if they come back it is made again."""
        self._rows.forget(request_ids)

    def build(self, scheduled: SchedulerOutput) -> ForwardBatch:
        """logits_indices: the last row of each request that samples, in order."""
        shares = scheduled.requests
        num_reqs = len(shares)
        rows = np.fromiter((self._rows.row_of(share.request) for share in shares), np.int32, num_reqs)
        starts = np.fromiter((share.start for share in shares), np.int32, num_reqs)
        lengths = np.fromiter((share.num_tokens for share in shares), np.int32, num_reqs)
        input_ids = _input_ids(shares)
        num_tokens = len(input_ids)
        if num_tokens > self._max_num_tokens or num_reqs > self._max_num_reqs:
            raise ValueError(f"a step of {num_tokens} tokens of {num_reqs} requests is larger than was prepared for")

        ends = np.cumsum(lengths, dtype=np.int32)
        seq_lens = starts + lengths
        if num_tokens == num_reqs:  # one token each
            positions, row_of_token = starts, rows
        else:
            positions = self._token_indices[:num_tokens] + np.repeat(seq_lens - ends, lengths)
            row_of_token = np.repeat(rows, lengths)
        blocks, offsets = np.divmod(positions, self._block_size)
        slot_mapping = self._rows.matrix[row_of_token, blocks] * self._block_size + offsets
        width = -(-int(seq_lens.max()) // self._block_size)
        samples = np.fromiter((share.samples for share in shares), np.bool_, num_reqs)

        query_start_loc = np.zeros(num_reqs + 1, np.int32)
        query_start_loc[1:] = ends
        arrays = {
            "input_ids": np.array(input_ids, np.int32),
            "positions": positions,
            "query_start_loc": query_start_loc,
            "seq_lens": seq_lens,
            "slot_mapping": slot_mapping,
            "block_table": self._rows.matrix[rows, :width],
            "logits_indices": ends[samples] - 1,
        }
        return self._in_staging_memory(arrays)

    def _in_staging_memory(self, arrays: Mapping[str, np.ndarray]) -> ForwardBatch:
        """The arrays one after another in the staging memory, and views of it or of its copy on the device."""
        begins = []
        end = 0
        for array in arrays.values():
            begins.append(end)
            self._host[end : end + array.size] = array.reshape(-1)
            end += -(-array.size // _ALIGNMENT) * _ALIGNMENT
        shapes = [array.shape for array in arrays.values()]
        on_cpu = self._device.type == "cpu"
        if not on_cpu or shapes != self._shapes:
            whole = self._staging[:end]
            if not on_cpu:
                whole = whole.to(self._device, non_blocking=True)
            self._views = {
                name: whole[begin : begin + array.size].view(array.shape)
                for begin, (name, array) in zip(begins, arrays.items(), strict=True)
            }
            self._shapes = shapes
        return ForwardBatch(**self._views, block_size=self._block_size)


def _input_ids(shares: Sequence[ScheduledRequest]) -> list[int]:
    token_ids: list[int] = []
    for share in shares:
        if share.num_tokens == 1:
            token_ids.append(share.request.token_ids[share.start])
        else:
            token_ids += share.request.token_ids[share.start : share.start + share.num_tokens]
    return token_ids
