"""POST /v1/completions and the plain POST /generate: a prompt as text or as token ids."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pellucid.server.schemas.common import MAX_LOGPROBS, ClientFields, SamplingFields, StreamFields
from pellucid.server.schemas.prompts import Prompt, Prompts
from pellucid.server.schemas.structured import ConstraintFields


class CompletionRequest(SamplingFields, ConstraintFields, StreamFields, ClientFields):
    model: str
    prompt: Prompts
    suffix: str | None = Field(
        None, description="Text that follows the completion, for models that are trained to fill in the middle."
    )
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None
    add_special_tokens: bool | None = Field(None, description="Put the model's BOS before a prompt given as text.")


class GenerateRequest(SamplingFields, ConstraintFields, StreamFields):
    prompt: Prompt
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
