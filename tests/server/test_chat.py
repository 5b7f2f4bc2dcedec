"""/v1/chat/completions: shapes that clients break on, streamed and whole."""

from __future__ import annotations

from typing import Any

import pytest
from harness import RunningServer, events_of

GREEDY = {"model": "m", "temperature": 0}


def ask(server: RunningServer, content: str, **more: Any) -> dict[str, Any]:
    body = {**GREEDY, "messages": [{"role": "user", "content": content}], **more}
    return server.post("/v1/chat/completions", **body).raise_for_status().json()


def stream(server: RunningServer, content: str, **more: Any) -> list[Any]:
    body = {**GREEDY, "messages": [{"role": "user", "content": content}], "stream": True, **more}
    with server.client.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        return events_of(response)


def test_a_whole_answer(scripted: RunningServer) -> None:
    answer = ask(scripted, "say hello", metadata={"k": "v"}, user="me")
    choice = answer["choices"][0]
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == "m"
    assert choice["message"] == {"role": "assistant", "content": "hello", "refusal": None}
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)
    assert isinstance(choice["seed"], int)
    usage = answer["usage"]
    assert usage["completion_tokens"] == 6  # the end is a token too
    assert usage["prompt_tokens"] == len("say hello")
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    assert answer["metadata"] == {"k": "v"}
    assert answer["system_fingerprint"].startswith("fp_")


def test_a_stream_tells_role_first_and_reason_last(scripted: RunningServer) -> None:
    events = stream(scripted, "say hello")
    assert events.pop() == "[DONE]"
    choices = [event["choices"][0] for event in events]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert choices[-1]["delta"] == {}
    assert [c["finish_reason"] for c in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert all("role" not in c["delta"] for c in choices[1:])
    assert "".join(c["delta"].get("content", "") for c in choices) == "hello"
    assert len({event["id"] for event in events}) == 1
    assert all(event["object"] == "chat.completion.chunk" and "usage" not in event for event in events)


def test_usage_comes_in_a_last_chunk_without_choices(scripted: RunningServer) -> None:
    events = stream(scripted, "say hello", stream_options={"include_usage": True})
    *chunks, last, done = events
    assert done == "[DONE]"
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"] == ask(scripted, "say hello")["usage"]


def test_n_choices_differ_by_seed_and_stream_side_by_side(scripted: RunningServer) -> None:
    many = {"n": 3, "temperature": 1.0, "seed": 5, "max_tokens": 40}
    whole = ask(scripted, "x", **many)
    texts = [choice["message"]["content"] for choice in whole["choices"]]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert len(set(texts)) == 3
    streamed = ["", "", ""]
    reasons: list[str | None] = [None] * 3
    for event in stream(scripted, "x", **many)[:-1]:
        for choice in event["choices"]:
            assert reasons[choice["index"]] is None, "a delta after the end"
            streamed[choice["index"]] += choice["delta"].get("content", "")
            reasons[choice["index"]] = choice["finish_reason"]
    assert streamed == texts
    assert reasons == ["length"] * 3
    # each can be had again alone, from the seed it reports
    again = ask(scripted, "x", **{**many, "n": 1, "seed": whole["choices"][2]["seed"]})
    assert again["choices"][0]["message"]["content"] == texts[2]


def test_a_seed_is_drawn_and_reported(scripted: RunningServer) -> None:
    first = ask(scripted, "x", temperature=1.0, max_tokens=40)["choices"][0]
    other = ask(scripted, "x", temperature=1.0, max_tokens=40)["choices"][0]
    again = ask(scripted, "x", temperature=1.0, max_tokens=40, seed=first["seed"])["choices"][0]
    assert again["message"] == first["message"]
    assert other["seed"] != first["seed"]


def test_logprobs_have_tokens_bytes_and_alternatives(scripted: RunningServer) -> None:
    whole = ask(scripted, "say hé", logprobs=True, top_logprobs=2)["choices"][0]
    content = whole["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["h", "bytes:\\xc3", "bytes:\\xa9", "<eos>"]
    assert [entry["bytes"] for entry in content[:3]] == [[104], [0xC3], [0xA9]]
    assert [len(entry["top_logprobs"]) for entry in content] == [2] * 4
    assert content[0]["top_logprobs"][0] == {"token": "h", "logprob": -0.25, "bytes": [104]}
    streamed = []
    for event in stream(scripted, "say hé", logprobs=True, top_logprobs=2)[:-1]:
        streamed += (event["choices"][0]["logprobs"] or {}).get("content", [])
    assert streamed == content
    bare = ask(scripted, "say h", logprobs=True)["choices"][0]["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in bare] == [[], []]


def test_a_multi_byte_character_is_never_torn(scripted: RunningServer) -> None:
    text = "na\u00efve \u4f60\u597d \U0001f600 end"
    for event in stream(scripted, f"say {text}")[:-1]:
        assert "\ufffd" not in event["choices"][0]["delta"].get("content", "")
    assert ask(scripted, f"say {text}")["choices"][0]["message"]["content"] == text


@pytest.mark.parametrize("include", [False, True])
def test_stop_strings_end_the_text_and_are_named(scripted: RunningServer, include: bool) -> None:
    more = {"stop": ["ghi", "zzz"], "include_stop_str_in_output": include, "max_tokens": 50}
    expected = "abcdefghi" if include else "abcdef"
    choice = ask(scripted, "x", **more)["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == (expected, "stop", "ghi")
    events = stream(scripted, "x", **more)[:-1]
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events) == expected
    assert events[-1]["choices"][0]["stop_reason"] == "ghi"


def test_max_tokens_is_clamped_to_the_context_and_not_refused(scripted: RunningServer) -> None:
    answer = ask(scripted, "x" * 2000, max_tokens=32000)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == 2048
    assert ask(scripted, "x", max_completion_tokens=3)["usage"]["completion_tokens"] == 3


def test_truncation_keeps_the_end_of_the_prompt(scripted: RunningServer) -> None:
    answer = ask(scripted, "x" * 5000 + "\nsay yes", truncate_prompt_tokens=100)
    assert answer["choices"][0]["message"]["content"] == "yes"
    assert answer["usage"]["prompt_tokens"] == 100
    assert ask(scripted, "x" * 5000 + "\nsay yes", truncate_prompt_tokens=-1)["usage"]["prompt_tokens"] == 2047


def test_token_ids_on_request(scripted: RunningServer) -> None:
    answer = ask(scripted, "say hi", return_token_ids=True)
    assert answer["choices"][0]["token_ids"] == [*b"hi", 256]
    assert answer["choices"][0]["prompt_token_ids"] == answer["prompt_token_ids"] == list(b"say hi")
    events = stream(scripted, "say hi", return_token_ids=True)[:-1]
    assert events[0]["choices"][0]["prompt_token_ids"] == list(b"say hi")
    assert [t for event in events for t in event["choices"][0].get("token_ids", [])] == [*b"hi", 256]


def test_prompt_logprobs_as_in_vllm(scripted: RunningServer) -> None:
    entries = ask(scripted, "say hi", prompt_logprobs=1)["prompt_logprobs"]
    assert entries[0] is None
    assert entries[1] == {str(ord("a")): {"logprob": -0.25, "rank": 1, "decoded_token": "a"}}
    assert len(entries) == len("say hi")
    first = stream(scripted, "say hi", prompt_logprobs=1)[0]
    assert first["choices"][0]["prompt_logprobs"] == entries


def test_a_repeated_prompt_reports_its_cached_tokens_and_a_salt_parts_caches(scripted: RunningServer) -> None:
    prompt = "q" * 100
    cached = [
        ask(scripted, prompt, max_tokens=2, cache_salt=salt)["usage"]["prompt_tokens_details"]["cached_tokens"]
        for salt in ("one", "one", "two")
    ]
    assert cached == [0, 96, 0]


def test_a_conversation_reaches_the_template(scripted: RunningServer) -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "say "}, {"type": "text", "text": "parts"}]},
    ]
    answer = scripted.post("/v1/chat/completions", **GREEDY, messages=messages).json()
    assert answer["choices"][0]["message"]["content"] == "parts"
