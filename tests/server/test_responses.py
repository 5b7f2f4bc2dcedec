"""/v1/responses with OpenAI's own SDK: whole, streamed, continued, in the background, and refused."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from harness import RunningServer, scripted_server, wait_for
from openai.types.responses import Response
from response_events import check_stream

LONG = "go on"  # the scripted model says the alphabet until it is stopped


@pytest.fixture
def client(scripted: RunningServer) -> openai.OpenAI:
    return sdk(scripted)


def sdk(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def create(client: openai.OpenAI, input: Any, **more: Any) -> Any:
    return client.responses.create(**{"model": "m", "input": input, "temperature": 0, **more})


def streamed(client: openai.OpenAI, input: Any, **more: Any) -> list[dict[str, Any]]:
    return [event.to_dict() for event in create(client, input, stream=True, **more)]


def finished(client: openai.OpenAI, response_id: str) -> Response:
    """Polls as a client does."""
    deadline = time.monotonic() + 20
    while (response := client.responses.retrieve(response_id)).status in ("queued", "in_progress"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return response


def message(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": [{"type": "input_text" if role == "user" else "output_text", "text": text}]}


# whole and streamed --------------------------------------------------------------------------------------------------


def test_a_whole_response(client: openai.OpenAI, scripted: RunningServer) -> None:
    raw = scripted.post("/v1/responses", model="m", input="say hello", temperature=0, metadata={"k": "v"}, user="me")
    response = Response.model_validate(raw.json(), strict=True)
    assert (response.status, response.output_text, response.model) == ("completed", "hello", "m")
    assert response.metadata == {"k": "v"}
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (len("say hello"), 6)
    assert response.completed_at is not None


def test_a_stream_is_the_stored_and_the_whole_response(client: openai.OpenAI) -> None:
    events = streamed(client, "say hello to all")
    final = check_stream(events)
    assert sum(event["type"] == "response.output_text.delta" for event in events) > 1
    assert client.responses.retrieve(final["id"]).to_dict() == final
    whole = create(client, "say hello to all").to_dict()
    once = ("id", "created_at", "completed_at", "seed", "usage")
    del final["output"][0]["id"], whole["output"][0]["id"]
    assert {k: v for k, v in whole.items() if k not in once} == {k: v for k, v in final.items() if k not in once}


def test_the_streaming_helper_of_the_sdk_puts_the_response_together(client: openai.OpenAI) -> None:
    with client.responses.stream(model="m", input="say hello", temperature=0) as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_text == "hello"
    assert kinds[-1] == "response.completed"


async def test_the_async_sdk_streams(scripted: RunningServer) -> None:
    client = openai.AsyncOpenAI(base_url=f"{scripted.url}/v1", api_key="none", max_retries=0)
    stream = await client.responses.create(model="m", input="say hello", temperature=0, stream=True)
    assert check_stream([event.to_dict() async for event in stream])["output"][0]["content"][0]["text"] == "hello"


def test_frames_name_their_event_and_have_no_id_and_no_done(scripted: RunningServer) -> None:
    body = {"model": "m", "input": "say hi", "stream": True}
    with scripted.client.stream("POST", "/v1/responses", json=body) as response:
        lines = list(response.iter_lines())
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    assert (names[0], names[-1]) == ("response.created", "response.completed")
    assert not any(line.startswith("id:") or "[DONE]" in line for line in lines)


def test_a_cut_answer_is_incomplete_with_usage(client: openai.OpenAI) -> None:
    for final in (
        check_stream(streamed(client, LONG, max_output_tokens=5)),
        create(client, LONG, max_output_tokens=5).to_dict(),
    ):
        assert final["status"] == "incomplete"
        assert final["incomplete_details"] == {"reason": "max_output_tokens"}
        assert final["usage"]["output_tokens"] == 5
        assert final["output"][0]["content"][0]["text"] == "abcde"


def test_a_failure_within_a_stream_is_response_failed(client: openai.OpenAI, scripted: RunningServer) -> None:
    final = check_stream(streamed(client, "fail"))
    assert final["status"] == "failed"
    assert final["error"]["code"] == "server_error"
    assert "scripted" in final["error"]["message"]
    assert scripted.post("/v1/responses", model="m", input="fail").status_code == 500


def test_a_failed_stream_is_stored_as_it_was_said(client: openai.OpenAI) -> None:
    """Its client has its id, and may ask for it."""
    final = check_stream(streamed(client, "please fail"))
    assert final["status"] == "failed"
    assert client.responses.retrieve(final["id"]).to_dict() == final
    with pytest.raises(openai.BadRequestError, match="has the status 'failed'"):
        create(client, "and then?", previous_response_id=final["id"])


def test_a_silent_stream_says_in_progress_and_no_comment(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with scripted_server(script={"gate": str(gate)}, ping_interval_s=0.1) as server:
        body = {"model": "m", "input": "say hi", "stream": True}
        with server.client.stream("POST", "/v1/responses", json=body) as response:
            lines = []
            for line in response.iter_lines():
                lines.append(line)
                if lines.count("event: response.in_progress") == 3:
                    gate.touch()
        assert "event: response.completed" in lines
        assert not any(line.startswith(":") for line in lines)
        check_stream([httpx.Response(200, text=line[6:]).json() for line in lines if line.startswith("data: ")])


def test_logprobs_are_given_where_they_are_included(client: openai.OpenAI) -> None:
    wanted = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    final = check_stream(streamed(client, "say hey", **wanted))
    logprobs = final["output"][0]["content"][0]["logprobs"]
    assert [entry["token"] for entry in logprobs] == ["h", "e", "y"]
    assert [len(entry["top_logprobs"]) for entry in logprobs] == [2, 2, 2]
    assert create(client, "say hey", **wanted).to_dict()["output"][0]["content"][0]["logprobs"] == logprobs
    assert create(client, "say hey").to_dict()["output"][0]["content"][0]["logprobs"] == []


# input ---------------------------------------------------------------------------------------------------------------


def test_items_and_instructions_become_one_conversation(client: openai.OpenAI) -> None:
    items = [
        message("first"),
        {"role": "developer", "content": "rules"},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", **message("an answer", "assistant")},
        message("say yes"),
    ]
    response = create(client, items, instructions="be brief")
    assert response.output_text == "yes"
    assert response.usage.input_tokens == len("be brief\nfirst\nrules\nan answer\nsay yes")


def test_a_conversation_goes_on_by_previous_response_id(client: openai.OpenAI) -> None:
    first = create(client, "say one", instructions="only here")
    second = create(client, "say two", previous_response_id=first.id)
    third = create(client, [message("say three")], previous_response_id=second.id)
    assert third.previous_response_id == second.id
    assert third.usage.input_tokens == len("say one\none\nsay two\ntwo\nsay three")
    texts = [item.content[0].text for item in client.responses.input_items.list(third.id, order="asc")]
    assert texts == ["say one", "one", "say two", "two", "say three"]


def test_input_items_come_in_pages_latest_first(client: openai.OpenAI) -> None:
    response = create(client, [message(f"say {i}") for i in range(5)])
    page = client.responses.input_items.list(response.id, limit=2)
    assert [item.content[0].text for item in page.data] == ["say 4", "say 3"]
    assert page.has_more
    texts = [item.content[0].text for item in client.responses.input_items.list(response.id, limit=2)]
    assert texts == [f"say {i}" for i in reversed(range(5))]  # the SDK walks the pages by `after`
    with pytest.raises(openai.BadRequestError, match="limit"):
        client.responses.input_items.list(response.id, limit=101)
    with pytest.raises(openai.BadRequestError, match="msg_none"):
        client.responses.input_items.list(response.id, after="msg_none")


def test_an_item_reference_stands_for_the_stored_item(client: openai.OpenAI) -> None:
    first = create(client, "say remembered")
    reference = {"type": "item_reference", "id": first.output[0].id}
    response = create(client, [message("x"), reference, message("say it")])
    assert response.usage.input_tokens == len("x\nremembered\nsay it")
    with pytest.raises(openai.NotFoundError, match="Item with id 'msg_none' not found"):
        create(client, [{"type": "item_reference", "id": "msg_none"}])


def test_truncation_auto_drops_turns_from_the_beginning_and_keeps_instructions(client: openai.OpenAI) -> None:
    turns = [message(f"turn {i} " + "x" * 90) for i in range(40)] + [message("say short")]
    with pytest.raises(openai.BadRequestError) as refused:
        create(client, turns)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")
    response = create(client, turns, truncation="auto", instructions="kept", max_output_tokens=8)
    assert response.output_text == "short"
    used, turn = response.usage.input_tokens, len("\nturn 10 " + "x" * 90)
    assert 2048 - 8 - turn < used <= 2048 - 8
    assert (used - len("kept\nsay short")) % turn == 0
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        create(client, [message("y" * 3000)], truncation="auto")


@pytest.mark.parametrize("num_turns", range(2, 12))
def test_truncation_auto_leaves_what_a_template_takes_that_wants_roles_to_alternate(
    client: openai.OpenAI, num_turns: int
) -> None:
    """As Gemma's and Mistral's do."""
    turn = [message("question " + "x" * 500), message("answer " + "y" * 400, "assistant")]
    turns = [*turn * num_turns, message("say short")]
    response = create(client, turns, truncation="auto", instructions="alternate", max_output_tokens=8)
    assert response.output_text == "short"
    each = len("\nquestion " + "x" * 500 + "\nanswer " + "y" * 400)
    assert response.usage.input_tokens == len("alternate\nsay short") + min(num_turns, 2) * each


def test_truncation_auto_cuts_within_a_turn_that_is_too_long_alone(client: openai.OpenAI) -> None:
    """An agent asks once and works for long. A template that wants the question refuses that: it stays too long."""
    asked: dict[str, Any] = {"truncation": "auto", "max_output_tokens": 8}
    steps = [message("z" * 200, "assistant")] * 20
    used = create(client, [message("question"), *steps], **asked, instructions="kept").usage.input_tokens
    assert 2048 - 8 - len("\n" + "z" * 200) < used <= 2048 - 8
    turn = [message("q" * 2000), message("z" * 200, "assistant")]
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        create(client, turn, **asked, instructions="alternate")


# stored --------------------------------------------------------------------------------------------------------------


def test_a_deleted_response_is_gone(client: openai.OpenAI, scripted: RunningServer) -> None:
    response = create(client, "say x")
    deleted = scripted.client.delete(f"/v1/responses/{response.id}").json()
    assert deleted == {"id": response.id, "object": "response", "deleted": True}
    with pytest.raises(openai.NotFoundError, match=f"Response with id '{response.id}' not found"):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(response.id)
    for unknown in (response.id, ""):
        with pytest.raises(openai.BadRequestError) as refused:
            create(client, "say y", previous_response_id=unknown)
        assert (refused.value.code, refused.value.param) == ("previous_response_not_found", "previous_response_id")


def test_a_chain_without_its_beginning_is_an_error_and_not_a_shorter_chain(client: openai.OpenAI) -> None:
    first = create(client, "say one")
    second = create(client, "say two", previous_response_id=first.id)
    client.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError, match=first.id):
        create(client, "say three", previous_response_id=second.id)


def test_what_is_not_to_be_stored_is_not(client: openai.OpenAI) -> None:
    for response_id in (
        create(client, "say x", store=False).id,
        check_stream(streamed(client, "say x", store=False))["id"],
    ):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(response_id)


def test_a_server_without_a_store_says_so_and_answers() -> None:
    with scripted_server(response_store="none") as server:
        client = sdk(server)
        assert create(client, "say x").output_text == "x"
        for more in ({"store": True}, {"previous_response_id": "resp_1"}, {"background": True}):
            with pytest.raises(openai.BadRequestError):
                create(client, "say x", **more)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve("resp_1")


# background ----------------------------------------------------------------------------------------------------------


def test_a_background_response_is_polled_until_it_is_done(client: openai.OpenAI) -> None:
    response = create(client, "say later", background=True)
    assert (response.status, response.output) == ("queued", [])
    done = finished(client, response.id)
    assert (done.status, done.output_text, done.background) == ("completed", "later", True)
    assert create(client, "say next", previous_response_id=done.id).output_text == "next"


def test_a_background_stream_can_be_followed_again_from_any_event(client: openai.OpenAI) -> None:
    events = streamed(client, "say follow me", background=True)
    check_stream(events)
    assert [event["type"] for event in events[:3]] == ["response.created", "response.queued", "response.in_progress"]
    response_id = events[0]["response"]["id"]
    again = [event.to_dict() for event in client.responses.retrieve(response_id, stream=True)]
    assert again == events
    rest = [e.to_dict() for e in client.responses.retrieve(response_id, stream=True, starting_after=4)]
    assert rest == events[5:]
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.retrieve(create(client, "say x").id, stream=True)


def test_a_background_response_survives_its_client(client: openai.OpenAI) -> None:
    stream = create(client, LONG, background=True, stream=True, max_output_tokens=300)
    response_id = next(iter(stream)).response.id
    stream.close()
    done = finished(client, response_id)
    assert done.usage is not None
    assert (done.status, done.usage.output_tokens) == ("incomplete", 300)


def test_a_cancelled_response_stops_at_once_and_stays_cancelled(scripted: RunningServer, client: openai.OpenAI) -> None:
    response = create(client, LONG, background=True)
    assert client.responses.cancel(response.id).status == "cancelled"
    scripted.wait_idle()
    assert client.responses.retrieve(response.id).status == "cancelled"
    assert client.responses.cancel(response.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError, match="Cannot cancel a synchronous response"):
        client.responses.cancel(create(client, "say x").id)
    with pytest.raises(openai.BadRequestError, match="cancelled"):
        create(client, "say x", previous_response_id=response.id)


def test_the_stream_of_a_cancelled_response_ends_with_an_error_event(client: openai.OpenAI) -> None:
    stream = iter(create(client, LONG, background=True, stream=True))
    response_id = next(stream).response.id
    client.responses.cancel(response_id)
    events = list(stream)
    assert (events[-1].type, events[-1].code) == ("error", "response_cancelled")
    numbers = [event.sequence_number for event in events]
    assert numbers == list(range(1, len(events) + 1))


def test_a_response_that_runs_can_be_deleted(scripted: RunningServer, client: openai.OpenAI) -> None:
    response = create(client, LONG, background=True)
    client.responses.delete(response.id)
    scripted.wait_idle()
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_a_failed_background_response_says_why(client: openai.OpenAI) -> None:
    done = finished(client, create(client, "fail", background=True).id)
    assert done.status == "failed"
    assert done.error is not None
    assert "scripted" in done.error.message


# faults --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_stops_its_response(scripted: RunningServer, stream: bool) -> None:
    body = {"model": "m", "input": LONG, "stream": stream}
    if stream:
        with scripted.client.stream("POST", "/v1/responses", json=body) as response:
            next(response.iter_lines())
    else:
        with pytest.raises(httpx.TimeoutException):
            httpx.post(f"{scripted.url}/v1/responses", json=body, timeout=0.3)
    scripted.wait_idle()


@pytest.fixture(scope="module")
def killable() -> Iterator[RunningServer]:
    with scripted_server(script={"step_ms": 5}) as server:
        yield server


@pytest.mark.kill
@pytest.mark.parametrize("background", [True, False])
def test_a_killed_engine_shows_as_a_pause_only(killable: RunningServer, background: bool) -> None:
    client = sdk(killable)
    events = []
    for event in create(client, LONG, stream=True, background=background, max_output_tokens=100):
        events.append(event.to_dict())
        if len(events) == 12:
            for pid in killable.engine_pids():
                os.kill(pid, signal.SIGKILL)
    final = check_stream(events)
    assert final["usage"]["output_tokens"] == 100
    expected = ("abcdefghijklmnopqrstuvwxyz" * 4)[:100]
    assert final["output"][0]["content"][0]["text"] == expected
    wait_for(lambda: killable.client.get("/health").status_code == 200, 10)


# refusals ------------------------------------------------------------------------------------------------------------

FUNCTION = {"type": "function", "name": "f", "parameters": {}}


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"input": []}, "empty_array", "input"),
        ({"input": [message("x") | {"role": "wizard"}]}, "invalid_value", "input[0].role"),
        ({"input": [{"type": "local_shell_call", "id": "x"}]}, "invalid_value", "input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "invalid_value",
            "input[0].content[0].type",
        ),
        (
            {"input": [{"type": "function_call_output", "output": "x"}]},
            "missing_required_parameter",
            "input[0].call_id",
        ),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, None, "input"),
        ({"conversation": "conv_1"}, "unknown_parameter", "conversation"),
        ({"max_output_tokens": 0}, "integer_below_min_value", "max_output_tokens"),
        ({"temperature": 2.1}, "decimal_above_max_value", "temperature"),
        ({"tools": [{"type": "sorcery"}]}, "invalid_value", "tools[0].type"),
        ({"tools": [FUNCTION, FUNCTION]}, "invalid_value", "tools[1]"),
        ({"tool_choice": {"type": "function", "name": "g"}}, "invalid_value", "tool_choice"),
        ({"tool_choice": {"type": "web_search"}}, "invalid_value", "tool_choice.type"),
        ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
        ({"text": {"format": {"type": "yaml"}}}, "invalid_value", "text.format.type"),
        ({"reasoning": {"summary": "concise"}}, "invalid_value", "reasoning.summary"),
        ({"include": ["everything"]}, "invalid_value", "include[0]"),
        ({"stream_options": {"include_obfuscation": False}}, None, "stream_options"),
        ({"background": True, "store": False}, "invalid_value", "background"),
        ({"previous_response_id": "resp_none"}, "previous_response_not_found", "previous_response_id"),
        ({"previous_response_id": "a\x00'; --\ud7ff"}, "previous_response_not_found", "previous_response_id"),
        ({"seed": 2**70}, "invalid_type", None),
    ],
)
def test_refusals_name_the_parameter(
    scripted: RunningServer, fields: dict[str, Any], code: str | None, param: str | None
) -> None:
    answer = scripted.post("/v1/responses", **{"model": "m", "input": "say x", **fields})
    error = answer.json()["error"]
    assert answer.status_code == 400, error
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    if param is not None:
        assert (error["code"], error["param"]) == (code, param)


def test_an_unknown_response_is_not_found_on_every_route(scripted: RunningServer) -> None:
    paths = [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items"), ("GET", "?stream=true")]
    for method, rest in paths:
        answer = scripted.client.request(method, f"/v1/responses/resp_none{rest}")
        assert answer.status_code == 404, (method, rest)
        assert "resp_none" in answer.json()["error"]["message"]
    for query in ("stream=perhaps", "starting_after=-1", "starting_after=3"):
        assert scripted.client.get(f"/v1/responses/resp_none?{query}").status_code in (400, 404)


def test_tools_that_openai_runs_are_left_out_with_a_warning(scripted: RunningServer) -> None:
    tools = [{"type": "web_search", "external_web_access": False}]
    answer = scripted.post("/v1/responses", model="m", input="say x", tools=tools)
    assert answer.status_code == 200
    assert answer.json()["tools"] == []
    assert "tools[0] of type web_search" in answer.headers["x-pellucid-warning"]
    wait_for(lambda: any("tools[0] of type web_search" in line for line in scripted.errors), 5)
    assert "x-pellucid-warning" not in scripted.post("/v1/responses", model="m", input="say x").headers


def test_what_such_tools_did_and_a_choice_of_them_is_left_out_with_a_warning(scripted: RunningServer) -> None:
    search = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "q"},
    }
    message = {"role": "user", "content": "say x"}
    answer = scripted.post("/v1/responses", model="m", input=[search, search, message])
    assert answer.status_code == 200, answer.text
    assert "input items of type web_search_call were left out of the prompt (2)" in answer.headers["x-pellucid-warning"]
    listed = scripted.client.get(f"/v1/responses/{answer.json()['id']}/input_items").json()["data"]
    assert [item["type"] for item in listed] == ["message"]
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}
    tools = [{"type": "web_search"}, {"type": "function", "name": "f", "parameters": {}, "strict": False}]
    request = dict(model="m", input="say x", tools=tools)
    answer = scripted.post("/v1/responses", **request, tool_choice=allowed)
    assert answer.status_code == 200, answer.text
    assert "tool_choice.tools[0] of type web_search" in answer.headers["x-pellucid-warning"]
    refused = scripted.post("/v1/responses", **request, tool_choice={**allowed, "mode": "required"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tool_choice.tools")
    only = scripted.post("/v1/responses", model="m", input=[search])
    assert (only.status_code, only.json()["error"]["param"]) == (400, "input")
