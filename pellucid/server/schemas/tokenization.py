"""POST /tokenize and /detokenize: requests in vLLM's shapes."""

from __future__ import annotations

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from pellucid.server.schemas.chat import ChatPrompt, Messages
from pellucid.server.schemas.common import JsonObject, StrictModel
from pellucid.server.schemas.prompts import TokenIds


class TokenizeRequest(StrictModel):
    """Either `prompt` or `messages`; the fields after each belong to it."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    messages: Messages | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: JsonObject | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("one_of", "expected either 'prompt' or 'messages'")
        if self.messages is not None and self.add_special_tokens is not None:
            raise PydanticCustomError("one_of", "'add_special_tokens' goes with 'prompt': a chat template has its own")
        if self.prompt is not None and not (
            self.add_generation_prompt is self.continue_final_message is self.chat_template_kwargs is None
        ):
            raise PydanticCustomError("one_of", "the parameters of a chat template go with 'messages'")
        return self

    def as_chat(self) -> ChatPrompt:
        assert self.messages is not None
        return ChatPrompt(
            messages=self.messages,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            chat_template_kwargs=self.chat_template_kwargs,
        )


class DetokenizeRequest(StrictModel):
    model: str | None = None
    tokens: TokenIds
