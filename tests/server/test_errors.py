"""Errors as they arrive: OpenAI's statuses, words and shape on every route, and never a 5xx for what a client did."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from harness import RunningServer

SAY = [{"role": "user", "content": "say hi"}]


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert response.headers["content-type"] == "application/json"
    return body["error"]


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"model": None}, "invalid_type", "model"),
        ({"messages": []}, "empty_array", "messages"),
        ({"n": 0}, "integer_below_min_value", "n"),
        ({"n": 129}, "integer_above_max_value", "n"),
        ({"temperature": 2.1}, "decimal_above_max_value", "temperature"),
        ({"stop": ["a"] * 5}, "array_above_max_length", "stop"),
        ({"no_such": 1}, "unknown_parameter", "no_such"),
        ({"tool_choice": "auto"}, "invalid_value", "tool_choice"),
        ({"parallel_tool_calls": True}, "invalid_value", "parallel_tool_calls"),
        ({"top_logprobs": 2}, "invalid_value", "top_logprobs"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "invalid_value", "max_tokens"),
        ({"logit_bias": {"x": 1}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"5000": 1}}, "integer_above_max_value", "logit_bias"),
        ({"stop_token_ids": [5000]}, "integer_above_max_value", "stop_token_ids"),
        ({"allowed_token_ids": []}, "empty_array", "allowed_token_ids"),
        ({"min_tokens": 9, "max_tokens": 5}, "integer_above_max_value", "min_tokens"),
        ({"repetition_penalty": 0}, "decimal_below_min_value", "repetition_penalty"),
        ({"chat_template_kwargs": {"messages": []}}, "unknown_parameter", "chat_template_kwargs.messages"),
        ({"continue_final_message": True}, "invalid_value", "continue_final_message"),
        ({"truncate_prompt_tokens": 0}, "invalid_value", "truncate_prompt_tokens"),
        ({"messages": [{"role": "user", "content": "refuse"}]}, "invalid_value", "messages"),
        ({"messages": [{"role": "user", "content": "x" * 3000}]}, "context_length_exceeded", "messages"),
        ({"messages": [{"role": "user", "content": "x" * 9_000_000}]}, "context_length_exceeded", "messages"),
    ],
)
def test_a_request_that_is_wrong_is_a_400_that_says_how(
    scripted: RunningServer, change: dict[str, Any], code: str | None, param: str
) -> None:
    for stream in (False, True):  # before any header is sent, so that a stream has a status too
        response = scripted.post("/v1/chat/completions", **{"model": "m", "messages": SAY, "stream": stream, **change})
        error = error_of(response)
        assert (response.status_code, error["code"]) == (400, code), error
        assert error["type"] == "invalid_request_error"
        assert (error["param"] or "").startswith(param)


def test_stream_options_need_a_stream(scripted: RunningServer) -> None:
    body = {"model": "m", "messages": SAY, "stream_options": {"include_usage": True}}
    response = scripted.post("/v1/chat/completions", **body)
    assert (response.status_code, error_of(response)["param"]) == (400, "stream_options")


def test_a_templates_own_refusal_is_quoted(scripted: RunningServer) -> None:
    response = scripted.post("/v1/chat/completions", model="m", messages=[{"role": "user", "content": "refuse"}])
    assert "no such talk" in error_of(response)["message"]


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"suffix": "x"}, "unsupported_parameter", "suffix"),
        ({"best_of": 2}, "unsupported_parameter", "best_of"),
        ({"prompt": [5000]}, "invalid_value", "prompt"),
        ({"prompt": [[1], [5000]]}, "invalid_value", "prompt"),
        ({"prompt": ""}, "empty_string", "prompt"),
        ({"prompt": [7] * 2048}, "context_length_exceeded", "prompt"),
    ],
)
def test_a_wrong_completion_is_a_400(scripted: RunningServer, change: dict[str, Any], code: str, param: str) -> None:
    response = scripted.post("/v1/completions", **{"model": "m", "prompt": "x", **change})
    error = error_of(response)
    assert (response.status_code, error["code"], error["param"]) == (400, code, param), error


def test_an_unknown_model_is_a_404(scripted: RunningServer) -> None:
    for path, prompt in (("/v1/chat/completions", {"messages": SAY}), ("/v1/completions", {"prompt": "x"})):
        response = scripted.post(path, model="gpt-9", **prompt)
        assert response.status_code == 404
        assert error_of(response)["code"] == "model_not_found"
        assert "The one that is served here is `m`." in error_of(response)["message"]
    assert error_of(scripted.client.get("/v1/models/gpt-9"))["code"] == "model_not_found"
    assert scripted.client.get("/v1/models/m").json()["max_model_len"] == 2048


def test_an_unknown_path_is_a_404_and_a_wrong_method_a_405(scripted: RunningServer) -> None:
    response = scripted.post("/v1/nope")
    assert response.status_code == 404
    assert error_of(response)["message"] == "Invalid URL (POST /v1/nope)"
    response = scripted.client.get("/v1/chat/completions")
    assert response.status_code == 405
    assert error_of(response)["code"] == "method_not_supported"
    assert response.headers["allow"] == "POST"
    several = scripted.client.put("/v1/responses/resp_1")
    assert (several.status_code, several.headers["allow"]) == (405, "DELETE, GET")


def test_query_parameters_are_ignored_where_none_is_named_and_checked_where_one_is(scripted: RunningServer) -> None:
    body = {"model": "m", "prompt": "say hi", "temperature": 0, "seed": 1}
    plain = scripted.post("/v1/completions", **body)
    asked = scripted.post("/v1/completions?beta=true&max_tokens=1&stream=true", **body)
    assert asked.json()["choices"] == plain.json()["choices"]
    assert scripted.client.get("/health?detail=1").status_code == 200
    for query, param in (("limit=many", "limit"), ("limit=0", "limit"), ("order=up", "order")):
        refused = scripted.client.get(f"/v1/responses/resp_1/input_items?{query}")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_a_body_that_is_no_json_is_refused(scripted: RunningServer) -> None:
    post = scripted.client.post
    for content in (b"{", b"", b"\xff\xfe", b"[" * 100_000, b'{"model": 1e999}', b'{"a": "\\udc00"}'):
        response = post("/v1/chat/completions", content=content, headers={"content-type": "application/json"})
        assert response.status_code == 400, content[:20]
        error_of(response)
    # what a page in a browser may send to a server on this machine without asking
    response = post("/v1/chat/completions", content=b"{}", headers={"content-type": "text/plain"})
    assert response.status_code == 415
    error_of(response)


def test_the_sdk_raises_its_own_errors(scripted: RunningServer) -> None:
    client = openai.OpenAI(base_url=f"{scripted.url}/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.chat.completions.create(model="gpt-9", messages=SAY)  # type: ignore[arg-type]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * 3000}])
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "messages"
    assert "maximum context length is 2048 tokens" in str(caught.value)
    with pytest.raises(openai.InternalServerError, match="scripted"):
        client.completions.create(model="m", prompt="fail", max_tokens=9)


def test_an_error_within_a_stream_is_an_event_and_not_an_end(scripted: RunningServer) -> None:
    with scripted.client.stream("POST", "/v1/completions", json={"model": "m", "prompt": "fail", "stream": True}) as r:
        text = r.read().decode()
    assert r.status_code == 200
    assert '"text":"' in text
    last = text.strip().split("\n\n")[-1]
    assert '"error":{"message":"the model step failed: scripted"' in last
    assert "[DONE]" not in text
    client = openai.OpenAI(base_url=f"{scripted.url}/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.APIError, match="scripted"):
        for _ in client.completions.create(model="m", prompt="fail", stream=True):
            pass


@pytest.mark.parametrize(
    "text", ["\0", "\ufeff", "a\u202eb\u200f", "\U0001f600\U0001f468\u200d\U0001f469", "\x1b[31m\r\n"]
)
def test_odd_text_goes_through_unchanged(scripted: RunningServer, text: str) -> None:
    content = f"say <{text}>".replace("\n", "")  # the script reads the last line
    response = scripted.post(
        "/v1/chat/completions", model="m", messages=[{"role": "user", "content": content}], temperature=0
    )
    assert response.json()["choices"][0]["message"]["content"] == content.removeprefix("say ")


def test_every_response_has_an_id_made_here(scripted: RunningServer) -> None:
    for path in ("/health", "/v1/nope", "/v1/models"):
        response = scripted.client.get(path, headers={"x-request-id": "mine"})
        assert response.headers["x-request-id"].startswith("req_")
        assert "server" not in response.headers
        assert "access-control-allow-origin" not in response.headers


def test_the_description_names_the_statuses_that_are_sent(scripted: RunningServer) -> None:
    """FastAPI would add a 422 of its own to every route with a parameter in its path."""
    document = scripted.client.get("/openapi.json").raise_for_status().json()
    statuses = {
        f"{method} {path}": set(operation["responses"])
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }
    assert [name for name, sent in statuses.items() if "422" in sent or not sent & {"4XX", "400"}] == []
    assert "403" in statuses["post /engine/control"]
    assert set(document["paths"]["/metrics"]["get"]["responses"]["200"]["content"]) >= {"text/plain"}
