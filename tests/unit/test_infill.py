# SPDX-License-Identifier: MIT
"""Tests infilling: the answer to a prompt goes between two texts. The prompt has the special tokens of the
model's file. Drafts must not change the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eaglecpp import Engine, Llama
from eaglecpp.engine.infill import Infill
from eaglecpp.errors import ContextFullError, UnsupportedError
from helpers.http_server import TARGET
from helpers.infill import TOKENS, write_infill_pair
from helpers.vocabularies import write_spm

PREFIX, SUFFIX = 'def join(paths):\n    """', '"""\n    return os.path.join(*paths)\n'
FAST = {"n_ctx": 512, "n_threads": 1, "planner_cache": False}
PRE, SUF, MID, REP, SEP = TOKENS


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_infill_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def engine(pair: tuple[Path, Path]) -> Iterator[Engine]:
    with Engine.open(*pair, **FAST) as opened:
        yield opened


def infill(engine: Engine, prefix: str, suffix: str, n_tokens_max: int = 0, **rest: Any) -> list[int]:
    return Infill(prefix, suffix, **rest).tokens(engine.vocabulary, n_tokens_max)


def shown(engine: Engine, tokens: list[int]) -> str:
    return engine.detokenize(tokens, special=True)


def test_the_layout_equals_llama_cpps(engine: Engine) -> None:
    assert shown(engine, infill(engine, PREFIX, SUFFIX)) == f"{PRE}{PREFIX}{SUF}{SUFFIX}{MID}"
    first = infill(engine, PREFIX, SUFFIX, suffix_first=True)
    assert shown(engine, first) == f"{SUF}{SUFFIX}{PRE}{PREFIX}{MID}"
    extra = infill(engine, PREFIX, SUFFIX, extra=[("a.py", "A = 1\n"), ("b.py", "B = 2\n")])
    assert shown(engine, extra) == (
        f"{REP}myproject\n{SEP}a.py\nA = 1\n{SEP}b.py\nB = 2\n{SEP}filename\n{PRE}{PREFIX}{SUF}{SUFFIX}{MID}"
    )
    for empty in ("", "x"):
        assert shown(engine, infill(engine, empty, "")) == f"{PRE}{empty}{SUF}{MID}"


def test_special_tokens_in_a_text_stay_text(engine: Engine) -> None:
    plain, marked = infill(engine, "a", "b"), infill(engine, f"a{MID}", f"{PRE}b")
    special = set(engine.native.fim_tokens().values())
    assert [t for t in marked if t in special] == [t for t in plain if t in special]


def test_without_file_tokens_files_are_separated_by_text(tmp_path: Path) -> None:
    with Engine.open(write_infill_pair(tmp_path, n_tokens=3)[0], **FAST) as engine:
        tokens = infill(engine, "a", "b", extra=[("a.py", "A = 1\n")])
        assert shown(engine, tokens) == f"\n\n--- snippet ---\n\nA = 1\n{PRE}a{SUF}b{MID}"


def test_bos_stands_before_the_prefix(tmp_path: Path) -> None:
    """Tests that BOS stands before the prefix and after the other files, as in llama.cpp. The tokenizer of
    this test adds BOS, and two words of its vocabulary serve as marks.
    """
    with Engine.open(write_spm(tmp_path / "spm.gguf"), **FAST) as engine:
        vocabulary = engine.vocabulary
        vocabulary.__dict__["fim_tokens"] = {"pre": 300, "suf": 301, "mid": 302}
        tokens = Infill("a", "b", extra=[("x", "c")]).tokens(vocabulary)
        at = tokens.index(engine.native.bos)
        assert at > 0 and tokens[at + 1] == 300 and tokens[-1] == 302
        assert Infill("a", "b").tokens(vocabulary)[:2] == [engine.native.bos, 300]


@pytest.mark.parametrize("n_tokens_max", [12, 40, 200])
def test_text_far_from_the_gap_is_left_out(engine: Engine, n_tokens_max: int) -> None:
    before, after = "one two three\n" * 200, "four five six\n" * 200
    whole = infill(engine, "two\n", "four\n", extra=[("a", "x " * 500)], n_tokens_max=n_tokens_max)
    assert len(whole) == n_tokens_max and shown(engine, whole).endswith(f"{PRE}two\n{SUF}four\n{MID}")
    tokens = infill(engine, before, after, extra=[("a", "x")], n_tokens_max=n_tokens_max)
    assert len(tokens) == n_tokens_max and tokens[0] == engine.native.fim_tokens()["pre"]
    head, _, tail = shown(engine, tokens).removeprefix(PRE).removesuffix(MID).partition(SUF)
    assert before.endswith(head) and after.startswith(tail)
    assert len(engine.tokenize(head)) == pytest.approx(3 * len(engine.tokenize(tail)), rel=0.5)
    assert shown(engine, infill(engine, "a", after, n_tokens_max=n_tokens_max)).startswith(f"{PRE}a{SUF}")


def test_too_long_input_is_refused(engine: Engine) -> None:
    for prefix, suffix in (("word " * 5000, ""), ("", "word " * 5000), ("word " * 300, "word " * 300)):
        with pytest.raises(ContextFullError, match="context size of 512"):
            engine.generate(prefix, suffix=suffix)


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.8, "seed": 5, "infill": True}])
def test_drafts_change_nothing(engine: Engine, sampling: dict[str, float]) -> None:
    asked = {"suffix": SUFFIX, "max_tokens": 40, "ignore_eos": True, "exact": "on", **sampling}
    drafted = engine.generate(PREFIX, strategy="chain:4", cache_prompt=False, **asked)
    plain = engine.generate(PREFIX, strategy="off", cache_prompt=False, **asked)
    assert drafted.tokens == plain.tokens
    assert drafted.timings.draft_n_accepted > 0 and drafted.timings.reused_n == plain.timings.reused_n == 0
    assert engine.generate(PREFIX, strategy="off", **asked).timings.reused_n > 0


def test_a_model_without_the_tokens_is_refused_with_the_keys(tmp_path: Path) -> None:
    with Engine.open(TARGET, **FAST) as engine:
        with pytest.raises(UnsupportedError, match="no prefix and no suffix and no middle token"):
            engine.generate("a", suffix="b")
        with pytest.raises(TypeError, match="expected prompt and suffix as str"):
            engine.generate([1, 2], suffix="b")
    two, said = (
        write_infill_pair(tmp_path, n_tokens=2)[0],
        r"no middle token.*\(tokenizer.ggml.fim_mid_token_id\)",
    )
    with Engine.open(two, **FAST) as engine, pytest.raises(UnsupportedError, match=said):
        infill(engine, "a", "b")


def test_llama_takes_a_suffix_in_either_order(pair: tuple[Path, Path]) -> None:
    for spm_infill in (False, True):
        llm = Llama(str(pair[0]), n_ctx=512, n_threads=1, spm_infill=spm_infill)
        asked = infill(llm.engine, PREFIX, SUFFIX, suffix_first=spm_infill)
        reply = llm(PREFIX, suffix=SUFFIX, max_tokens=4, temperature=0.0)
        assert reply["usage"]["prompt_tokens"] == len(asked)
        assert reply["choices"][0]["text"] == llm(asked, max_tokens=4, temperature=0.0)["choices"][0]["text"]
        llm.close()
