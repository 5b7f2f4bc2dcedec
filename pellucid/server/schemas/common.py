"""What the dialects share: strictness, the sampling parameters, and what clients send along that changes no text.

Field names, defaults and bounds are OpenAI's; the sampling extras are named as in vLLM. Null means "not given".
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pellucid.sampling.validate import MIN_REPETITION_PENALTY
from pellucid.server.schemas.prompts import TokenIds

MAX_CHOICES = 128
MAX_STOP_STRINGS = 4
MAX_LOGPROBS = 20
INT64_MAX = 2**63 - 1


class StrictModel(BaseModel):
    """A key that is not known is an error, and so is a number in quotes."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())


class StreamOptions(StrictModel):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None  # nothing is ever padded here
    continuous_usage_stats: Literal[False] | None = None  # usage comes once, at the end


class SamplingFields(StrictModel):
    """How to continue the prompt."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None  # clamped to what the context leaves beside the prompt
    seed: Annotated[int, Field(ge=-INT64_MAX - 1, le=INT64_MAX)] | None = None
    stop: str | Annotated[list[str], Field(max_length=MAX_STOP_STRINGS)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        None, description="Token id (as a string) to what is added to its logit."
    )

    top_k: Annotated[int, Field(ge=-1)] | None = Field(None, description="0 or -1: all tokens.")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=MIN_REPETITION_PENALTY, le=1000)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    allowed_token_ids: TokenIds | None = None
    bad_words: list[str] | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = Field(
        None, description="Keep only the last so many tokens of the prompt; -1: as many as the context holds."
    )
    return_token_ids: bool | None = None
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = Field(
        None, description="Lower runs first; 0 when not given."
    )
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = Field(
        None, description="Only requests with the same salt share cached prefixes."
    )


class StreamFields(StrictModel):
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class ClientFields(StrictModel):
    """What clients tell about themselves. None of it changes the text.

    user, safety_identifier: written to the access log as a digest. metadata: given back in the response.
    prompt_cache_key: a hint to route equal prefixes to one machine; there is one. service_tier: there is one.
    """

    user: Annotated[str, Field(max_length=4096)] | None = None
    safety_identifier: Annotated[str, Field(max_length=4096)] | None = None
    metadata: Annotated[dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
                        Field(max_length=16)] | None = None  # fmt: skip
    prompt_cache_key: Annotated[str, Field(max_length=4096)] | None = None
    service_tier: Literal["auto", "default"] | None = None


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """Every error of every route."""

    error: ErrorDetail


JsonObject = dict[str, Any]
