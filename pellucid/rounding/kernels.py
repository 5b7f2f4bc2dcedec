"""A forward pass that rounds every linear layer to 4 bits when it first comes to it.

It goes over a text twice at once: the first half of the rows meets the weights as they are, the second the rounded
ones. So a layer is rounded for the inputs that the rounded layers before it will give it, and towards the outputs that
the exact model has in that place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from pellucid.kernels.int4 import GROUP, INT4
from pellucid.kernels.torch.attention import KVCache
from pellucid.kernels.torch.weight import TorchLinearWeight, stack_parts
from pellucid.kernels.torch_kernels import TorchKernels
from pellucid.kernels.weights import LinearWeight, QuantizedTensor, WeightSource, total_rows
from pellucid.rounding.matrix import round_matrix, towards

FOUR_BIT_TYPES = ("Q4_0", "Q4_1", "Q4_K")  # of GGUF
VOCABULARY = ("model.embed_tokens.weight", "lm_head.weight")

# Of float32, that exist at once while a layer is rounded, measured: matrices of its size, moments of its inputs, and
# (as wide as the widest) activations. Of moments, 4 to 9 in runs of the same layer on the same machine: the most.
MATRICES, MOMENTS, ACTIVATIONS = 7, 9, 2

OnRounded = Callable[[str, QuantizedTensor], None]  # a part's name in the checkpoint, and what it has become


@dataclass
class _Unrounded(LinearWeight):
    """A layer that is still as the checkpoint has it (views of its file), and the names of its parts there.

    has_4_bits: it has been rounded before this program saw it, and stays so.
    """

    names: list[str]
    parts: list[WeightSource]
    bias: torch.Tensor | None
    has_4_bits: bool

    def __post_init__(self) -> None:
        self.out_features, self.in_features = total_rows(self.parts), self.parts[0].shape[1]
        self.num_bytes = 0


class _Vocabulary(LinearWeight):
    """The embedding or the head as the checkpoint has it: of the one a text wants some rows, of the other none."""

    def __init__(self, matrix: WeightSource) -> None:
        self.matrix = matrix
        self.out_features, self.in_features = matrix.shape
        self.num_bytes = 0

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """float32 [len(indices), in_features]."""
        matrix = self.matrix
        if isinstance(matrix, QuantizedTensor):
            data = matrix.data[indices.numpy()]
            return QuantizedTensor(data, matrix.ggml_type, (len(data), self.in_features)).dequantize()
        return matrix[indices].float()


class RoundingKernels(TorchKernels):
    """on_rounded: called for each part of each layer that is to be int4. Layers whose rows are no whole number of
    groups stay as they are. For one forward pass, of a batch whose second half is its first half again.
    """

    def __init__(self, on_rounded: OnRounded) -> None:
        super().__init__("cpu", torch.float32)
        self._on_rounded = on_rounded
        self._names: dict[int, str] = {}  # by the id() of a source that waits to be packed
        self.num_parts = 0  # that are to be rounded
        self._most_work_bytes = self._rounded_bytes = self._widest = 0

    def named(self, weights: Iterable[tuple[str, WeightSource]]) -> Iterator[tuple[str, WeightSource]]:
        """The same, remembering names: layers are packed without them."""
        for name, source in weights:
            self._names[id(source)] = name
            yield name, source

    def pack_linear(
        self, parts: Sequence[WeightSource], bias: torch.Tensor | None = None, quantization: str | None = None
    ) -> LinearWeight:
        if self._names[id(parts[0])] in VOCABULARY:
            return _Vocabulary(parts[0])
        if quantization != "int4" or parts[0].shape[1] % GROUP:
            return super().pack_linear(parts, bias)
        has_4_bits = all(isinstance(part, QuantizedTensor) and part.ggml_type in FOUR_BIT_TYPES for part in parts)
        if not has_4_bits:
            self.num_parts += len(parts)
            self._count(total_rows(parts), parts[0].shape[1])
        return _Unrounded([self._names[id(part)] for part in parts], list(parts), bias, has_4_bits)

    def _count(self, rows: int, columns: int) -> None:
        self._rounded_bytes += rows * columns * 5 // 8
        self._most_work_bytes = max(self._most_work_bytes, 4 * columns * (MATRICES * rows + MOMENTS * columns))
        self._widest = max(self._widest, rows, columns)

    def memory_bytes(self, num_tokens: int) -> int:
        """What a pass over so many rows takes at most, roughly, once the model is loaded: all that has been rounded,
        and what is at work at the largest layer and around it."""
        return self._rounded_bytes + self._most_work_bytes + 4 * ACTIVATIONS * num_tokens * self._widest

    def allocate_kv_cache(
        self, num_layers: int, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: str = "auto"
    ) -> list[KVCache]:
        """One for all layers: no layer reads what another wrote in the same pass."""
        return super().allocate_kv_cache(1, num_blocks, block_size, num_kv_heads, head_dim, dtype) * num_layers

    def embedding(self, input_ids: torch.Tensor, weight: LinearWeight, scale: float = 1.0) -> torch.Tensor:
        assert isinstance(weight, _Vocabulary)
        wanted, places = torch.unique(input_ids.long(), return_inverse=True)
        return super().embedding(places, TorchLinearWeight(weight.rows(wanted), None), scale)

    def linear(self, x: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
        if not isinstance(weight, _Unrounded):
            return super().linear(x, weight)
        bias = None if weight.bias is None else weight.bias.float()
        exact = TorchLinearWeight(stack_parts(weight.parts, torch.float32, self.device), bias)
        if weight.has_4_bits:
            return super().linear(x, exact)
        half = len(x) // 2
        exact_x, x = x[:half], x[half:]
        wanted = super().linear(exact_x, exact)
        exact.weight = self._rounded(weight, exact.weight, exact_x, x)
        return torch.cat([wanted, super().linear(x, exact)])

    def _rounded(self, layer: _Unrounded, weight: torch.Tensor, exact_x: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        moment = x.T @ x / len(x)
        rows = round_matrix(towards(weight, moment, x.T @ (exact_x - x) / len(x)), moment)
        data, columns, first = rows.to_bytes(), weight.shape[1], 0
        for name, part in zip(layer.names, layer.parts, strict=True):
            last = first + part.shape[0]
            self._on_rounded(name, QuantizedTensor(data[first:last], INT4, (part.shape[0], columns)))
            first = last
        return torch.from_numpy(rows.values())
