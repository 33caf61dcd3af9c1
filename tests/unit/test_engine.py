# SPDX-License-Identifier: MIT
"""Tests the engine on real tiny models: results, streams, and that it stays usable after any error."""

from __future__ import annotations

import copy
import pickle
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest

from eaglecpp import Completion, Engine, errors
from helpers.models import Models
from helpers.tiny import prompt_ids

N_CTX = 512
PROMPT = "ab cd ef"


@pytest.fixture(scope="module")
def engine(models: Models) -> Iterator[Engine]:
    with Engine.open(models.target, draft=models.draft, n_ctx=N_CTX, n_threads=1, n_sequences=2) as opened:
        yield opened


def greedy(engine: Engine, prompt: Any = PROMPT, n: int = 24, **options: Any) -> Completion:
    return engine.generate(prompt, max_tokens=n, temperature=0.0, **options)


@pytest.fixture(scope="module")
def fresh(models: Models) -> Completion:
    """Generates a result with an engine that has not been used before."""
    with Engine.open(models.target, draft=models.draft, n_ctx=N_CTX, n_threads=1) as opened:
        return greedy(opened)


def with_large_pages() -> int:
    """Returns the number of bytes of this process for which large pages are requested."""
    regions = re.split(r"(?m)^(?=[0-9a-f]+-)", Path("/proc/self/smaps").read_text())
    return sum(1024 * int(region.split("Size:")[1].split()[0]) for region in regions if " hg" in region)


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="no large pages")
def test_a_cache_has_large_pages(models: Models) -> None:
    before = with_large_pages()
    with Engine.open(models.target, n_ctx=1 << 16, n_threads=1):
        assert with_large_pages() > before + (32 << 20)


# The result of `generate`


def test_a_completion_is_complete(engine: Engine) -> None:
    result = greedy(engine, seed=1, strategy="chain:3")
    assert len(result.tokens) == len(result.accepted) == result.timings.predicted_n == 24
    assert (result.finish_reason, result.seed) == ("length", 1)
    assert result.text == engine.detokenize(result.tokens)
    assert result.prompt_tokens == engine.tokenize(PROMPT)
    assert sum(result.accepted) <= result.timings.draft_n_accepted
    assert any(result.accepted), "some drafts of the tiny drafter must be accepted"
    assert result.timings.plan["strategy"] == "chain:3"


def test_without_a_drafter_nothing_is_drafted(models: Models) -> None:
    with Engine.open(models.target, n_ctx=N_CTX) as plain:
        result = greedy(plain)
        assert (result.timings.draft_n, result.timings.acceptance_length) == (0, 1.0)
        assert result.timings.plan == {"strategy": "off", "why": "no drafter"}
        with pytest.raises(ValueError, match="chain:3 needs a drafter"):
            plain.generate(PROMPT, strategy="chain:3")
    with pytest.raises(ValueError, match="chain:3 needs a drafter"):
        Engine.open(models.target, strategy="chain:3")


# Forms of prompts


def test_bos_is_added_once_to_text_and_never_to_ids(engine: Engine) -> None:
    bos = engine.native.bos
    assert engine.tokenize("ab")[0] == bos
    assert engine.tokenize(engine.vocabulary.bos_text.decode() + "ab") == engine.tokenize("ab")
    assert engine.prompt_tokens([5, 6]) == [5, 6]
    assert engine.tokenize("ab", add_bos=False)[0] != bos


@pytest.mark.parametrize(
    ("prompt", "error", "text"),
    [
        ([], ValueError, "the prompt is empty"),
        ([1, 10**6], ValueError, "token id 1000000 at position 1"),
        ([-1], ValueError, "token id -1 at position 0"),
        ([1.5], TypeError, "float"),
        (5, TypeError, "prompt: expected str, bytes or a list of token ids, found int"),
        ("\ud800", errors.InvalidValueError, "surrogates"),
        (prompt_ids(N_CTX + 10), errors.ContextFullError, f"context size of {N_CTX}"),
    ],
)
def test_an_invalid_prompt_is_refused(engine: Engine, prompt: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        greedy(engine, prompt)
    assert text in str(caught.value)


# Ways to stop an answer


def test_chunks_add_up_to_the_completion(engine: Engine, fresh: Completion) -> None:
    chunks = list(engine.stream(PROMPT, max_tokens=24, temperature=0.0))
    assert [token for chunk in chunks for token in chunk.tokens] == fresh.tokens
    assert "".join(chunk.text for chunk in chunks) == fresh.text
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert chunks[-1].timings is not None
    assert all(len(chunk.tokens) == len(chunk.accepted) for chunk in chunks)


@pytest.mark.parametrize("strategy", ["off", "chain:5"])
def test_a_stop_string_cuts_text_and_tokens(engine: Engine, fresh: Completion, strategy: str) -> None:
    stop = fresh.text[9:12]
    cut = fresh.text.index(stop)
    result = greedy(engine, stop=stop, strategy=strategy)
    assert (result.text, result.finish_reason) == (fresh.text[:cut], "stop")
    assert result.tokens == fresh.tokens[: len(result.tokens)]
    assert stop in engine.detokenize(result.tokens)
    assert stop not in engine.detokenize(result.tokens[:-1]), "the last token must complete the stop string"
    assert result.timings.predicted_n == len(result.tokens), "tokens after the stop string must not count"


@pytest.mark.parametrize("strategy", ["off", "chain:5"])
def test_stop_when_sees_every_token(engine: Engine, fresh: Completion, strategy: str) -> None:
    seen: list[int] = []

    def five(tokens: list[int]) -> bool:
        seen.append(len(tokens))
        return len(tokens) == 5

    result = greedy(engine, stop_when=five, strategy=strategy)
    assert (result.tokens, result.finish_reason) == (fresh.tokens[:5], "stop")
    assert seen == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("strategy", ["off", "chain:4", "auto"])
@pytest.mark.parametrize(("max_repeats", "n"), [(0.0, 540), (4.0, 512)])
def test_a_repeating_answer_ends_at_the_same_token(
    models: Models, strategy: str, max_repeats: float, n: int
) -> None:
    options: dict[str, Any] = {"max_tokens": 540, "ignore_eos": True, "temperature": 0.0}
    with Engine.open(models.target, draft=models.draft, n_ctx=640, strategy=strategy) as engine:
        always = ((engine.tokenize("a", add_bos=False)[0], 1000.0),)
        found = engine.generate("x", logit_bias=always, max_repeats=max_repeats, **options)
    assert len(found.tokens) == found.timings.predicted_n == n and found.timings.loops
    assert found.finish_reason == ("stop" if max_repeats else "length")


def test_an_end_of_generation_token_ends_it_and_is_not_text(engine: Engine) -> None:
    eos = engine.native.eos
    result = greedy(engine, logit_bias={eos: 100.0})
    assert (result.tokens, result.text, result.finish_reason) == ([eos], "", "stop")
    ignored = greedy(engine, n=4, logit_bias={eos: 100.0}, ignore_eos=True)
    assert (len(ignored.tokens), ignored.finish_reason) == (4, "length")


def test_an_end_token_with_text_is_not_shown_either(models: Models, tmp_path: Path) -> None:
    """Tests that an end token is not shown, even if llama.cpp has a text for it. Some files use an ordinary
    token as end token.
    """
    path, plain = tmp_path / "odd.gguf", 100
    shutil.copyfile(models.target, path)
    reader = gguf.GGUFReader(path, "r+")
    reader.fields["tokenizer.ggml.eos_token_id"].parts[-1][0] = plain
    reader.data.flush()
    with Engine.open(path, n_ctx=64, n_threads=1) as engine:
        assert engine.token_to_piece(plain) != b""
        result = greedy(engine, logit_bias={plain: 100.0})
        assert (result.tokens, result.text, result.finish_reason) == ([plain], "", "stop")


# The engine stays usable after errors


def test_a_closed_stream_keeps_its_tokens(engine: Engine, fresh: Completion) -> None:
    stream = engine.stream(PROMPT, max_tokens=24, temperature=0.0)
    first = next(stream)
    stream.close()
    stream.close()
    result = stream.completion()
    assert (result.tokens, result.finish_reason) == (first.tokens, "cancelled")
    assert result.text == engine.detokenize(first.tokens)
    assert result.timings.predicted_n == len(first.tokens)
    assert list(stream) == []


def test_measuring_follows_the_answer_and_cannot_cost_it(
    models: Models, fresh: Completion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests that exactness is measured when the reader has the whole answer, even if the first step was slow,
    and that a measurement without enough memory changes nothing.
    """
    monkeypatch.setattr("eaglecpp.engine.loading._MEASURE_S", 0.0)
    read, n_read, goes_on = list[int](), set[int](), iter([True, False])

    def fails(engine: Engine, go_on: Any) -> None:
        n_read.add(len(read))
        raise errors.OutOfMemoryError("the cells need 5 GB")

    with Engine.open(models.target, models.draft, n_ctx=N_CTX, n_threads=1) as engine:
        engine.measure_exactness(lambda: threading.Event().wait(0.5) or next(goes_on))
        monkeypatch.setattr(Engine, "measure_exactness", fails)
        while not n_read:
            assert engine.timings.rounds < 10_000
            read.clear()
            for chunk in engine.stream(PROMPT, max_tokens=24, temperature=0.0):
                read += chunk.tokens
            assert read == fresh.tokens
            assert engine.generate_many([PROMPT], max_tokens=24, temperature=0.0)[0].tokens == read
    assert n_read == {24}


# Several conversations and threads


def test_a_new_call_ends_an_open_stream_of_another_thread(engine: Engine, fresh: Completion) -> None:
    """Tests that a call ends an open stream of another thread. A web framework may abandon a generator, and
    answer the next request in another thread.
    """
    stream = engine.stream("xy zz", max_tokens=24, temperature=0.0)
    next(stream)
    made: list[Completion] = []
    thread = threading.Thread(target=lambda: made.append(greedy(engine)))
    thread.start()
    thread.join()
    assert made[0].tokens == fresh.tokens
    with pytest.raises(errors.EngineBusyError, match="a newer call took this session over"):
        next(stream)
    assert list(stream) == []
    stream = engine.stream("xy zz", max_tokens=24)
    engine.clear()
    with pytest.raises(errors.EngineBusyError, match="a newer call took this session over"):
        next(stream)
    assert greedy(engine).tokens == fresh.tokens


# Opening and closing


def test_wrong_files_are_refused_with_their_names(models: Models, tmp_path: Path) -> None:
    text = tmp_path / "notes.gguf"
    text.write_text("these are not the weights you are looking for\n" * 9, encoding="utf-8")
    for target, draft in ((text, None), (models.target, text), (models.target, models.target)):
        with pytest.raises((errors.GgufError, errors.UnsupportedError)) as caught:
            Engine.open(target, draft)
        assert Path(draft or target).name in str(caught.value)
    with pytest.raises(errors.ModelNotFoundError, match="drafter") as missing:
        Engine.open(models.target, tmp_path / "none.gguf")
    assert len(missing.traceback) > 2  # the traceback in a log shows the caller that opened the file


def test_a_closed_engine_raises_and_copies_are_refused(models: Models) -> None:
    engine = Engine.open(models.target, n_ctx=64)
    stream = engine.stream(PROMPT, temperature=0.0)
    for one in (engine, stream, engine.default_session.slot):
        for make_copy in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot be copied or pickled"):
                make_copy(one)  # a copy would free the engine or the sequence at its end
    next(stream)
    engine.close()
    engine.close()
    assert engine.closed
    with pytest.raises(ValueError, match="closed"):
        next(stream)
    with pytest.raises(ValueError, match="closed"):
        engine.generate(PROMPT)


@pytest.mark.parametrize("separate_caches", [False, True])
def test_parallel_sessions(models: Models, fresh: Completion, separate_caches: bool) -> None:
    options: dict[str, Any] = {"n_ctx": N_CTX, "n_sequences": 2, "separate_caches": separate_caches}
    with Engine.open(models.target, models.draft, **options) as engine, engine.session() as other:
        streams = [one.stream(PROMPT, max_tokens=24, temperature=0.0) for one in (engine, other)]
        for _ in zip(*streams, strict=False):
            pass
        assert [stream.finish().tokens for stream in streams] == [fresh.tokens] * 2
        with pytest.raises(errors.EngineBusyError, match="n_sequences=3"):
            engine.session()
    with pytest.raises(ValueError, match="closed"):
        other.generate("x")
