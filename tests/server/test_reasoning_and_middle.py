"""What needs a model with tokens for it: a bounded reasoning before the answer, and the middle of a text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from harness import RunningServer, events_of
from response_events import check_stream
from small_model import FIM_TOKENS, NAME, small_server

ASK = [{"role": "user", "content": "How many sacks?"}]


@pytest.fixture(scope="module")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with small_server(tmp_path_factory.mktemp("small")) as server:
        yield server


@pytest.fixture
def server(_server: RunningServer) -> Iterator[RunningServer]:
    yield _server
    _server.wait_idle()


def chat(server: RunningServer, **more: Any) -> Any:
    """min_tokens: a random model would end anywhere."""
    body = {"model": NAME, "messages": ASK, "max_tokens": 60, "min_tokens": 60, "temperature": 0, **more}
    return server.post("/v1/chat/completions", **body).raise_for_status()


def choice(server: RunningServer, **more: Any) -> dict[str, Any]:
    return chat(server, **more).json()["choices"][0]


def said(answer: dict[str, Any]) -> tuple[list[str], list[bytes]]:
    """The tokens of an answer with logprobs: as they are named, and their bytes."""
    entries = answer["logprobs"]["content"]
    return [entry["token"] for entry in entries], [bytes(entry["bytes"]) for entry in entries]


@pytest.mark.parametrize("budget", [0, 1, 12])
def test_reasoning_ends_with_its_budget_and_the_answer_follows(server: RunningServer, budget: int) -> None:
    answer = choice(server, thinking_token_budget=budget, logprobs=True)
    names, parts = said(answer)
    assert names.index("</think>") == budget
    assert len(names) == 60
    message = answer["message"]
    assert message.get("reasoning_content", "") == b"".join(parts[:budget]).decode("utf-8", "replace").strip()
    assert message["content"] == b"".join(parts[budget + 1 :]).decode("utf-8", "replace").lstrip()


def test_without_a_budget_this_model_reasons_for_longer(server: RunningServer) -> None:
    """Else the test above would show nothing."""
    names, _ = said(choice(server, logprobs=True))
    assert "</think>" not in names[:13]


def test_a_stream_tells_the_bounded_reasoning_apart(server: RunningServer) -> None:
    whole = choice(server, thinking_token_budget=12)["message"]
    events = events_of(chat(server, thinking_token_budget=12, stream=True))[:-1]
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == whole["reasoning_content"]
    assert "".join(delta.get("content") or "" for delta in deltas) == whole["content"]


def test_the_responses_dialect_has_it_as_an_item_and_with_the_same_bound(server: RunningServer) -> None:
    chatted = choice(server, thinking_token_budget=12, max_tokens=40, min_tokens=0)["message"]
    body = {"model": NAME, "input": "How many sacks?", "max_output_tokens": 40, "temperature": 0}
    body["thinking_token_budget"] = 12
    whole = server.post("/v1/responses", **body).raise_for_status().json()
    reasoning, message = whole["output"]
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": chatted["reasoning_content"]}]
    assert message["content"][0]["text"] == chatted["content"]
    assert 0 < whole["usage"]["output_tokens_details"]["reasoning_tokens"] < whole["usage"]["output_tokens"]
    with server.client.stream("POST", "/v1/responses", json={**body, "stream": True}) as stream:
        final = check_stream(events_of(stream))
    assert [item["content"][0]["text"] for item in final["output"]] == [
        item["content"][0]["text"] for item in whole["output"]
    ]


def test_a_constraint_begins_after_the_bounded_reasoning(server: RunningServer) -> None:
    answer = choice(server, thinking_token_budget=12, min_tokens=0, structured_outputs={"regex": "[a-c]{3}"})
    assert answer["message"]["reasoning_content"]
    assert set(answer["message"]["content"]) <= set("abc")
    assert len(answer["message"]["content"]) == 3
    assert answer["finish_reason"] == "stop"


def test_stop_strings_stop_the_answer_and_not_the_reasoning(server: RunningServer) -> None:
    free = choice(server, thinking_token_budget=12)["message"]
    reasoning, content = free["reasoning_content"], free["content"]
    stop = next(letter for letter in content[1:] if letter in reasoning)
    stopped = choice(server, thinking_token_budget=12, min_tokens=0, stop=[stop])
    assert stopped["message"]["reasoning_content"] == reasoning
    assert stopped["message"]["content"] == content.partition(stop)[0]
    assert stopped["finish_reason"] == "stop"


# fill in the middle --------------------------------------------------------------------------------------------------


def tokens(server: RunningServer, text: str) -> list[int]:
    return server.post("/tokenize", prompt=text, add_special_tokens=False).json()["tokens"]


def complete(server: RunningServer, **more: Any) -> dict[str, Any]:
    body = {"model": NAME, "max_tokens": 16, "temperature": 0, **more}
    return server.post("/v1/completions", **body).raise_for_status().json()


def test_a_suffix_asks_for_the_middle_with_the_models_own_tokens(server: RunningServer) -> None:
    before, after = "def step(self):", "return self.scheduler"
    filled = complete(server, prompt=before, suffix=after)
    [prefix], [suffix], [middle] = (tokens(server, token) for token in FIM_TOKENS)
    written_out = [prefix, *tokens(server, before), suffix, *tokens(server, after), middle]
    spelled = complete(server, prompt=written_out, stop_token_ids=[prefix, suffix, middle])
    assert filled["choices"][0]["text"] == spelled["choices"][0]["text"] != ""
    assert filled["usage"] == spelled["usage"]
    assert filled["choices"][0]["text"] != complete(server, prompt=before)["choices"][0]["text"]


@pytest.mark.parametrize("token", FIM_TOKENS)
def test_the_tokens_of_the_middle_end_it(server: RunningServer, token: str) -> None:
    [token_id] = tokens(server, token)
    pushed = {"prompt": "def", "logit_bias": {str(token_id): 100}}
    ended = complete(server, **pushed, suffix="x")["choices"][0]
    assert (ended["text"], ended["finish_reason"]) == ("", "stop")
    assert complete(server, **pushed)["choices"][0]["finish_reason"] == "length"


def test_a_suffix_and_what_it_cannot_be_combined_with(server: RunningServer) -> None:
    response = server.post("/v1/completions", model=NAME, prompt="a", suffix="b", echo=True)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "echo"
