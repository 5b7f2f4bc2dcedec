"""`pellucid chat`: talk to a model in the terminal; the answer streams."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from pellucid.cli.errors import clean_errors
from pellucid.cli.options import with_engine_options
from pellucid.config import EngineConfig

EXAMPLES = """Examples:\n
    pellucid chat\n
    pellucid chat Qwen/Qwen3-0.6B --system "Answer in one sentence." --temperature 0.7
"""

HELP = "/reset forgets the conversation, /exit (or Ctrl-D) leaves, Ctrl-C stops an answer."


@with_engine_options()
def chat(
    *,
    config: EngineConfig,
    system: Annotated[str | None, typer.Option(help="A system message.")] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Longest answer; default: what the context leaves.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Nucleus sampling; 1 is off.")] = 1.0,
) -> None:
    """Talk to a model; the whole conversation is sent each turn and the prefix cache makes that cheap."""
    from pellucid import SamplingParams

    params = SamplingParams(temperature=temperature, top_p=top_p, max_tokens=max_new_tokens, seed=config.seed)
    with clean_errors():
        asyncio.run(_converse(config, params, system))


async def _converse(config: EngineConfig, params, system: str | None) -> None:  # type: ignore[no-untyped-def]
    from pellucid import AsyncLLM
    from pellucid.frontend.chat_template import ChatTemplateError

    llm = await AsyncLLM.from_config(config)
    beginning = [{"role": "system", "content": system}] if system else []
    messages = list(beginning)
    print(f"{config.model}. {HELP}")
    try:
        while True:
            try:
                text = (await asyncio.to_thread(input, "\n> ")).strip()
            except (EOFError, KeyboardInterrupt, asyncio.CancelledError):
                return
            if text == "/exit":
                return
            if text == "/reset":
                messages = list(beginning)
                continue
            if not text:
                continue
            messages.append({"role": "user", "content": text})
            answer = ""
            try:
                async for output in llm.chat(messages, params):
                    print(output.outputs[0].text, end="", flush=True)
                    answer += output.outputs[0].text
            except ChatTemplateError as error:
                print(f"the model's template refuses this: {error}")
            except (KeyboardInterrupt, asyncio.CancelledError):
                if (task := asyncio.current_task()) is not None and hasattr(task, "uncancel"):
                    task.uncancel()
                print(" [stopped]", end="")
            print()
            messages.append({"role": "assistant", "content": answer})
    finally:
        await llm.shutdown()
