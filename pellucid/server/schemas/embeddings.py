"""POST /v1/embeddings, /v1/score and /v1/rerank: texts to vectors, and vectors to how near they are to each other."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pellucid.server.schemas.common import ClientFields, StrictModel
from pellucid.server.schemas.prompts import MAX_PROMPTS, Prompts


class VectorRequest(ClientFields):
    """How a text becomes a vector; these names are ours."""

    model: str
    pooling: Literal["last", "mean"] | None = Field(
        None, description="The hidden state of the last token (when not given), or the mean over all."
    )
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    add_special_tokens: bool | None = Field(None, description="As the model's tokenizer does, when not given.")
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None


class EmbeddingRequest(VectorRequest):
    input: Prompts
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Keep the first so many elements, before the vector is normalised."
    )
    normalize: bool | None = Field(None, description="To length 1; true when not given.")


class ScoreRequest(VectorRequest):
    """text_1 and text_2 are compared one by one, or one text with each of a list."""

    text_1: str | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
    text_2: str | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]


class TextDocument(StrictModel):
    text: str


class RerankRequest(VectorRequest):
    query: str
    documents: Annotated[list[str | TextDocument], Field(min_length=1, max_length=MAX_PROMPTS)]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool | None = Field(None, description="Give each text back with its score; true when not given.")
