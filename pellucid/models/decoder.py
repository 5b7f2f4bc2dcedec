"""The decoder of Llama, Mistral, Qwen2, Qwen3 and Gemma 3: one model, told apart by its ModelConfig."""

from __future__ import annotations

import torch

from pellucid.kernels.forward_batch import ForwardBatch
from pellucid.kernels.interface import Kernels, KVCacheLayer
from pellucid.layers.attention import Attention
from pellucid.layers.embedding import Vocabulary
from pellucid.layers.mlp import GatedMLP
from pellucid.layers.norm import RMSNorm
from pellucid.layers.rotary import cos_sin_table
from pellucid.layers.slots import WeightSlots
from pellucid.models.config import ModelConfig
from pellucid.models.model import Model


class DecoderLayer:
    """residual += attention(norm(residual)); residual += mlp(norm(residual)).

    With config.sandwich_norm (Gemma), what attention and MLP add is normalised as well.
    """

    def __init__(
        self,
        kernels: Kernels,
        config: ModelConfig,
        cos_sin: torch.Tensor,
        sliding_window: int | None,
        quantization: str | None,
    ) -> None:
        self._attention = Attention(kernels, config, cos_sin, sliding_window, quantization)
        self._mlp = GatedMLP(kernels, config, quantization)

        def norm() -> RMSNorm:
            return RMSNorm(kernels, config.hidden_size, config.rms_norm_eps, config.norm_weight_plus_one)

        self._input_norm = norm()
        self._mlp_norm = norm()
        self._post_attention_norm = norm() if config.sandwich_norm else None
        self._post_mlp_norm = norm() if config.sandwich_norm else None

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None, kv_cache: KVCacheLayer, batch: ForwardBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x: what is still to be added to the residual stream (the first layer gets the embedding, and no residual).
        Both [T, hidden]; the addition is left to the next norm, which does both in one pass."""
        if residual is None:
            x, residual = self._input_norm(x), x
        else:
            x, residual = self._input_norm.add(x, residual)
        x = self._attention(x, kv_cache, batch)
        if self._post_attention_norm is not None:
            x = self._post_attention_norm(x)
        x, residual = self._mlp_norm.add(x, residual)
        x = self._mlp(x)
        if self._post_mlp_norm is not None:
            x = self._post_mlp_norm(x)
        return x, residual

    def slots(self, prefix: str) -> WeightSlots:
        slots = self._attention.slots(f"{prefix}self_attn.") | self._mlp.slots(f"{prefix}mlp.")
        slots |= self._input_norm.slots(f"{prefix}input_layernorm.")
        if self._post_attention_norm is None or self._post_mlp_norm is None:
            return slots | self._mlp_norm.slots(f"{prefix}post_attention_layernorm.")
        slots |= self._post_attention_norm.slots(f"{prefix}post_attention_layernorm.")
        slots |= self._mlp_norm.slots(f"{prefix}pre_feedforward_layernorm.")
        return slots | self._post_mlp_norm.slots(f"{prefix}post_feedforward_layernorm.")


class Decoder(Model):
    """Everything a forward pass does to activations goes through `kernels`, so that a backend can record it."""

    def __init__(
        self, config: ModelConfig, kernels: Kernels, max_model_len: int, quantization: str | None = None
    ) -> None:
        """max_model_len: positions to prepare for. quantization: "int8" or "int4", for the linear layers."""
        super().__init__(config, kernels, max_model_len)
        self._vocabulary = Vocabulary(kernels, config, quantization)
        layer_types = config.layer_types or ("full",) * config.num_layers
        tables = self._rotary_tables(layer_types)
        self._layers = [
            DecoderLayer(
                kernels,
                config,
                tables[layer_type],
                config.sliding_window if layer_type == "sliding" else None,
                quantization,
            )
            for layer_type in layer_types
        ]
        # logits are linear in the final norm's weight: scaling it scales them
        self._norm = RMSNorm(
            kernels, config.hidden_size, config.rms_norm_eps, config.norm_weight_plus_one, config.logit_scale
        )
        self._kv_cache: list[KVCacheLayer] = []

    def _rotary_tables(self, layer_types: tuple[str, ...]) -> dict[str, torch.Tensor]:
        config = self.config
        size, device = (config.head_dim, self.max_model_len), self.kernels.device
        full = cos_sin_table(size[0], config.rope_theta, size[1], config.rope_scaling, device)
        if config.rope_theta_local is None or "sliding" not in layer_types:
            return {"full": full, "sliding": full}
        return {"full": full, "sliding": cos_sin_table(size[0], config.rope_theta_local, size[1], None, device)}

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        x = self._vocabulary.embed(batch.input_ids)
        residual: torch.Tensor | None = None
        for layer, kv_cache in zip(self._layers, self._kv_cache, strict=True):
            x, residual = layer(x, residual, kv_cache, batch)
        return x if residual is None else self.kernels.add(x, residual)

    def final_hidden(self, hidden: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        return self._norm(self.kernels.select_rows(hidden, batch.logits_indices))

    def compute_logits(self, hidden: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        return self._vocabulary.logits(self.final_hidden(hidden, batch))

    def allocate_kv_cache(self, num_blocks: int, block_size: int, dtype: str = "auto") -> None:
        config = self.config
        self._kv_cache = []  # the old pool is freed before the new one is made
        self._kv_cache = self.kernels.allocate_kv_cache(
            config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_dim, dtype
        )

    def kv_bytes_per_block(self, block_size: int, dtype: str = "auto") -> int:
        config = self.config
        one_layer = self.kernels.kv_bytes_per_block(block_size, config.num_kv_heads, config.head_dim, dtype)
        return one_layer * config.num_layers

    def slots(self) -> WeightSlots:
        slots = self._vocabulary.slots() | self._norm.slots("model.norm.")
        for index, layer in enumerate(self._layers):
            slots |= layer.slots(f"model.layers.{index}.")
        return slots

    def ignored_keys(self) -> tuple[str, ...]:
        ignored = (r".*\.rotary_emb\.inv_freq", r".*\.self_attn\.(masked_)?bias")  # buffers, not parameters
        return (*ignored, r"lm_head\.weight") if self.config.tie_word_embeddings else ignored
