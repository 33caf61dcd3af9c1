# SPDX-License-Identifier: MIT
"""Tests the line with statistics, and Ctrl+C as a request to stop."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace

import pytest

from eaglecpp import Engine
from eaglecpp._extension import core
from eaglecpp.cli.figures import not_drafted, stats_line, verbose_lines
from eaglecpp.cli.terminal import Watch, laid_out, table
from eaglecpp.results import PlanReason, Timings
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
