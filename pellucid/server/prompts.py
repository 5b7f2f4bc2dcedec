"""Prompts of every dialect to token ids; where a request has much of it on a thread, so that other streams go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pellucid.frontend.async_llm import AsyncLLM
from pellucid.frontend.chat_template import ChatTemplateError
from pellucid.frontend.tokenizer import SHORT_TEXT
from pellucid.server.conversation import Conversation
from pellucid.server.errors import ApiError, context_length_exceeded, invalid, shorten
from pellucid.server.schemas.chat import ChatPrompt, Message
from pellucid.server.schemas.completions import CompletionRequest, GenerateRequest

CALL = 64  # a text costs as much as so many characters besides
TEMPLATE_VARIABLES = ("enable_thinking", "thinking", "thinking_budget", "reasoning_effort", "preserve_thinking")

Result = TypeVar("Result")


@dataclass(frozen=True)
class Prompt:
    token_ids: list[int]
    text: str | None = None  # as the client gave it; None for token ids, or where it was truncated


def conversation_of(
    body: ChatPrompt, *, truncate_to: int | None = None, reasoning_effort: str | None = None
) -> Conversation:
    """The messages of a chat body as templates take them. Raises ApiError."""
    if body.continue_final_message and body.messages[-1].role != "assistant":
        raise invalid(
            "'continue_final_message' needs the last message to be the assistant's.", param="continue_final_message"
        )
    return Conversation(
        messages=[_as_dict(message) for message in body.messages],
        reasoning_effort=reasoning_effort,
        template_variables=template_variables(body.chat_template_kwargs),
        add_generation_prompt=not body.continue_final_message and body.add_generation_prompt is not False,
        continue_final_message=bool(body.continue_final_message),
        truncate_to=truncate_to,
    )


async def render_chat(
    llm: AsyncLLM, conversation: Conversation, tools: Sequence[dict[str, Any]] | None = None
) -> list[int]:
    """tools: for the template, in the form that templates read.

    Raises ApiError where the model has no template, or its template refuses the conversation (quoting it)."""
    variables = dict(conversation.template_variables)
    if (effort := conversation.reasoning_effort) is not None:
        variables.setdefault("reasoning_effort", effort)
        variables.setdefault("enable_thinking", effort != "none")
    messages = conversation.messages
    if conversation.truncate_to is None:  # what every template shows, before the template has any work
        shown = sum(len(text) for message in messages for text in message.values() if isinstance(text, str))
        _refuse_hopeless(llm, shown, conversation.param)

    def render() -> list[int]:
        text = llm.tokenizer.chat_template.render(
            messages,
            add_generation_prompt=conversation.add_generation_prompt,
            continue_final_message=conversation.continue_final_message,
            tools=tools,
            **variables,
        )
        if conversation.truncate_to is None:  # tools and calls are known to be shown, and how, only now
            _refuse_hopeless(llm, len(text), conversation.param)
        return llm.tokenizer.encode(text, add_special_tokens=False)

    try:
        token_ids = await _off_the_loop(render, _size([messages, tools]))
    except ChatTemplateError as error:
        raise invalid(str(error), param=conversation.param) from error
    return _truncate(llm, token_ids, conversation.truncate_to)


async def completion_prompts(llm: AsyncLLM, body: CompletionRequest) -> list[Prompt]:
    """One per prompt of the request, in order."""
    if body.suffix:
        given = body.prompt
        many: list[Any] = given if isinstance(given, list) and isinstance(given[0], (str, list)) else [given]
        return await _fim_prompts(llm, many, body.suffix, body.add_special_tokens is not False)
    return await prompts_of(
        llm,
        body.prompt,
        param="prompt",
        truncate_to=body.truncate_prompt_tokens,
        add_special_tokens=body.add_special_tokens is not False,
    )


async def prompts_of(
    llm: AsyncLLM, given: str | list[Any], *, param: str, truncate_to: int | None, add_special_tokens: bool
) -> list[Prompt]:
    """given: one prompt or many, each as text or token ids. param: the field that errors name. Raises ApiError."""
    many: list[Any] = given if isinstance(given, list) and isinstance(given[0], (str, list)) else [given]
    texts = [prompt for prompt in many if isinstance(prompt, str)]
    if truncate_to is None and texts:
        _refuse_hopeless(llm, max(map(len, texts)), param)
    encoded = iter(await encode_texts(llm, texts, add_special_tokens=add_special_tokens))
    prompts = []
    for prompt in many:
        token_ids = next(encoded) if isinstance(prompt, str) else prompt
        if not token_ids:
            raise invalid(f"Invalid '{param}': it is empty, and this model has no token to begin a text with.",
                          code="empty_string", param=param)  # fmt: skip
        kept = _truncate(llm, token_ids, truncate_to)
        is_whole = isinstance(prompt, str) and len(kept) == len(token_ids)
        prompts.append(Prompt(kept, prompt if is_whole else None))
    return prompts


async def _fim_prompts(
    llm: AsyncLLM, many: Sequence[str | list[int]], suffix: str, add_special_tokens: bool
) -> list[Prompt]:
    """What stands before and after the text to be filled in, as the model was trained to read them."""
    form = llm.fill_in_the_middle
    assert form is not None  # the route has refused the others
    texts = [before for before in many if isinstance(before, str)]
    _refuse_hopeless(llm, len(suffix) + max(map(len, texts), default=0), "prompt")
    bos = llm.tokenizer.encode("", add_special_tokens=True) if add_special_tokens else []
    after, *encoded = await encode_texts(llm, [suffix, *texts], add_special_tokens=False)
    found = iter(encoded)
    return [
        Prompt(form.prompt(next(found), after, bos), before)
        if isinstance(before, str)
        else Prompt(form.prompt(before, after, bos))
        for before in many
    ]


async def generate_prompt(llm: AsyncLLM, body: GenerateRequest) -> Prompt:
    (prompt,) = await prompts_of(
        llm, body.prompt, param="prompt", truncate_to=body.truncate_prompt_tokens, add_special_tokens=True
    )
    return prompt


async def encode_text(llm: AsyncLLM, text: str, *, add_special_tokens: bool) -> list[int]:
    return (await encode_texts(llm, [text], add_special_tokens=add_special_tokens))[0]


async def encode_texts(llm: AsyncLLM, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
    """As one piece of work: many short texts take as long as a long one."""
    return await _off_the_loop(lambda: llm.tokenizer.encode_batch(texts, add_special_tokens), _size(texts))


def _truncate(llm: AsyncLLM, token_ids: list[int], truncate_to: int | None) -> list[int]:
    """The last tokens; -1 keeps as many as leave room for one token of output."""
    if truncate_to is None:
        return token_ids
    if truncate_to == 0:
        raise invalid("Invalid 'truncate_prompt_tokens': expected -1 or a value >= 1.", param="truncate_prompt_tokens")
    assert llm.ready is not None
    return token_ids[-(llm.ready.max_model_len - 1 if truncate_to == -1 else truncate_to) :]


def _refuse_hopeless(llm: AsyncLLM, num_characters: int, param: str) -> None:
    """A text too long for the context even if every token were the longest there is need not be tokenised first."""
    assert llm.ready is not None
    at_least = num_characters // llm.tokenizer.max_token_characters
    if at_least > llm.ready.max_model_len:
        raise context_length_exceeded(llm.ready.max_model_len, at_least, param=param, at_least=True)


def template_variables(given: dict[str, Any] | None) -> dict[str, Any]:
    variables = dict(given or {})
    for name, value in variables.items():
        param = f"chat_template_kwargs.{shorten(name)}"
        if name not in TEMPLATE_VARIABLES:
            raise invalid(f"Unknown parameter: '{param}'.", code="unknown_parameter", param=param)
        if not isinstance(value, (bool, int, float, str)):
            raise ApiError(400, f"Invalid type for '{param}': expected a boolean, number or string.",
                           code="invalid_type", param=param)  # fmt: skip
    return variables


def _as_dict(message: Message) -> dict[str, Any]:
    """A message as chat templates read it: text in one piece, and only what was given."""
    values = message.model_dump(exclude_none=True)
    if not isinstance(values.get("content", ""), str):
        values["content"] = "".join(part.get("text") or part.get("refusal") or "" for part in values["content"])
    if message.role == "assistant":
        values.setdefault("content", values.pop("refusal", None) or "")
        values.pop("annotations", None)
        reasoning = values.pop("reasoning", None) or values.get("reasoning_content")
        if reasoning:
            values["reasoning_content"] = values["reasoning"] = reasoning
        for call in values.get("tool_calls", ()):
            call.pop("index", None)
    return values


def _size(values: Any) -> int:
    """Characters of all texts and keys in it, each with CALL; counted only until they are too many for the loop."""
    size, pending = 0, [values]
    while pending and size <= SHORT_TEXT:
        value = pending.pop()
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, Mapping):
            pending += [*value.keys(), *value.values()]
        elif isinstance(value, Sequence):
            pending += value
        size += CALL
    return size


async def _off_the_loop(work: Callable[[], Result], size: int) -> Result:
    if size <= SHORT_TEXT:
        return work()
    return await asyncio.get_running_loop().run_in_executor(None, work)
