"""POST /tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI, Request
from starlette.responses import Response

from pellucid.server.errors import invalid
from pellucid.server.prompts import conversation_of, encode_text, render_chat
from pellucid.server.responses import json_response
from pellucid.server.routing import add_post
from pellucid.server.schemas.tokenization import DetokenizeRequest, TokenizeRequest
from pellucid.server.state import ServerState


def add_routes(app: FastAPI) -> None:
    add_post(
        app, "/tokenize", TokenizeRequest, tokenize, generates=False, summary="Text or a conversation to token ids"
    )
    add_post(app, "/detokenize", DetokenizeRequest, detokenize, generates=False, summary="Token ids to text")


async def tokenize(state: ServerState, request: Request, body: TokenizeRequest) -> Response:
    state.check_model(body.model)
    llm = state.engine()
    if body.messages is not None:
        token_ids = await render_chat(llm, conversation_of(body.as_chat()))
    else:
        assert body.prompt is not None  # the schema has seen to it
        token_ids = await encode_text(llm, body.prompt, add_special_tokens=body.add_special_tokens is not False)
    strings = [state.texts(token_id)[0] for token_id in token_ids] if body.return_token_strs else None
    return json_response(
        {
            "count": len(token_ids),
            "max_model_len": state.ready.max_model_len,
            "tokens": token_ids,
            "token_strs": strings,
        }
    )


async def detokenize(state: ServerState, request: Request, body: DetokenizeRequest) -> Response:
    state.check_model(body.model)
    llm, vocab_size = state.engine(), state.ready.vocab_size
    for i, token_id in enumerate(body.tokens):
        if token_id >= vocab_size:
            raise invalid(f"Invalid 'tokens[{i}]': the vocabulary has {vocab_size} tokens.", param=f"tokens[{i}]")

    def decode() -> str:
        return llm.tokenizer.decode(body.tokens, skip_special_tokens=False)

    text = await asyncio.get_running_loop().run_in_executor(None, decode)
    return json_response({"prompt": text})
