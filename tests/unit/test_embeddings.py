# SPDX-License-Identifier: MIT
"""Tests that embeddings equal llama_cpp's, for embedding models and generative models. Computing embeddings
does not change texts that are generated meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest

import eaglecpp
from eaglecpp import AsyncEngine, Engine, errors
from helpers.models import Models
from helpers.tiny_arch import make_hybrid, make_recurrent, make_windowed
from helpers.tiny_bert import BertSpec, make_bert

TEXTS = ["the quick brown fox", "a", "jumps over the lazy dog, and again: the words 1, 2, 3!", "def main()"]
NUMBERS = {"none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Writes embedding models, one for each kind of tokenizer."""
    folder = tmp_path_factory.mktemp("encoders")
    return {name: make_bert(folder / f"{name}.gguf", tokenizer=name) for name in ("bert", "t5")}


@pytest.fixture(scope="module")
def bert(encoders: dict[str, Path]) -> Iterator[Engine]:
    with Engine.open(encoders["bert"], n_threads=1) as engine:
        yield engine


def theirs(path: Path, texts: list[str], pooling: str, n_ctx: int) -> list[Any]:
    """Returns llama_cpp's vectors. They are computed for one text at a time, because without pooling
    llama_cpp mixes up the texts of a batch.
    """
    llama = llama_cpp.Llama(
        str(path), embedding=True, verbose=False, n_ctx=n_ctx, n_batch=n_ctx, n_ubatch=n_ctx, n_threads=1,
        pooling_type=NUMBERS[pooling],
    )  # fmt: skip
    with contextlib.closing(llama):
        return [np.array(llama.embed(text)) for text in texts]


def cosines(found: Any, expected: Any) -> Any:
    lengths = np.linalg.norm(found, axis=-1) * np.linalg.norm(expected, axis=-1)
    return (np.asarray(found) * expected).sum(axis=-1) / lengths


@pytest.mark.parametrize("pooling", ["none", "mean", "cls", "last"])
@pytest.mark.parametrize("name", ["bert", "t5", "llama"])
def test_vectors_equal_llama_cpps(models: Models, encoders: dict[str, Path], name: str, pooling: str) -> None:
    path, n_ctx = (models.target, 512) if name == "llama" else (encoders[name], 128)
    with Engine.open(path, n_ctx=n_ctx, n_threads=1) as engine:
        found = engine.embed(TEXTS, pooling=pooling)
        again = engine.embed(TEXTS[::-1], pooling=pooling)[::-1]
    for one, same, expected in zip(found, again, theirs(path, TEXTS, pooling, n_ctx), strict=True):
        assert one.vector.shape == expected.shape
        assert (cosines(one.vector, expected) >= 0.9999).all()
        assert (cosines(one.vector, same.vector) >= 0.9999).all()
        assert np.linalg.norm(one.vector, axis=-1) == pytest.approx(1.0)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_a_text_read_in_pieces_has_the_vector_of_the_whole(models: Models, pooling: str) -> None:
    # The text has more tokens than a batch has rows.
    long = "over and over again, " * 100 + "def main(): return 1, 2, 3 " * 25
    with Engine.open(models.target, n_ctx=2048, n_threads=1) as engine:
        found = engine.embed(["short", long, "short"], pooling=pooling, normalize=False)
    assert found[1].n_tokens > 1100
    (expected,) = theirs(models.target, [long], pooling, 2048)
    assert found[1].vector == pytest.approx(expected, abs=1e-3 * np.abs(expected).max())
    assert cosines(found[0].vector, found[2].vector) >= 0.9999


@pytest.mark.parametrize("make", [make_windowed, make_hybrid, make_recurrent])
def test_other_kinds_of_attention_and_states(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    path, texts = make(tmp_path).target, [*TEXTS, "over and over again, " * 60]
    with Engine.open(path, n_ctx=1024, n_threads=1) as engine:
        found = engine.embed(texts)
    for one, expected in zip(found, theirs(path, texts, "mean", 1024), strict=True):
        assert cosines(one.vector, expected) >= 0.9999


def test_a_too_long_text_is_cut_before_its_end_token_or_refused(bert: Engine) -> None:
    long = "the fox " * 200
    cut = bert.embed(long)
    assert cut.is_truncated and cut.n_tokens == 128
    tokens = bert.native.tokenize(long.encode(), True, True)
    same = bert.embed([*tokens[:127], tokens[-1]])
    assert cut.vector == pytest.approx(same.vector, abs=1e-6) and not same.is_truncated
    with pytest.raises(errors.ContextFullError, match=f"input 1 has {len(tokens)} tokens, but the context"):
        bert.embed(["x", long], truncate=False)
    assert bert.embedder.embed([long], n_ctx=16)[0].n_tokens == 16
    huge = bert.embed("fox " * 100_000)  # the engine reads only the beginning of this text
    assert huge.n_tokens == 128
    assert not bert.embedder.embed(["x"], is_over=lambda: True)[0].vector.any(), "expected no computation"


async def test_an_embedding_model_refuses_to_generate(encoders: dict[str, Path], models: Models) -> None:
    turns = [{"role": "user", "content": "x"}]
    with Engine.open(encoders["bert"]) as engine:
        assert engine.only_embeds and engine.n_free == 0 and not engine.has_draft
        assert engine.n_ctx == 128 and engine.memory_plan == [] and engine.device_info["n_threads"] > 0
        assert "bert.gguf" in repr(engine) and engine.metadata["bert.pooling_type"] == "1"
        assert engine.draft_info is None and not engine.chains_only and engine.exactness.rows
        for call in (
            lambda: engine.generate("x"),
            lambda: engine.generate_many(["x", "y"]),
            lambda: engine.chat(turns),
            lambda: engine.session(),
        ):
            with pytest.raises(errors.UnsupportedError, match=r"bert\.gguf is an embedding model"):
                call()
    with pytest.raises((errors.UnsupportedError, errors.MismatchError)):
        Engine.open(encoders["bert"], models.draft)
    with pytest.raises((errors.UnsupportedError, errors.MismatchError)):
        Engine.open(models.target, encoders["bert"])
    with Engine.open(encoders["bert"], "text") as engine:
        assert not engine.has_draft and engine.embed("x").n_tokens == 3

    async with await AsyncEngine.open(encoders["bert"]) as engine:
        with pytest.raises(errors.UnsupportedError):
            engine.stream("x")
        assert len(await engine.embed(["x", "y"])) == 2


def test_wrong_texts_are_named(bert: Engine, tmp_path: Path) -> None:
    assert bert.embed([]) == [] and bert.embed("").n_tokens == 2
    with pytest.raises(
        errors.InvalidValueError, match="pooling: expected none, mean, cls, last or rank, found 'max'"
    ):
        bert.embed("x", pooling="max")
    with pytest.raises(errors.InvalidValueError, match="token id 1000000"):
        bert.embed([1, 1_000_000])
    with pytest.raises(errors.InvalidTypeError, match="expected a list of texts, found str"):
        bert.embedder.embed("text")
    with pytest.raises(errors.UnsupportedError, match="rerankers"):
        bert.embed("x", pooling="rank")
    rank = make_bert(tmp_path / "rank.gguf", BertSpec(pooling="rank", n_labels=1))
    with Engine.open(rank) as engine, pytest.raises(errors.UnsupportedError, match="rerankers"):
        engine.embed("x")


@pytest.mark.parametrize("key", ["bos", "seperator"])
def test_a_file_without_the_tokens_around_a_text_is_named(tmp_path: Path, key: str) -> None:
    path = make_bert(tmp_path / "a.gguf", **{key: None})
    with Engine.open(path) as engine, pytest.raises(errors.GgufError, match=f"{key}_token_id"):
        engine.embed("x")


def test_an_unknown_pooling_is_named(tmp_path: Path) -> None:
    path = make_bert(tmp_path / "a.gguf")
    data = path.read_bytes()
    at = data.index(b"bert.pooling_type") + len(b"bert.pooling_type") + 4
    path.write_bytes(data[:at] + (9).to_bytes(4, "little") + data[at + 4 :])
    with Engine.open(path) as engine, pytest.raises(errors.GgufError, match=r"key 'bert\.pooling_type' is 9"):
        engine.embed("x")


async def test_many_tasks_embed_and_generate(models: Models) -> None:
    async with await AsyncEngine.open(models.target, n_ctx=512, n_threads=1, n_queue=8) as engine:
        (alone,) = await engine.embed([TEXTS[2]])
        generated = asyncio.gather(*(engine.generate(text, max_tokens=16, temperature=0.0) for text in TEXTS))
        found = await asyncio.gather(*(engine.embed([TEXTS[2]] * 3) for _ in range(6)))
        assert all(cosines(one.vector, alone.vector) >= 0.9999 for three in found for one in three)
        assert all(one.text for one in await generated)
        leaving = asyncio.ensure_future(engine.embed(["over and over " * 150] * 50))
        for _ in range(3):
            await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert cosines((await engine.embed([TEXTS[2]]))[0].vector, alone.vector) >= 0.9999
        many = [asyncio.ensure_future(engine.embed([TEXTS[2]] * 64)) for _ in range(20)]
        done = await asyncio.gather(*many, return_exceptions=True)
        assert any(isinstance(one, errors.QueueFullError) for one in done)
        assert any(isinstance(one, list) for one in done)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_llama_returns_the_same_as_llama_cpp(models: Models, encoders: dict[str, Path], name: str) -> None:
    path = models.target if name == "llama" else encoders[name]
    options = {"embedding": True, "verbose": False, "n_ctx": 128, "n_threads": 1}
    theirs, ours = llama_cpp.Llama(str(path), **options), eaglecpp.Llama(str(path), **options)
    assert ours.pooling_type() == theirs.pooling_type()
    expected, found = theirs.create_embedding(TEXTS[0]), ours.create_embedding(TEXTS[0])
    vectors = [np.array(one["data"][0].pop("embedding")) for one in (expected, found)]
    assert vectors[0].shape == vectors[1].shape and (cosines(*vectors) >= 0.9999).all()
    assert found == expected
    assert len(ours.embed(TEXTS)) == 4 and ours.embed(TEXTS, return_count=True)[1] > 20
    with pytest.raises(errors.ContextFullError):
        ours.embed("fox " * 300, truncate=False)
    for one in (theirs, ours):
        one.close()
