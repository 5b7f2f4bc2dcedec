"""/score and /rerank of a model that answers with yes or no, on a small random one: its numbers are its own logits'."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import RunningServer, serving
from small_model import NAME, make_checkpoint

from pellucid.core.messages import TokenLogprob
from pellucid.frontend.chat_template import ChatTemplate
from pellucid.frontend.model_text import load_model_text
from pellucid.frontend.yes_no_reranker import YesNoReranker

TEMPLATE = """<|im_start|>system
Is it an answer?<|im_end|>
<|im_start|>user
{% for m in messages %}{{ m.role }}: {{ m.content }}
{% endfor %}<|im_end|>
<|im_start|>assistant
"""
QUERY = "Where is the mill?"
TEXTS = ["The mill stood where the river bends.", "Twelve, said the miller.", "磨坊在河边", ""]


def prompt(query: str, text: str) -> str:
    return ChatTemplate({"default": TEMPLATE}).render(
        [{"role": "query", "content": query}, {"role": "document", "content": text}]
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("reranker"), "yes", "no")


@pytest.fixture(scope="module")
def server(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    template = tmp_path_factory.mktemp("template") / "reranker.jinja"
    template.write_text(TEMPLATE)
    arguments = ["--served-model-name", NAME, "--num-kv-blocks", "512", "--reranker-template", str(template)]
    with serving(str(checkpoint), *arguments) as running:
        yield running


@pytest.fixture(scope="module")
def expected(server: RunningServer) -> dict[str, float]:
    """By the log-probabilities of the two words after the same prompt, one at a time, from /v1/completions."""

    def logprob(text: str, word: str) -> float:
        [token_id] = server.post("/tokenize", model=NAME, prompt=word, add_special_tokens=False).json()["tokens"]
        asked = {"allowed_token_ids": [token_id], "logprobs": 1, "max_tokens": 1, "add_special_tokens": False}
        answer = server.post("/v1/completions", model=NAME, prompt=prompt(QUERY, text), **asked)
        return answer.json()["choices"][0]["logprobs"]["token_logprobs"][0]

    return {text: 1 / (1 + math.exp(logprob(text, "no") - logprob(text, "yes"))) for text in TEXTS}


def test_scores_are_the_probability_of_yes_against_no(server: RunningServer, expected: dict[str, float]) -> None:
    answer = server.post("/v1/score", model=NAME, text_1=QUERY, text_2=TEXTS)
    assert answer.status_code == 200, answer.text
    scores = [item["score"] for item in answer.json()["data"]]
    assert scores == pytest.approx(list(expected.values()), rel=1e-5)
    assert len(set(scores)) == len(TEXTS)
    assert all(0 < score < 1 for score in scores)
    tokens = [server.post("/tokenize", model=NAME, prompt=prompt(QUERY, text), add_special_tokens=False).json()["count"]
              for text in TEXTS]  # fmt: skip
    assert answer.json()["usage"]["prompt_tokens"] == sum(tokens)
    one_by_one = server.post("/score", model=NAME, text_1=[QUERY] * 4, text_2=TEXTS).json()["data"]
    assert [item["score"] for item in one_by_one] == scores


def test_reranking_puts_the_likeliest_yes_first(server: RunningServer, expected: dict[str, float]) -> None:
    documents: list[Any] = [TEXTS[0], {"text": TEXTS[1]}, *TEXTS[2:]]
    answer = server.post("/v1/rerank", model=NAME, query=QUERY, documents=documents, top_n=3).json()
    best = sorted(expected, key=lambda text: -expected[text])[:3]
    assert [result["document"]["text"] for result in answer["results"]] == best
    assert [result["index"] for result in answer["results"]] == [TEXTS.index(text) for text in best]
    assert [r["relevance_score"] for r in answer["results"]] == pytest.approx([expected[t] for t in best], rel=1e-5)


def test_what_has_no_meaning_for_it_is_refused(server: RunningServer) -> None:
    refused = server.post("/v1/score", model=NAME, text_1="a", text_2="b", pooling="mean")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "pooling")
    long = server.post("/v1/rerank", model=NAME, query="a", documents=["b", "sacks of flour " * 2000])
    assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
    vectors = server.post("/v1/embeddings", model=NAME, input="a")
    assert vectors.status_code == 200


@pytest.mark.parametrize(
    ("words", "template", "said"),
    [
        (("yes",), TEMPLATE, "tokens 'yes' and 'no'"),
        (("yes", "no"), "{{ messages[0].content }}", "'query' and 'document'"),
        (("yes", "no"), "{% for m in messages %}", "reranker.jinja: "),
        (("yes", "no"), None, "can't be read"),
    ],
)
def test_what_does_not_fit_is_said_at_start(tmp_path: Path, words: Any, template: str | None, said: str) -> None:
    file = tmp_path / "reranker.jinja"
    if template is not None:
        file.write_text(template)
    tokenizer = load_model_text(str(make_checkpoint(tmp_path / "model", *words))).tokenizer
    with pytest.raises(ValueError, match=said):
        YesNoReranker.load(str(file), tokenizer)


def test_a_difference_beyond_all_floats_is_zero_or_one() -> None:
    reranker = YesNoReranker(ChatTemplate({}), 1, 2)
    for logprobs, expected_value in (([0.0, -9999.0], 1.0), ([-9999.0, 0.0], 0.0), ([-1.0, -1.0], 0.5)):
        entry = TokenLogprob(token_ids=[1, 2], logprobs=logprobs, ranks=[1, 2])
        assert reranker.relevance(entry) == expected_value
