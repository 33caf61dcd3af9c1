# SPDX-License-Identifier: MIT
"""Tests tokenization. The ids equal llama.cpp's. Tokenizing takes linear time, returns at most the requested
number of tokens, and does not block other Python threads.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import llama_cpp
import pytest

from eaglecpp import Engine
from eaglecpp._extension import core
from eaglecpp.engine.request import native_options
from eaglecpp.errors import ContextFullError
from eaglecpp.options import DraftOptions, ModelOptions, Strategy
from helpers.http_server import TARGET
from helpers.models import installed_smollm2
from helpers.script import run_script
from helpers.vocabularies import SPECIALS, write_bpe, write_spaced_bpe, write_spm

pytestmark = pytest.mark.alone  # these tests measure time

PRE = ("gpt-2", "default", "qwen2", "llama-bpe", "smollm", "tekken")
# For these pre-tokenizers, llama.cpp only has a regular expression.
STD_REGEX = ("tekken", "deepseek-v3", "gpt-4o")
# there are fewer texts, because llama.cpp compiles the regular expression for every text
N_TEXTS = {"tekken": 25}
PARTS = (
    *(*SPECIALS, "<|im_", "|>", "<|", "</s>", "<s>", "<unk>", "<|endoftext|", "<|bos|>", "<b", "b>", "_"),
    *("\n", "\r\n", " ", "   ", "\t", "the", " and", "word", "Aa", "aaaa", "1", "1234567", "'s", "'", "!?"),
    *("...", "é", "中文", "🙂", "▁", "▁the", "\u00a0", "\x04", "\x00"),
)


def some_text(rng: random.Random) -> str:
    """Returns a mixed text, often with long runs of one kind."""
    parts = rng.choices(PARTS, k=rng.randrange(1, 6))
    return "".join(part * (1 if rng.random() < 0.7 else rng.randrange(2, 20))
                   for part in rng.choices(parts, k=rng.randrange(1, 25)))  # fmt: skip


MODELS: dict[str, Callable[[Path], Path]] = {
    "demo": lambda folder: TARGET,
    "smollm2": lambda folder: installed_smollm2(),
    **{pre: lambda folder, pre=pre: write_bpe(folder / "bpe.gguf", pre) for pre in PRE},  # type: ignore[misc]
    "spaced bpe": lambda folder: write_spaced_bpe(folder / "spaced.gguf"),
    "spm": lambda folder: write_spm(folder / "spm.gguf"),
    "spm, stripping": lambda folder: write_spm(folder / "phi.gguf", "phi-3"),
    # These special tokens have the same length, and the beginning of one token is the end of the other.
    # llama.cpp does not guarantee which token it finds first.
    "overlapping": lambda folder: write_bpe(folder / "overlap.gguf", "gpt-2", ("aab", "baa")),
}


@contextmanager
def engine_of(name: str, folder: Path) -> Iterator[Engine]:
    with Engine.open(MODELS[name](folder), n_ctx=256, n_threads=1, exact="off") as engine:
        yield engine


@pytest.mark.parametrize("name", MODELS)
def test_the_ids_equal_llama_cpps_up_to_the_requested_number(
    name: str, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    rng = random.Random(pytestconfig.getoption("--seed"))
    with engine_of(name, tmp_path) as engine:
        theirs = llama_cpp.Llama(str(engine.target_path), vocab_only=True, verbose=False)
        tokenize = engine.native.tokenize
        for _ in range(N_TEXTS.get(name, 200)):
            text = some_text(rng).encode()
            for options in product((False, True), (False, True)):
                assert tokenize(text, *options) == theirs.tokenize(text, *options), text
            text, special = text * rng.choice((1, 1, 8)), rng.random() < 0.5
            tokens = tokenize(text, True, special)
            for n in (len(tokens), len(tokens) + rng.randrange(3)):
                assert tokenize(text, True, special, n) == tokens, "n_max must not change a text that fits"
            for n in (len(tokens) - 1, rng.randrange(len(tokens))) if tokens else ():
                assert tokenize(text, True, special, n) is None, text
        theirs.close()


@pytest.mark.parametrize(
    "text",
    ["<|im_end|>" * 100_000, " " * 4_000_000, "'s" * 5_000_000, "word " * 4_000_000, "a\n" * 4_000_000],
    ids=["special tokens", "spaces", "'s", "words", "lines"],
)
def test_a_prompt_that_cannot_fit_is_refused_before_it_is_tokenised(text: str) -> None:
    """Tests that a prompt that cannot fit into the context is refused before it is tokenized. llama.cpp takes
    98 seconds to tokenize the longest of these prompts.
    """
    with Engine.open(TARGET, n_ctx=1024, n_threads=1, exact="off") as engine:
        engine.generate("a", max_tokens=1)
        started = time.process_time()
        with pytest.raises(ContextFullError, match=r"least 1024 tokens.*exceeds .*context size of 1024"):
            engine.generate(text)
        assert time.process_time() - started < 1.0


def test_special_tokens_are_found_in_linear_time() -> None:
    with Engine.open(TARGET, n_ctx=64, n_threads=1, exact="off") as engine:
        (end,) = engine.tokenize("<|im_end|>", add_bos=False)
        started = time.process_time()
        assert engine.tokenize("<|im_end|>" * 200_000, add_bos=False) == [end] * 200_000
        assert time.process_time() - started < 5.0  # llama.cpp's own search takes minutes for this text


@pytest.mark.parametrize("pre", STD_REGEX)
def test_a_long_word_does_not_overflow_the_stack(pre: str, tmp_path: Path) -> None:
    """A long word must not overflow the stack, although std::regex recurses for each character."""
    path = write_bpe(tmp_path / "bpe.gguf", pre)
    program = (
        "import sys\n"
        "from eaglecpp import Engine\n"
        "with Engine.open(sys.argv[1], n_ctx=64, n_threads=1, exact='off') as engine:\n"
        "    for text in ('a', ' ', '\\n', '.', 'é'):\n"
        "        engine.tokenize(text * 150_000)\n"
    )
    done = run_script(program, path)
    assert done.returncode == 0, done.stderr[-500:]


def lets_others_run(work: Callable[[], object]) -> bool:
    """Returns True if another Python thread runs during `work`. Thread switching is disabled, so the other
    thread runs only if `work` releases the GIL. The function tries several times, because the system may wake
    the other thread too late.
    """
    old = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)
    try:
        for _ in range(20):
            gate, ran = threading.Lock(), []
            gate.acquire()
            other = threading.Thread(target=lambda gate=gate, ran=ran: ran.append(gate.acquire()))  # type: ignore[misc]
            other.start()  # `start` returns when the thread waits at the gate or is about to wait
            time.sleep(0.01)
            gate.release()
            work()
            did_run = bool(ran)
            other.join()
            if did_run:
                return True
        return False
    finally:
        sys.setswitchinterval(old)


def test_other_threads_run_while_a_long_text_is_tokenised() -> None:
    data = b"import os\n\ndef join(paths):\n    return os.path.join(*paths)\n" * 8000
    with Engine.open(TARGET, n_ctx=64, n_threads=1, exact="off") as engine:
        native = engine.native
        tokens = native.tokenize(data, False, True)
        assert not lets_others_run(lambda: sum(range(10_000))), "the check must fail if the GIL is held"
        assert lets_others_run(lambda: native.tokenize(data, False, True))
        assert lets_others_run(lambda: native.detokenize(tokens, False, False))


def test_other_threads_run_while_a_model_opens_and_closes() -> None:
    model, off = ModelOptions(n_ctx=64, n_threads=1), Strategy("off")
    options = native_options(TARGET, None, model, DraftOptions(exact="off"), off)
    assert lets_others_run(lambda: core.Engine(options))
    opened = [core.Engine(options) for _ in range(20)]
    assert lets_others_run(lambda: opened.pop().close())


def test_an_engine_may_be_closed_while_a_thread_tokenises() -> None:
    """Tests closing an engine while a thread tokenizes. The thread gets its tokens, and only then the engine
    is freed.
    """
    data = b"def join(paths): return 1\n" * 40_000
    engine = Engine.open(TARGET, n_ctx=64, n_threads=1, exact="off")
    native, found = engine.native, []
    thread = threading.Thread(target=lambda: found.append(len(native.tokenize(data, False, True))))
    thread.start()
    time.sleep(0.05)
    engine.close()
    with pytest.raises(ValueError, match="closed"):
        native.tokenize(b"a", False, True)
    thread.join()
    assert found and found[0] > 40_000
