"""A request as what the rest works with: a Conversation, sampling parameters, and the response that will be filled."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from pellucid.sampling.params import SamplingParams, StructuredOutputsParams
from pellucid.server.conversation import Conversation, JsonObject, Prepared
from pellucid.server.errors import invalid
from pellucid.server.preparation import check_thinking_budget
from pellucid.server.prompts import template_variables
from pellucid.server.responses_api.events import OutputOptions
from pellucid.server.responses_api.ids import new_id
from pellucid.server.responses_api.items import complete_item, messages_of
from pellucid.server.responses_api.tools import Toolbox
from pellucid.server.sampling import sampling_params
from pellucid.server.schemas.common import SamplingFields
from pellucid.server.schemas.responses import SHARED_SAMPLING_FIELDS, HostedItem, JsonSchemaFormat, ResponsesRequest
from pellucid.server.state import ServerState

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"


@dataclass(frozen=True)
class Plan:
    """items: this request's own input, complete, references resolved. num_top_logprobs: None for no logprobs at all."""

    body: ResponsesRequest
    response: JsonObject
    items: list[JsonObject]
    conversation: Conversation
    toolbox: Toolbox
    options: OutputOptions
    num_top_logprobs: int | None

    def sampling(self, defaults: Mapping[str, float], prepared: Prepared) -> SamplingParams:
        body = self.body
        fields = SamplingFields.model_construct(**{name: getattr(body, name) for name in SHARED_SAMPLING_FIELDS})
        params = sampling_params(defaults, fields, max_tokens=body.max_output_tokens, logprobs=self.num_top_logprobs)
        return prepared.applied_to(params)


def check(body: ResponsesRequest, *, can_store: bool) -> bool:
    """What a schema can't say; returns whether the response is to be stored. Raises ApiError."""
    if body.stream_options is not None and not body.stream:
        raise invalid(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            code=None,
            param="stream_options",
        )
    store = can_store if body.store is None else body.store
    if store and not can_store:
        raise invalid("This server keeps no responses: 'store' has to be false.",
                      code="unsupported_parameter", param="store")  # fmt: skip
    if body.background and not store:
        raise invalid("Background mode requires 'store' to be true.", param="background")
    if body.previous_response_id is not None and not can_store:
        raise invalid("This server keeps no responses: 'previous_response_id' can't be used.",
                      code="unsupported_parameter", param="previous_response_id")  # fmt: skip
    return store


def make_plan(
    body: ResponsesRequest, state: ServerState, *, history: list[JsonObject], items: list[JsonObject], store: bool
) -> Plan:
    """history: the items of the responses before this one, the oldest first. Raises ApiError."""
    check_thinking_budget(state, body.thinking_token_budget)
    toolbox = Toolbox(body.tools)
    given = () if isinstance(body.input, str) else body.input
    hosted = Counter(item.type for item in given if isinstance(item, HostedItem))
    toolbox.warnings += [f"input items of type {kind} were left out of the prompt ({n})" for kind, n in hosted.items()]
    text_format = body.text.format if body.text else None
    reasoning = body.reasoning
    summary = (reasoning.summary or reasoning.generate_summary) if reasoning else None
    include = set(body.include or ())
    with_logprobs = LOGPROBS in include or bool(body.top_logprobs)
    parallel = body.parallel_tool_calls is not False
    conversation = Conversation(
        messages=messages_of(body.instructions, [*history, *items], toolbox),
        param="input",
        tools=toolbox.tools,
        tool_choice=toolbox.choice(body),
        parallel_tool_calls=parallel,
        reasoning_effort=reasoning.effort if reasoning else None,
        thinking_budget=body.thinking_token_budget,
        constraint=_constraint(text_format),
        constraint_source="text.format",
        template_variables=template_variables(body.chat_template_kwargs),
    )
    if not conversation.messages:
        raise invalid("Invalid 'input': there is nothing to answer.", param="input")
    limits = [limit for limit in (body.max_tool_calls, None if parallel else 1) if limit is not None]
    options = OutputOptions(
        reasoning_as_summary=summary is not None,
        encrypted_reasoning=ENCRYPTED_REASONING in include,
        logprobs=with_logprobs,
        max_calls=min(limits, default=None),
    )
    defaults = state.engine().default_sampling
    response = {
        "id": new_id("response"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": bool(body.background),
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "model": state.model_name,
        "output": [],
        "parallel_tool_calls": parallel,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": conversation.reasoning_effort, "summary": summary},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": store,
        "temperature": defaults.get("temperature", 1.0) if body.temperature is None else body.temperature,
        "text": {"format": _dumped(text_format) if text_format else {"type": "text"}, "verbosity": "medium"},
        "tool_choice": _dumped(body.tool_choice) if body.tool_choice is not None else "auto",
        "tools": toolbox.echo,
        "top_logprobs": body.top_logprobs or 0,
        "top_p": defaults.get("top_p", 1.0) if body.top_p is None else body.top_p,
        "truncation": body.truncation or "disabled",
        "usage": None,
        "user": body.user,
        "metadata": body.metadata or {},
    }
    num_top = (body.top_logprobs or 0) if with_logprobs else None
    return Plan(body, response, items, conversation, toolbox, options, num_top)


def own_items(body: ResponsesRequest) -> list[JsonObject]:
    """The request's input in complete items; references still are references."""
    given = [body.input] if isinstance(body.input, str) else body.input
    return [complete_item(item) for item in given if not isinstance(item, HostedItem)]


def _constraint(text_format: Any) -> StructuredOutputsParams | None:
    if text_format is None or text_format.type == "text":
        return None
    if isinstance(text_format, JsonSchemaFormat):
        return StructuredOutputsParams(json=msgspec.json.encode(text_format.schema_).decode())
    return StructuredOutputsParams(json_object=True)


def _dumped(value: Any) -> Any:
    return value if isinstance(value, str) else value.model_dump(mode="json", by_alias=True, exclude_none=True)
