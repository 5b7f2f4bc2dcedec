"""The tensors of one step: a ragged batch, one row a token, the requests one after another."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class ForwardBatch:
    """Everything a model and its attention need beside the weights; passed as an argument, never a global.

    T tokens of R requests. All integer tensors are int32 on the model's device.
    input_ids, positions: [T].
    query_start_loc: [R + 1]; request r owns rows query_start_loc[r] : query_start_loc[r + 1].
    seq_lens: [R], tokens whose keys exist once this step's are written (so the last query of r is at seq_lens[r] - 1).
    slot_mapping: [T], block_id * block_size + offset, where each token's key and value go.
    block_table: [R, max_blocks], padded with 0.
    logits_indices: [L], rows whose logits are wanted, ascending.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    slot_mapping: torch.Tensor
    block_table: torch.Tensor
    logits_indices: torch.Tensor
    block_size: int

    @property
    def num_tokens(self) -> int:
        return self.input_ids.shape[0]

    @property
    def num_reqs(self) -> int:
        return self.seq_lens.shape[0]
