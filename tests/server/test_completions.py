"""/v1/completions and /generate: prompts in every form, echo and logprobs as lm-eval reads them."""

from __future__ import annotations

from typing import Any

import pytest
from harness import RunningServer, events_of, scripted_server

GREEDY = {"model": "m", "temperature": 0}


def complete(server: RunningServer, prompt: Any, **more: Any) -> dict[str, Any]:
    return server.post("/v1/completions", **{**GREEDY, "prompt": prompt, **more}).raise_for_status().json()


def stream(server: RunningServer, prompt: Any, path: str = "/v1/completions", **more: Any) -> list[Any]:
    body = {**(GREEDY if path != "/generate" else {"temperature": 0}), "prompt": prompt, "stream": True, **more}
    with server.client.stream("POST", path, json=body) as response:
        assert response.status_code == 200, response.read()
        return events_of(response)


def test_every_form_of_prompt_gives_its_choices_in_order(scripted: RunningServer) -> None:
    assert complete(scripted, "say hi")["choices"][0]["text"] == "hi"
    assert complete(scripted, list(b"say hi"))["choices"][0]["text"] == "hi"
    for prompts in (["say a", "say bc"], [list(b"say a"), list(b"say bc")]):
        answer = complete(scripted, prompts, n=2)
        assert [(c["index"], c["text"]) for c in answer["choices"]] == [(0, "a"), (1, "a"), (2, "bc"), (3, "bc")]
        assert answer["usage"]["prompt_tokens"] == 11
        assert answer["usage"]["completion_tokens"] == 2 * 2 + 2 * 3


def test_prompts_and_n_together_are_bounded(scripted: RunningServer) -> None:
    """Each within its own bound: 2048 prompts of 128 choices would keep the server busy for minutes."""
    response = scripted.post("/v1/completions", model="m", prompt=["x"] * 2048, n=2, max_tokens=1)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("integer_above_max_value", "n")
    assert "<= 1 with 2048 prompts" in error["message"]


def test_many_prompts_stream_as_one(scripted: RunningServer) -> None:
    prompts = [f"say {'x' * i}" for i in range(1, 9)]
    events = stream(scripted, prompts, n=2, stream_options={"include_usage": True})
    assert events.pop() == "[DONE]"
    usage = events.pop()["usage"]
    texts: dict[int, str] = {}
    for event in events:
        for choice in event["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    assert texts == {2 * i + j: "x" * (i + 1) for i in range(8) for j in range(2)}
    assert usage["completion_tokens"] == 2 * sum(range(2, 10))


def test_sixteen_tokens_unless_told(scripted: RunningServer) -> None:
    choice = complete(scripted, "x")["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("abcdefghijklmnop", "length")


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_echo_with_logprobs_has_the_shape_that_lm_eval_reads(scripted: RunningServer, max_tokens: int) -> None:
    for prompt in ("some text", list(b"some text")):
        answer = complete(scripted, prompt, echo=True, logprobs=1, max_tokens=max_tokens)
        choice = answer["choices"][0]
        found = choice["logprobs"]
        expected = "some text" + "a" * max_tokens
        assert choice["text"] == expected
        assert found["tokens"] == list(expected)
        assert found["text_offset"] == list(range(len(expected)))
        assert found["token_logprobs"] == [None] + [-0.25] * (len(expected) - 1)
        assert found["top_logprobs"] == [None] + [{token: -0.25} for token in expected[1:]]
        assert answer["usage"]["completion_tokens"] == max_tokens
        assert choice["finish_reason"] == "length"


def test_echo_with_logprobs_goes_together_with_prompt_logprobs(scripted: RunningServer) -> None:
    choice = complete(scripted, "say hi", echo=True, logprobs=1, prompt_logprobs=2, max_tokens=1)["choices"][0]
    assert choice["logprobs"]["tokens"][:3] == ["s", "a", "y"]
    assert min(len(entry) for entry in choice["prompt_logprobs"][1:]) >= 2


def test_echo_alone_puts_the_prompt_before_each_choice(scripted: RunningServer) -> None:
    answer = complete(scripted, ["say a", "say b"], echo=True)
    assert [choice["text"] for choice in answer["choices"]] == ["say aa", "say bb"]
    texts = ["", ""]
    for event in stream(scripted, ["say a", "say b"], echo=True)[:-1]:
        texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert texts == ["say aa", "say bb"]


def test_logprobs_are_the_same_streamed_and_whole(scripted: RunningServer) -> None:
    whole = complete(scripted, "say h\u00e9y", logprobs=3, echo=True)["choices"][0]["logprobs"]
    assert whole["text_offset"] == [0, 1, 2, 3, 4, 5, 6, 6, 7, 8, 9, 9, 10]
    assert whole["tokens"][5:7] == ["bytes:\\xc3", "bytes:\\xa9"]
    assert len(whole["top_logprobs"][-1]) == 3
    parts: dict[str, list[Any]] = {key: [] for key in whole}
    for event in stream(scripted, "say h\u00e9y", logprobs=3, echo=True)[:-1]:
        for key, values in (event["choices"][0]["logprobs"] or {}).items():
            parts[key] += values
    assert parts == whole


def test_every_choice_of_a_stream_echoes_the_prompt_with_its_logprobs() -> None:
    """One runs at a time, so that the second begins long after the prompt's logprobs have come."""
    asked: dict[str, Any] = {"n": 2, "echo": True, "logprobs": 1, "prompt_logprobs": 1}
    with scripted_server(config={"max_num_seqs": 1}, script={"step_ms": 20}) as server:
        wholes = complete(server, "say hello", **asked)["choices"]
        events = stream(server, "say hello", **asked)[:-1]
    for whole in wholes:
        mine = [event["choices"][0] for event in events if event["choices"][0]["index"] == whole["index"]]
        logprobs = [logprob for choice in mine for logprob in choice["logprobs"]["token_logprobs"]]
        assert logprobs == whole["logprobs"]["token_logprobs"]
        assert [c["prompt_logprobs"] for c in mine if "prompt_logprobs" in c] == [whole["prompt_logprobs"]]


def test_token_ids_on_each_choice(scripted: RunningServer) -> None:
    choice = complete(scripted, "say hi", return_token_ids=True)["choices"][0]
    assert choice["token_ids"] == [*b"hi", 256]
    assert choice["prompt_token_ids"] == list(b"say hi")
    events = stream(scripted, "say hi", return_token_ids=True)[:-1]
    assert [t for event in events for t in event["choices"][0]["token_ids"]] == [*b"hi", 256]


def test_generate_gives_everything_plainly(scripted: RunningServer) -> None:
    body = {"prompt": "say hi", "temperature": 0, "logprobs": 1, "return_token_ids": True}
    answer = scripted.post("/generate", **body).raise_for_status().json()
    output = answer["outputs"][0]
    assert (output["text"], output["token_ids"], output["finish_reason"]) == ("hi", [*b"hi", 256], "stop")
    assert [entry["token"] for entry in output["logprobs"]] == ["h", "i", "<eos>"]
    assert answer["prompt_token_ids"] == list(b"say hi")
    events = stream(scripted, "say hi", "/generate")
    assert events.pop() == "[DONE]"
    assert events.pop()["usage"] == answer["usage"] | {"prompt_tokens_details": {"cached_tokens": 0}}
    assert "".join(event["outputs"][0]["text"] for event in events) == "hi"


def test_tokenize_and_detokenize_as_in_vllm(scripted: RunningServer) -> None:
    answer = scripted.post("/tokenize", prompt="h\u00e9", return_token_strs=True).json()
    expected = {"count": 3, "max_model_len": 2048, "tokens": [104, 0xC3, 0xA9]}
    assert answer == {**expected, "token_strs": ["h", "bytes:\\xc3", "bytes:\\xa9"]}
    assert scripted.post("/detokenize", tokens=answer["tokens"]).json() == {"prompt": "h\u00e9"}
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert scripted.post("/tokenize", model="m", messages=messages).json()["tokens"] == list(b"a\nb")
    assert scripted.post("/detokenize", tokens=[5000]).status_code == 400
