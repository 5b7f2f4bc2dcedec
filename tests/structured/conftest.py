"""The real vocabulary of SmolLM2."""

from __future__ import annotations

import pytest
from constrained_requests import MODEL

from pellucid.frontend.model_text import ModelText, load_model_text
from pellucid.loader.resolve import resolve_model
from pellucid.structured.compiler import GrammarCompiler
from pellucid.structured.vocabulary import GrammarVocabulary


@pytest.fixture(scope="session")
def text() -> ModelText:
    return load_model_text(resolve_model(MODEL))


@pytest.fixture(scope="session")
def vocabulary(text: ModelText) -> GrammarVocabulary:
    return GrammarVocabulary(text.tokenizer, text.eos_token_ids, text.tokenizer.vocab_size)


@pytest.fixture
def compiler(vocabulary: GrammarVocabulary) -> GrammarCompiler:
    return GrammarCompiler(lambda: vocabulary)
