"""Sampling where a request says nothing: what the model's makers advise, or OpenAI's defaults if asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import RunningServer
from small_model import NAME, small_server

from pellucid.core.messages import EngineReady
from pellucid.server.terminal import greeting

ADVISED = {"temperature": 0.6, "top_k": 1}  # one candidate: whatever the seed, the same text
PROMPT = "How many sacks?"
ASK = [{"role": "user", "content": PROMPT}]


def completion(server: RunningServer, **more: Any) -> Any:
    body = {"model": NAME, "prompt": PROMPT, "max_tokens": 12, **more}
    return server.post("/v1/completions", **body).raise_for_status().json()["choices"][0]["text"]


def chat(server: RunningServer, **more: Any) -> Any:
    body = {"model": NAME, "messages": ASK, "max_tokens": 12, **more}
    return server.post("/v1/chat/completions", **body).raise_for_status().json()["choices"][0]["message"]


def plain(server: RunningServer, **more: Any) -> Any:
    body = {"prompt": PROMPT, "max_tokens": 12, **more}
    return server.post("/generate", **body).raise_for_status().json()["outputs"][0]["token_ids"]


def response(server: RunningServer, **more: Any) -> Any:
    body = {"model": NAME, "input": PROMPT, "max_output_tokens": 16, "store": False, **more}
    answer = server.post("/v1/responses", **body).raise_for_status().json()
    return [{**item, "id": ""} for item in answer["output"]]


def message(server: RunningServer, **more: Any) -> Any:
    body = {"model": NAME, "messages": ASK, "max_tokens": 12, **more}
    return server.post("/v1/messages", **body).raise_for_status().json()["content"]


DIALECTS = [completion, chat, plain, response, message]


def test_what_the_makers_advise_holds_in_every_dialect_unless_the_request_says_otherwise(tmp_path: Path) -> None:
    with small_server(tmp_path, **ADVISED) as server:
        assert "as its makers advise: temperature 0.6, top_k 1" in "".join(server.output)
        for ask in DIALECTS:
            assert all(ask(server) == ask(server, temperature=0) for _ in range(3)), ask.__name__
        drawn = [completion(server, top_k=0, temperature=1, seed=seed) for seed in range(4)]
        assert len(set(drawn)) > 1
        echo = server.post("/v1/responses", model=NAME, input=PROMPT, max_output_tokens=16, store=False).json()
        assert (echo["temperature"], echo["top_p"]) == (0.6, 1.0)


def test_none_brings_back_the_defaults_of_openai(tmp_path: Path) -> None:
    with small_server(tmp_path, "--generation-config", "none", **ADVISED) as server:
        assert "makers advise" not in "".join(server.output)
        assert len({completion(server, seed=seed) for seed in range(4)}) > 1
        assert completion(server, seed=3) == completion(server, seed=3, temperature=1, top_p=1, top_k=0)


def test_the_greeting_names_what_weights_were_rounded_to() -> None:
    def line(**details: str) -> str:
        ready = EngineReady(
            max_model_len=512, num_blocks=8, block_size=16, vocab_size=9, max_num_seqs=4, max_num_batched_tokens=64,
            device="cpu", dtype="bfloat16", kernels="cpu", details=details,
        )  # fmt: skip
        return greeting("http://here", "m", ready, asks_for_key=False).splitlines()[1]

    assert line(quantization="none").startswith("  cpu, bfloat16, cpu kernels; context 512")
    assert line(quantization="int8").startswith("  cpu, bfloat16 with weights in int8, cpu kernels; context 512")
