# SPDX-License-Identifier: MIT
"""Tests what a terminal shows: statistics, tables, progress bars, and text without control characters. Also
tests how typed lines become messages and commands, and Ctrl+C as a request to stop.
"""

from __future__ import annotations

import ast
import logging
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

import eaglecpp.cli
from eaglecpp import Engine
from eaglecpp._extension import core
from eaglecpp.cli.chat.input import is_command, is_open, read_block
from eaglecpp.cli.chat.screen import Screen
from eaglecpp.cli.figures import not_drafted, stats_line, verbose_lines
from eaglecpp.cli.terminal import LogFormatter, Watch, laid_out, note, table, write, write_json
from eaglecpp.human import visible
from eaglecpp.results import PlanReason, Timings
from eaglecpp.store import Status
from eaglecpp.store.progress import Bars, new_bar
from helpers.models import Models

STATS = Timings(prompt_n=26, prompt_ms=110, predicted_n=298, predicted_ms=3900, draft_n=259)
ONE = Timings(predicted_n=1, predicted_ms=0.033)
TREE = "tree 8 nodes, depth 3: expected 2.9 tokens in the time of 1.31 target-only steps"
SLOW = "off: the best draft would reach 0.93 times the target-only speed; drafted in 2 of 90 rounds"


@pytest.mark.parametrize(
    ("stats", "strategy", "why", "speedup", "end"),
    [
        (STATS, "chain:2", "asked for", None, "[ 298 tokens · 76 tokens/s ]"),
        (ONE, "chain:2", "asked for", None, "[ 1 token ]"),
        (STATS, "auto", TREE, 1.9, "[ 298 tokens · 76 tokens/s · 1.9x faster with drafting ]"),
        (STATS, "auto", TREE, 0.93, "[ 298 tokens · 76 tokens/s · no faster with drafting ]"),
        (Timings(), "off", "asked for", None, "[ 0 tokens · drafting off ]"),
        (Timings(), "auto", SLOW, None, " · not drafted: target-only decoding is faster here ]"),
        (
            ONE,
            "auto",
            "off: measuring a target-only step",
            0.93,
            "[ 1 token · not drafted yet: measuring target-only",
        ),
    ],
)
def test_the_line_after_an_answer(
    stats: Timings, strategy: str, why: str, speedup: float | None, end: str
) -> None:
    reason = {SLOW: PlanReason.ALL_REJECTED, TREE: ""}.get(why, PlanReason.CALIBRATING)
    planned = replace(stats, plan={"strategy": strategy, "why": why, "reason": reason})
    assert end in stats_line(planned, has_draft=True, speedup=speedup)


def test_the_planners_reasons_are_known_by_name() -> None:
    """Tests that reasons of the planner are found by their names. A former version searched the names in a
    sentence, in which "waiting" was part of another reason.
    """
    assert list(core.plan_reasons) == list(PlanReason)
    said = not_drafted({"reason": "over_budget", "why": "off: any other words"})
    assert said == "not drafted: drafting did not pay a moment ago; it is tried again soon"


def test_the_line_claims_no_speed_up_from_repetition_and_says_that_no_drafter_was_used() -> None:
    looping = stats_line(replace(STATS, loops=True), has_draft=True, speedup=3.1)
    assert looping == "[ 298 tokens · 76 tokens/s · the answer repeats itself ]"
    assert stats_line(Timings(), has_draft=False) == "[ 0 tokens · no drafter ]"


def test_verbose_has_ollamas_lines_and_none_without_a_value() -> None:
    lines = verbose_lines(STATS, total_ms=4100, load_ms=0)
    assert lines[:2] == ["total duration:       4.10s", "prompt eval count:    26 token(s)"]
    assert "eval rate:            76.41 tokens/s" in lines


def test_the_first_ctrl_c_asks_and_the_second_interrupts() -> None:
    watch = Watch()
    before = signal.getsignal(signal.SIGINT)
    with watch.listening():
        watch.on_prefill(1, 2)
        os.kill(os.getpid(), signal.SIGINT)
        assert watch.requested
        with pytest.raises(KeyboardInterrupt):
            watch.on_prefill(1, 2)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_withheld_text_is_shown_after_ctrl_c(models: Models) -> None:
    with Engine.open(models.target, n_ctx=128, n_threads=1, temperature=0.0) as engine:
        whole = engine.generate("ab cd", max_tokens=8)
        watch, shown = Watch(), list[str]()
        stream = engine.stream(
            "ab cd",
            max_tokens=8,
            # After its first character, the answer may become the stop string. So the remaining text is held
            # back.
            stop=whole.text[1:] + "\0 and more",
            stop_when=lambda tokens: setattr(watch, "requested", len(tokens) == 1),
        )
        watch.follow(stream, lambda chunk: shown.append(chunk.text))
        result = stream.completion()
    assert (result.finish_reason, result.tokens) == ("cancelled", whole.tokens[:1])
    assert len(result.text) > 1 and "".join(shown) == result.text


def test_long_text_wraps_and_a_command_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert table(("NAME", "WHAT"), [("a", "one two three four five six seven eight")]).splitlines() == [
        "NAME    WHAT",
        "a       one two three four five six",
        "        seven eight",
    ]
    assert table(("NAME",), [("a b " * 11,)]).splitlines() == ["NAME", "a b " * 9 + "a b", "a b"]
    path = "/models/" + "x" * 30
    assert table(("NAME", "WHAT"), [("12345678", f"{path} (here)")]).splitlines()[1:] == [
        "12345678", f"  {path}", "            (here)",
    ]  # fmt: skip
    monkeypatch.setenv("COLUMNS", "18")
    assert table(("NAME", "WHAT"), [("12345678", "12345678")]).splitlines()[1] == "12345678  12345678"
    monkeypatch.setenv("COLUMNS", "24")
    assert laid_out("to run it, type `eaglecpp run smollm2` now") == (
        "to run it, type\n`eaglecpp run smollm2`\nnow"
    )


# Typed lines


def typed(*lines: str) -> str:
    """Types lines one after the other, and checks the prompt of each line. Returns the result of
    `read_block`.
    """
    rest = list(lines)

    def ask(prompt: str, default: str) -> str:
        assert prompt == (">>> " if len(rest) == len(lines) else "... ")
        return rest.pop(0)

    text = read_block(ask)
    assert not rest, "the block ended before its last line was read"
    return text


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (["hello"], "hello"),
        (['"""one', "two", 'three"""'], '"""one\ntwo\nthree"""'),
        (['"""', "a", "", "b", '"""  '], '"""\na\n\nb\n"""  '),
        (['"""all in one"""'], '"""all in one"""'),
        (['"""x"""y', '"""'], '"""x"""y\n"""'),
        (['/set system """You', 'are terse."""'], '/set system """You\nare terse."""'),
        (['say """hi'], 'say """hi'),
        (["pasted\nblock\n"], "pasted\nblock\n"),
    ],
)
def test_a_block_continues_until_its_quotes_are_closed(lines: list[str], text: str) -> None:
    assert typed(*lines) == text
    assert not is_open(text)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("/bye\n", True),
        ('/set system """a\nb"""', True),
        (" /bye", False),
        ("// a comment\nint main() {}", False),
    ],
)
def test_a_slash_at_the_beginning_of_one_line_is_a_command(text: str, is_one: bool) -> None:
    assert is_command(text) is is_one


# Progress bars of downloads

MIB = 1 << 20


def download(bars: Bars, file: str, start: int = 0) -> None:
    for done in range(start, 101, 20):
        bars(Status("pulling", "sha256:0", 100 * MIB, done * MIB, file))


@pytest.mark.parametrize(
    ("where", "disabled"), [("terminal", ""), ("notebook", ""), ("terminal", "1"), ("pipe", "")]
)
def test_a_bar_has_size_rate_and_time_left_on_a_terminal(
    where: str, disabled: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", disabled)
    monkeypatch.setattr("eaglecpp.store.progress.new_bar", lambda *a, **k: new_bar(*a, mininterval=0, **k))
    monkeypatch.setattr("sys.stderr.isatty", lambda: where == "terminal")
    if where == "notebook":
        monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    with Bars() as bars:
        bars(Status("pulling manifest"))
        bars(Status("pulling manifest"))
        download(bars, "target.gguf")
        download(bars, "draft.gguf", start=60)
    out, err = capsys.readouterr()
    assert out == "" and bool(err) == (where != "pipe" and not disabled)
    if err:
        lines = err.replace("\r", "\n").splitlines()
        assert lines.count("pulling manifest") == 1
        first = [line for line in lines if line.startswith("pulling target.gguf")][-1]
        assert "100%" in first and "105 MB of 105 MB, " in first and "B/s" in first and " left" in first
        resumed = next(line for line in lines if line.startswith("pulling draft.gguf"))
        assert " 60%" in resumed, "a resumed download must start at 60 %"


# Control characters

EVIL = "a\x1b]0;owned\x07\x1b[2J\x9b31m\r\x7f\u202eb\n"
SHOWN = "a␛]0;owned␇␛[2J\ufffd31m␍␡\ufffdb\n"


@pytest.fixture(params=[True, False], ids=["terminal", "pipe"])
def is_terminal(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> bool:
    for name in (
        "eaglecpp.cli.terminal.stdout_is",
        "eaglecpp.cli.terminal.stderr_is",
        "eaglecpp.cli.chat.screen.stderr_is",
    ):
        monkeypatch.setattr(f"{name}_terminal", lambda: bool(request.param))
    return bool(request.param)


def test_every_output_is_clean(is_terminal: bool, capsys: pytest.CaptureFixture[str]) -> None:
    expected = SHOWN if is_terminal else EVIL
    assert visible(EVIL) == SHOWN
    write(EVIL)
    note(EVIL)
    output = capsys.readouterr()
    assert output.out == expected
    assert ("\x9b" in output.err) != is_terminal
    write_json({"a": "\x1b\x9b"})
    assert capsys.readouterr().out == (
        '{"a": "\\u001b\ufffd"}\n' if is_terminal else '{"a": "\\u001b\x9b"}\n'
    )
    record = logging.LogRecord("eaglecpp", logging.WARNING, "", 0, "%s", (EVIL,), None)
    assert LogFormatter("%(message)s").format(record) == expected
    Screen(is_terminal=is_terminal).note("\x9bx")
    assert ("\x9b" in capsys.readouterr().err) != is_terminal
    eaglecpp.cli.main(["show", "\x9bx"])
    assert ("\x9b" in capsys.readouterr().err) != is_terminal
    Bars()(Status(EVIL))
    assert "\x1b" not in capsys.readouterr().err


def test_only_one_module_writes_to_the_terminal() -> None:
    """Tests that only the module `terminal` writes to the terminal. It removes control characters from all
    output; another module's output would keep them.
    """
    writes = {"print", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write"}
    found = {
        path.name
        for path in Path(eaglecpp.cli.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in writes
    }
    assert found == {"terminal.py"}
