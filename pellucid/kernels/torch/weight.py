"""How the torch backend keeps a linear layer: one dense matrix in the backend's dtype."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from pellucid.kernels.weights import LinearWeight, QuantizedTensor, WeightSource, total_rows

ROWS_AT_ONCE = 8192  # a vocabulary in float32 would not fit beside the rest: dequantise it piece by piece


class TorchLinearWeight(LinearWeight):
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight = weight
        self.bias = bias
        self.out_features, self.in_features = weight.shape
        self.num_bytes = weight.nbytes + (bias.nbytes if bias is not None else 0)


def stack_parts(parts: Sequence[WeightSource], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[sum of out_i, in] from the parts, whatever their formats. Raises ValueError where they do not fit together."""
    columns = {part.shape[1] for part in parts if len(part.shape) == 2}
    if len(columns) != 1 or any(len(part.shape) != 2 for part in parts):
        raise ValueError(f"matrices of shapes {[tuple(part.shape) for part in parts]} can't be stacked")
    weight = torch.empty(total_rows(parts), columns.pop(), dtype=dtype, device=device)
    row = 0
    for part in parts:
        for piece in _pieces(part):
            weight[row : row + piece.shape[0]] = piece
            row += piece.shape[0]
    return weight


def _pieces(part: WeightSource) -> Iterator[torch.Tensor]:
    if isinstance(part, torch.Tensor):
        yield part
        return
    rows, columns = part.shape
    for first in range(0, rows, ROWS_AT_ONCE):
        data = part.data[first : first + ROWS_AT_ONCE]
        yield QuantizedTensor(data, part.ggml_type, (data.shape[0], columns)).dequantize()
