"""Checkpoints for tests: small random models of every family, as transformers saves them, with a real tokenizer.

`make_tiny_checkpoint(directory, "llama3")` takes some 0.1 s (after importing transformers). The weights are random but
lively: every part of the network moves the logits, and greedy decoding does not get stuck.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

VOCAB_SIZE = 512
END_OF_TEXT, TURN_START, TURN_END = SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_TEXT_ID, TURN_START_ID, TURN_END_ID = 0, 1, 2
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEXT = """
The mill stood where the river bends, and the miller counted sacks by the light of the window. Each morning he opened
the gate, the water turned the wheel, and the wheel turned the stones; each evening he closed it, and there was quiet.
What is the capital of France? The capital of France is Paris. user assistant system 0 1 2 3 4 5 6 7 8 9
"How many sacks?" asked the boy. "Twelve," said the miller, "and two for the road."
def step(self): return self.scheduler.update_from_output(scheduled, self.runner.execute(scheduled))
Zwölf Säcke, naïve café, 磨坊在河边, мельница у реки, 🙂🚀
"""


def _sizes(**changed: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
        "bos_token_id": END_OF_TEXT_ID,
        "eos_token_id": TURN_END_ID,
        "pad_token_id": END_OF_TEXT_ID,
        **changed,
    }


def _llama3() -> PreTrainedConfig:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    }
    return LlamaConfig(**_sizes(num_attention_heads=6, hidden_size=96, rope_parameters=rope))


def _llama_yarn() -> PreTrainedConfig:
    rope = {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 256,
    }
    return LlamaConfig(**_sizes(rope_parameters=rope, attention_bias=True, mlp_bias=True))


def _gemma3() -> PreTrainedConfig:
    layer_types = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    return Gemma3TextConfig(
        **_sizes(
            num_hidden_layers=len(layer_types),
            layer_types=layer_types,
            head_dim=32,
            sliding_window=40,
            query_pre_attn_scalar=24,
            tie_word_embeddings=True,
            rope_parameters={
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1_000_000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        )
    )


FAMILIES: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama3": _llama3,
    "llama_tied": lambda: LlamaConfig(**_sizes(tie_word_embeddings=True, head_dim=20)),
    "llama_yarn_biased": _llama_yarn,
    "mistral": lambda: MistralConfig(**_sizes(sliding_window=50, head_dim=24)),
    "qwen2": lambda: Qwen2Config(**_sizes(num_attention_heads=8, num_key_value_heads=1)),
    "qwen3": lambda: Qwen3Config(**_sizes(head_dim=32)),
    "gemma3": _gemma3,
}


def make_tiny_checkpoint(
    directory: Path, family: str = "llama_tied", *, seed: int = 0, dtype: torch.dtype = torch.float32, **changed: Any
) -> Path:
    """Write config, safetensors, generation_config and tokenizer (byte-level BPE, ChatML template) into `directory`.

    family: one of FAMILIES. changed: fields of the HF config that shall be otherwise. Returns `directory`.
    """
    make_tiny_model(family, seed=seed, dtype=dtype, **changed).save_pretrained(directory)
    tiny_tokenizer().save_pretrained(directory)
    generation = {"bos_token_id": END_OF_TEXT_ID, "eos_token_id": [TURN_END_ID, END_OF_TEXT_ID]}
    (directory / "generation_config.json").write_text(json.dumps(generation))
    return directory


def make_tiny_model(
    family: str = "llama_tied", *, seed: int = 0, dtype: torch.dtype = torch.float32, **changed: Any
) -> PreTrainedModel:
    """The model itself, as transformers runs it."""
    config = FAMILIES[family]()
    for name, value in changed.items():
        setattr(config, name, value)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_lively(name, parameter, family, generator))
    return model.to(dtype)


def _lively(name: str, parameter: torch.Tensor, family: str, generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(parameter.shape, generator=generator)
    if "norm" in name:
        return 0.2 * noise + (0.0 if family == "gemma3" else 1.0)
    if name.endswith("bias"):
        return 0.3 * noise
    if "embed_tokens" in name and family == "gemma3":
        return noise * 3.0 * parameter.shape[1] ** -0.5  # it is scaled by the root of its width
    gain = 2.5 if "q_proj" in name or "k_proj" in name else 1.5
    return noise * gain * parameter.shape[1] ** -0.5


@cache
def tiny_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=alphabet,
        show_progress=False,
        min_frequency=1,
    )
    tokenizer.train_from_iterator(_lines(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        chat_template=CHAT_TEMPLATE,
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )


def _lines() -> Iterator[str]:
    yield from TEXT.strip().splitlines()
