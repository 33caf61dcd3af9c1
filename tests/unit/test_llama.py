# SPDX-License-Identifier: MIT
"""Compares `eaglecpp.Llama` with `llama_cpp.Llama` on the same file: results have the same structure and the
same greedy text.
"""

from __future__ import annotations

import contextlib
import inspect
import pickle
from collections.abc import Iterator
from typing import Any

import llama_cpp
import numpy as np
import pytest

from eaglecpp import Llama
from eaglecpp._extension import core
from eaglecpp.errors import ContextFullError, UnsupportedError
from eaglecpp.llama.plain import open_twin
from helpers.models import Models

PROMPT = "ab cd ef"
MESSAGES = [{"role": "user", "content": "hello there"}]
VOLATILE = ("id", "created")


@pytest.fixture(scope="module")
def ours(models: Models) -> Iterator[Llama]:
    llm = Llama(str(models.target), draft_model=models.draft, n_ctx=512, n_threads=1)
    yield llm
    llm.close()


@pytest.fixture(scope="module")
def theirs(models: Models) -> Iterator[llama_cpp.Llama]:
    llm = llama_cpp.Llama(str(models.target), n_ctx=512, n_threads=1, verbose=False, logits_all=True)
    yield llm
    llm.close()


def comparable(result: dict[str, Any]) -> dict[str, Any]:
    """Returns a result without the values that differ between calls, and without eaglecpp's own key."""
    return {name: value for name, value in result.items() if name not in (*VOLATILE, "timings")}


def shape(value: Any) -> Any:
    """Returns the structure of a result: keys and types instead of values."""
    if isinstance(value, dict):
        return {name: shape(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [shape(entry) for entry in value[:1]]
    return "float" if isinstance(value, np.floating) else type(value).__name__


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 20},
        {"max_tokens": 20, "echo": True},
        {"max_tokens": 0},
        {"max_tokens": 8, "logit_bias": {300: 50.0}},
        {"max_tokens": 8, "model": "a-name"},
    ],
)
def test_greedy_completions_are_equal(ours: Llama, theirs: llama_cpp.Llama, options: dict[str, Any]) -> None:
    mine = ours(PROMPT, temperature=0.0, **options)
    assert comparable(mine) == comparable(theirs(PROMPT, temperature=0.0, **options))
    assert mine["timings"]["predicted_n"] > 0
    assert mine["id"].startswith("cmpl-")


def test_stop_strings_cut_the_same(ours: Llama, theirs: llama_cpp.Llama) -> None:
    text = theirs(PROMPT, max_tokens=30, temperature=0.0)["choices"][0]["text"]
    for stop in (text[7:9], [text[12:15], text[20:22]]):
        mine = ours(PROMPT, max_tokens=30, temperature=0.0, stop=stop)
        assert mine["choices"] == theirs(PROMPT, max_tokens=30, temperature=0.0, stop=stop)["choices"]
        assert mine["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("n_top", [0, 3])
def test_log_probabilities_are_the_same(ours: Llama, theirs: llama_cpp.Llama, n_top: int) -> None:
    mine = ours(PROMPT, max_tokens=6, temperature=0.0, logprobs=n_top)["choices"][0]["logprobs"]
    other = theirs(PROMPT, max_tokens=6, temperature=0.0, logprobs=n_top)["choices"][0]["logprobs"]
    assert mine["tokens"] == other["tokens"]
    assert mine["text_offset"] == other["text_offset"]
    np.testing.assert_allclose(mine["token_logprobs"], other["token_logprobs"], atol=1e-3)
    for here, there in zip(mine["top_logprobs"], other["top_logprobs"], strict=True):
        assert list(here) == list(there)
        np.testing.assert_allclose(list(here.values()), list(there.values()), atol=1e-3)


@pytest.mark.parametrize("stream", [False, True])
def test_token_offsets_count_characters_of_prompt_and_text(ours: Llama, stream: bool) -> None:
    """Tests that token offsets count characters, also for a prompt that is given as tokens, and for a
    character that several tokens share.
    """
    tokens = ours.tokenize("ab é".encode())
    reply = ours(tokens, stream=stream, max_tokens=8, temperature=0.0, grammar='root ::= "漢x"', logprobs=1)
    chunks = [chunk["choices"][0] for chunk in reply] if stream else reply["choices"]
    lists = [chunk["logprobs"] for chunk in chunks if chunk["logprobs"]]
    names = [name for one in lists for name in one["tokens"]]
    offsets = [offset for one in lists for offset in one["text_offset"]]
    n_prompt = len(ours.detokenize(tokens).decode())
    assert n_prompt < len(tokens) and names == ["", "", "", "x"], names
    assert offsets == [n_prompt, n_prompt, n_prompt, n_prompt + 1]


@pytest.mark.parametrize("is_chat", [False, True])
def test_a_stream_has_the_same_chunks_and_text(ours: Llama, theirs: llama_cpp.Llama, is_chat: bool) -> None:
    def chunks(llama: Any) -> list[dict[str, Any]]:
        call, asked = (llama.create_chat_completion, MESSAGES) if is_chat else (llama, PROMPT)
        return list(call(asked, max_tokens=12, temperature=0.0, stream=True))

    def text(chunks: list[dict[str, Any]]) -> str:
        choices = [chunk["choices"][0] for chunk in chunks]
        return "".join((one["delta"].get("content") or "") if is_chat else one["text"] for one in choices)

    mine, other = chunks(ours), chunks(theirs)
    assert {str(shape(comparable(chunk))) for chunk in mine} == {str(shape(comparable(c))) for c in other}
    assert len({chunk["id"] for chunk in mine}) == 1 and text(mine) == text(other)
    assert comparable(mine[-1]) == comparable(other[-1])
    assert ["timings" in chunk for chunk in mine] == [False] * (len(mine) - 1) + [True]
    assert mine[-1]["timings"]["predicted_n"] == 12


def test_a_chat_completion_is_the_same(ours: Llama, theirs: llama_cpp.Llama) -> None:
    mine = ours.create_chat_completion(MESSAGES, max_tokens=12, temperature=0.0)
    other = theirs.create_chat_completion(MESSAGES, max_tokens=12, temperature=0.0)
    assert comparable(mine) == comparable(other)
    assert mine["timings"]["rounds"] > 0
    assert (ours.chat_format, ours.metadata) == (theirs.chat_format, theirs.metadata)


def test_a_tool_choice_is_answered_as_a_tool_call(ours: Llama, theirs: llama_cpp.Llama) -> None:
    schema = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}
    tool = {"type": "function", "function": {"name": "lamp", "description": "x", "parameters": schema}}
    choice = {"type": "function", "function": {"name": "lamp"}}
    options: dict[str, Any] = {"tools": [tool], "tool_choice": choice, "max_tokens": 24, "temperature": 0.0}
    mine = ours.create_chat_completion(MESSAGES, **options)
    assert shape(comparable(mine)) == shape(comparable(theirs.create_chat_completion(MESSAGES, **options)))
    assert mine["choices"][0]["finish_reason"] == "tool_calls"


def test_seeds_of_calls_follow_from_the_constructors(models: Models) -> None:
    texts = []
    for _ in range(2):
        llm = Llama(str(models.target), n_ctx=256, n_threads=1, seed=42)
        texts.append([llm(PROMPT, max_tokens=12, temperature=1.0)["choices"][0]["text"] for _ in range(2)])
        llm.close()
    assert texts[0] == texts[1]
    assert texts[0][0] != texts[0][1]
    for of_constructor, of_call in ({}, {"seed": -1}), ({"seed": -1}, {}):
        llm = Llama(str(models.target), n_ctx=256, n_threads=1, **of_constructor)
        options = {"max_tokens": 12, "temperature": 1.2, **of_call}
        drawn = [llm(PROMPT, **options)["choices"][0]["text"] for _ in range(3)]
        llm.close()
        llm = Llama(str(models.target), n_ctx=256, n_threads=1, **of_constructor)
        assert drawn != [llm(PROMPT, **options)["choices"][0]["text"] for _ in range(3)], "-1 draws a seed"
        llm.close()


@pytest.mark.parametrize("text", [b"", b"ab cd", b" leading", "gr\u00fc\u00df \u4e16".encode(), b"\xff\xfe"])
@pytest.mark.parametrize("add_bos", [True, False])
@pytest.mark.parametrize("special", [True, False])
def test_tokens_and_text_are_the_same(
    ours: Llama, theirs: llama_cpp.Llama, text: bytes, add_bos: bool, special: bool
) -> None:
    ids = ours.tokenize(text, add_bos, special)
    assert ids == theirs.tokenize(text, add_bos, special)
    assert ours.detokenize(ids, special=special) == theirs.detokenize(ids, special=special)


def test_a_prompt_that_does_not_fit_is_a_value_error(ours: Llama, theirs: llama_cpp.Llama) -> None:
    for llm in (ours, theirs):
        for n in (512, 600):
            with pytest.raises(ValueError, match=rf"^Requested tokens \({n}\) exceed context window of 512$"):
                llm([5] * n)
    with pytest.raises(ContextFullError):
        ours([5] * 600)


def test_no_argument_of_llama_cpp_is_unknown() -> None:
    """Tests that each argument of llama_cpp's constructor is accepted, or refused with a reason. The default
    values are always accepted.
    """
    from eaglecpp.llama.limits import _ONLY, refuse_others

    mine = set(inspect.signature(Llama.__init__).parameters)
    for name, parameter in inspect.signature(llama_cpp.Llama.__init__).parameters.items():
        if name in ("self", "kwargs") or name in mine:
            continue
        assert name in _ONLY
        refuse_others({name: parameter.default})


@pytest.mark.parametrize("method", ["create_completion", "__call__", "generate", "tokenize", "detokenize"])
def test_methods_take_llama_cpps_arguments(method: str) -> None:
    their = inspect.signature(getattr(llama_cpp.Llama, method)).parameters
    mine = inspect.signature(getattr(Llama, method)).parameters
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in mine.values())
    for name, parameter in their.items():
        assert name in mine or takes_any, f"{method}({name}=...)"
        default = mine.get(name, parameter).default
        assert default == parameter.default or parameter.default == [], f"{method}({name}=...)"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"pooling_type": 9}, "no such pooling"),
        ({"kv_overrides": {"a": 1}}, "kv_overrides"),
        ({"split_mode": 2}, "split_mode=2"),
        ({"chat_handler": object()}, "use llama_cpp.Llama"),
        ({"draft_model": object()}, "path of a drafter GGUF"),
        ({"numa": True}, "numactl"),
        ({"vocab_only": True}, "use llama_cpp.Llama"),
        ({"rope_scaling_type": 2}, "RoPE scaling"),
    ],
)
def test_unsupported_constructor_arguments_are_refused(
    models: Models, arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        Llama(str(models.target), **arguments)
    assert text in str(caught.value)


@pytest.mark.parametrize("works", [True, False])
def test_the_twin_is_not_repacked_if_amx_fails(
    works: bool, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    amx = {"amx": {"claimed": True, "works": works}}
    monkeypatch.setattr(core, "system_info", lambda: amx)
    with contextlib.closing(open_twin({"model_path": str(models.target), "verbose": False})) as twin:
        assert twin.model_params.use_extra_bufts == works
    assert llama_cpp.llama_model_default_params().use_extra_bufts


def test_a_logits_processor_sees_every_logit(ours: Llama, theirs: llama_cpp.Llama) -> None:
    seen: list[int] = []

    def only_even(ids: Any, scores: Any) -> Any:
        seen.append(len(scores))
        scores[1::2] = -np.inf
        return scores

    processors = llama_cpp.LogitsProcessorList([only_even])
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 0.0, "logits_processor": processors}
    assert comparable(ours(PROMPT, **options)) == comparable(theirs(PROMPT, **options))
    assert seen and set(seen) == {ours.n_vocab()}
    whole = ours.create_chat_completion(MESSAGES, **options)
    text = "".join(
        chunk["choices"][0]["delta"].get("content", "")
        for chunk in ours.create_chat_completion(MESSAGES, stream=True, **options)
    )
    assert whole["choices"][0]["message"]["content"] == text
    result = ours.generate(ours.tokenize(b"ab cd"), temp=0.0, logits_processor=processors)
    assert all(next(result) % 2 == 0 for _ in range(5))
    result.close()
    assert "timings" in ours(PROMPT, max_tokens=4), "later calls must be drafted again"


def test_it_is_a_llama_cpp_llama_with_its_attributes(ours: Llama, theirs: llama_cpp.Llama) -> None:
    assert isinstance(ours, llama_cpp.Llama)
    ours(PROMPT, max_tokens=4)
    assert ours.n_tokens > 4
    for one in (ours.tokenizer(), ours.tokenizer_):
        assert isinstance(one, llama_cpp.llama_tokenizer.BaseLlamaTokenizer)
        assert one.encode("ab cd") == theirs.tokenizer().encode("ab cd")
        assert one.decode(one.encode("ab cd")) == theirs.tokenizer().decode(one.encode("ab cd"))
    assert ours.model and ours.ctx and ours._model and ours._ctx
    with pytest.raises(AttributeError, match="no attribute 'wibble'"):
        ours.wibble  # noqa: B018


@pytest.fixture(scope="module")
def with_logits(models: Models) -> Iterator[tuple[Llama, llama_cpp.Llama]]:
    """Yields `eaglecpp.Llama` and `llama_cpp.Llama`, newly opened with logits_all."""
    options: dict[str, Any] = {"n_ctx": 256, "logits_all": True, "verbose": False, "seed": 5}
    mine = Llama(str(models.target), draft_model=models.draft, strategy="chain:3", rng="llama", **options)
    other = llama_cpp.Llama(str(models.target), **options)
    yield mine, other
    mine.close()
    other.close()


def test_no_attribute_of_llama_cpps_instances_is_missing(with_logits: tuple[Llama, llama_cpp.Llama]) -> None:
    """Tests that no attribute of llama_cpp's instances is missing. The test compares all attributes, not only
    the attributes that known frameworks use.
    """
    mine, other = with_logits
    # Each library has its own objects in these attributes.
    own = {"ctx", "model", "draft_model", "n_threads", "n_threads_batch", "_chat_handlers"}
    for name in dir(other):
        if name.startswith("__") or callable(value := getattr(other, name)):
            continue
        found = getattr(mine, name)
        if name not in own and (value is None or isinstance(value, (str, int, float, dict))):
            assert found == value, name
        elif name != "draft_model":
            assert isinstance(found, type(value).__mro__[-2]), name
    assert mine.n_threads > 0 and mine.n_threads_batch > 0


def test_mirostat_takes_the_place_of_the_temperature(with_logits: tuple[Llama, llama_cpp.Llama]) -> None:
    options: dict[str, Any] = {"max_tokens": 12, "seed": 4, "mirostat_mode": 2, "temperature": 0.3}
    mine, other = (llm(PROMPT, **options)["choices"] for llm in with_logits)
    assert mine == other


def test_state_is_that_of_the_last_call_of_either(with_logits: tuple[Llama, llama_cpp.Llama]) -> None:
    """Tests that after a drafted call the caller can read and continue the same state as after a call of
    llama_cpp.
    """
    for llm in with_logits:
        llm(PROMPT, max_tokens=12, temperature=0.0)
    mine, other = with_logits
    assert mine.input_ids[: mine.n_tokens].tolist() == list(other.eval_tokens) == list(mine.eval_tokens)
    np.testing.assert_allclose(mine.scores[: mine.n_tokens], other.scores[: other.n_tokens], atol=1e-3)
    for llm in with_logits:
        llm.eval([7, 8])
    assert list(mine.eval_tokens) == list(other.eval_tokens)
    assert mine.sample(temp=0.0) == other.sample(temp=0.0)
    for llm in with_logits:
        llm("xy", max_tokens=3, temperature=0.0)
    assert list(mine.eval_tokens) == list(other.eval_tokens), "tokens must agree after the next call"
    texts = (llm.generate(llm.tokenize(b"xy"), temp=0.9) for llm in with_logits)
    assert all(a == b for _, a, b in zip(range(12), *texts, strict=False)), "rng must apply to generate too"
    for llm in with_logits:
        llm.reset()
    assert mine.n_tokens == other.n_tokens == 0


def test_a_pickled_model_opens_again_with_its_drafter(with_logits: tuple[Llama, llama_cpp.Llama]) -> None:
    mine, _ = with_logits
    again = pickle.loads(pickle.dumps(mine))
    reply = again(PROMPT, max_tokens=12, temperature=0.0)
    assert reply["choices"] == mine(PROMPT, max_tokens=12, temperature=0.0)["choices"]
    assert reply["timings"]["draft_n"] > 0
    assert again.n_ctx() == mine.n_ctx()
    again.close()


@pytest.mark.parametrize("arguments", [{"suffix": "x"}, {"tfs_z": 0.5}, {"echo": True, "logprobs": 2}])
def test_unsupported_call_arguments_are_refused(ours: Llama, arguments: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError):
        ours(PROMPT, **arguments)
