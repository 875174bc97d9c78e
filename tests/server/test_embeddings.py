"""/v1/embeddings with a real, if tiny and random, embedding model."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import gguf
import numpy as np
import pytest
from tiny_bert import TOKENS, write_tiny_bert
from tiny_llama import WIDTH, write_tiny_llama

from specchat.engine.llama import EmbeddingModel
from specchat.errors import BadRequestError, DecodeError, ModelLoadError, PromptTooLongError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddingModel]:
    path = tmp_path_factory.mktemp("models") / "tiny-embed.gguf"
    write_tiny_llama(path, pooling=1)
    found = EmbeddingModel.load(path, threads=1)
    yield found
    found.close()


@pytest.fixture(scope="module")
def embedding(serve_with, model: EmbeddingModel):
    with serve_with(embedder=model) as found:
        yield found


def embed(endpoint, **body) -> dict:
    response = endpoint.http.post("/v1/embeddings", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def refused(endpoint, **body) -> dict:
    response = endpoint.http.post("/v1/embeddings", json=body)
    assert response.status_code == 400, response.text
    return response.json()["error"]


def test_mean_pooling_is_the_mean_of_the_token_vectors(tmp_path, model: EmbeddingModel) -> None:
    """Against the same weights pooled over the last token, prefix by prefix: causal
    attention makes a token's vector the last one of the text that ends there.
    """
    path = tmp_path / "last.gguf"
    write_tiny_llama(path, pooling=3)
    last = EmbeddingModel.load(path, threads=1)
    ids = model.tokens("to be or not")
    # The final norm makes every token's vector equally long, so directions can be averaged.
    expected = np.mean([last.embed(ids[: n + 1]) for n in range(len(ids))], axis=0)
    last.close()
    expected /= np.linalg.norm(expected)
    assert model.embed(ids) @ expected > 0.9999
    assert np.linalg.norm(model.embed(ids)) == pytest.approx(1.0, abs=1e-5)


def test_an_answer_does_not_depend_on_what_was_embedded_before(embedding) -> None:
    alone = embed(embedding, input="one")["data"][0]["embedding"]
    together = embed(embedding, input=["three and four", "one", "two"])
    assert [item["index"] for item in together["data"]] == [0, 1, 2]
    assert together["data"][1]["embedding"] == pytest.approx(alone, abs=1e-5)
    assert together["data"][0]["embedding"] != pytest.approx(alone, abs=1e-2)


def test_texts_and_token_ids_are_the_same_thing(embedding, model: EmbeddingModel) -> None:
    ids = model.tokens("hello")
    by_text = embed(embedding, input="hello")
    assert by_text["usage"] == {"prompt_tokens": len(ids), "total_tokens": len(ids)}
    for given in (ids, [ids]):
        by_ids = embed(embedding, input=given)
        assert by_ids["data"][0]["embedding"] == by_text["data"][0]["embedding"]


def test_base64_holds_the_same_numbers(embedding) -> None:
    plain = embed(embedding, input="hello")["data"][0]["embedding"]
    packed = embed(embedding, input="hello", encoding_format="base64")["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(packed), "<f4") == pytest.approx(plain)
    assert len(plain) == WIDTH
    found = embedding.openai().embeddings.create(model="any", input="hello")  # asks for base64
    assert found.data[0].embedding == pytest.approx(plain)


def test_fewer_dimensions_are_cut_and_scaled(embedding) -> None:
    plain = np.array(embed(embedding, input="hello")["data"][0]["embedding"])
    short = embed(embedding, input="hello", dimensions=8)["data"][0]["embedding"]
    assert short == pytest.approx(plain[:8] / np.linalg.norm(plain[:8]), abs=1e-5)
    error = refused(embedding, input="hello", dimensions=WIDTH + 1)
    assert error["param"] == "dimensions"


@pytest.mark.parametrize("given", ["", [], [""], [[]], [["a"]], [-1], [300], [2**40], 5, None])
def test_useless_input_is_refused(embedding, given) -> None:
    assert refused(embedding, input=given)["type"] == "invalid_request_error"


def test_a_text_over_the_context_is_refused_with_the_numbers(embedding, model) -> None:
    error = refused(embedding, input=["x", "x" * 400])
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
    assert str(model.n_ctx) in error["message"]
    with pytest.raises(PromptTooLongError):
        model.embed([5] * (model.n_ctx + 1))


def test_both_models_are_listed(embedding) -> None:
    data = embedding.http.get("/v1/models").json()["data"]
    assert [m["id"] for m in data] == ["smol", "tiny-embed"]
    assert embedding.http.get("/v1/models/tiny-embed").json() == data[1]


def test_without_an_embedding_model_it_says_so(endpoint) -> None:
    error = refused(endpoint, input="hello")
    assert error["code"] == "not_supported"
    assert "--embeddings" in error["message"]


def test_a_chat_model_is_refused_as_embedding_model(tmp_path) -> None:
    path = tmp_path / "chat.gguf"
    write_tiny_llama(path)
    with pytest.raises(ModelLoadError, match="no embedding model"):
        EmbeddingModel.load(path)


@pytest.mark.parametrize("pooling", [None, "mean", gguf.PoolingType.NONE, gguf.PoolingType.RANK])
def test_encoders_that_make_no_vectors_are_refused(tmp_path, pooling) -> None:
    write_tiny_bert(tmp_path / "model.gguf", pooling)
    with pytest.raises(ModelLoadError, match=r"model\.gguf"):
        EmbeddingModel.load(tmp_path / "model.gguf")


def test_an_encoder_pools_as_its_file_says(tmp_path) -> None:
    found = []
    for pooling in (gguf.PoolingType.MEAN, gguf.PoolingType.CLS, gguf.PoolingType.LAST):
        write_tiny_bert(tmp_path / "model.gguf", pooling)
        bert = EmbeddingModel.load(tmp_path / "model.gguf", threads=1)
        ids = bert.tokens("The quick [SEP]")
        found.append(bert.embed(ids))
        assert (bert.embed(ids) == found[-1]).all()
        bert.close()
    # Around the text are the model's own tokens; in it there are none.
    assert [TOKENS[i] for i in ids][:3] == ["[CLS]", "▁the", "▁quick"]
    assert ids.count(TOKENS.index("[SEP]")) == 1
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert abs(found[one] @ found[other]) < 0.99
    with pytest.raises(DecodeError, match="closed"):
        bert.embed(ids)


def test_ids_that_would_end_the_process_are_refused(model: EmbeddingModel) -> None:
    for tokens in ([], [-1], [model.tokenizer.n_vocab]):
        with pytest.raises(BadRequestError):
            model.embed(tokens)


def test_requests_beside_each_other_and_beside_a_chat(embedding) -> None:
    texts = ["one", "two", "three", "four"]
    alone = [embed(embedding, input=text)["data"] for text in texts] * 4
    with ThreadPoolExecutor(5) as pool:
        chat = pool.submit(embedding.answer, max_tokens=20)
        together = list(pool.map(lambda text: embed(embedding, input=text)["data"], texts * 4))
        assert chat.result()["usage"]["completion_tokens"] == 20
    assert together == alone
