# SPDX-License-Identifier: MIT
"""Tests the chat as its user sees it: the installed command runs in a pseudo-terminal."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

if sys.platform == "win32":
    pytest.skip("pseudo-terminals of POSIX", allow_module_level=True)

from helpers.command import COMMAND
from helpers.models import Models
from helpers.terminal import CTRL_C, CTRL_D, ENTER, TAB, Terminal

# Python warns about forks in processes with threads. This child process is safe, because it runs another
# program at once.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

Open = Callable[..., Terminal]
CHAIN = ("--strategy", "chain:3")  # a fixed strategy, because the drafts of `auto` depend on the clock
SHORT = ("--temp", "0", "-t", "1", "--ctx-size", "2048", "--max-repeats", "0")


@pytest.fixture
def chat(models: Models, tmp_path: Path) -> Open:
    """Returns a function `chat("--continue")` that starts a chat with the tiny pair and waits for the first
    prompt.
    """

    def run(*args: Any, n: int = 12) -> Terminal:
        command = [COMMAND, "run", models.target, "--draft", models.draft, "-n", n, *CHAIN, *SHORT, *args]
        terminal = Terminal([str(word) for word in command], tmp_path)
        terminal.wait_for_prompt()
        return terminal

    return run


def saved_chats(home: Path) -> list[dict[str, Any]]:
    paths = sorted((home / "chats").glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def questions(home: Path) -> list[str]:
    messages = saved_chats(home)[-1]["messages"]
    return [message["content"] for message in messages if message["role"] == "user"]


def test_a_chat_is_saved_and_can_be_continued(chat: Open, cli: Callable[..., Any], home: Path) -> None:
    with chat() as terminal:
        terminal.say("hello there", "[ 12 tokens")
        assert terminal.leave() == 0
    assert "with a drafter · context 2048 tokens" in terminal.text
    saved = saved_chats(home)[0]
    assert f">>> hello there\n{saved['messages'][1]['content']}\n[ 12 tokens · " in terminal.text
    assert "to continue this chat: `eaglecpp run" in " ".join(terminal.text.split())
    done = cli("run", saved["model"], "--continue", "and then", "--verbose", "-n", "12", *CHAIN, *SHORT)
    assert done.returncode == 0
    assert "acceptance length" in done.stderr, "a continued chat must use its drafter again"
    assert "[ 12 tokens" not in done.stderr, "--verbose must replace the short line"
    assert questions(home) == ["hello there", "and then"]
    assert done.stdout == saved_chats(home)[0]["messages"][3]["content"] + "\n"


def test_a_pasted_block_is_one_message_whatever_its_first_character(chat: Open, home: Path) -> None:
    block = "\n".join(f"{number} the man" for number in range(200))
    shown = ">>> [pasted 200 lines]"
    program = '"""A module."""  # \U000f0000, an icon of a font\n\nimport os\n'
    with chat(n=4) as terminal:
        for n_answers, (pasted, end) in enumerate([(block, shown), (program, "... import os")], 1):
            terminal.paste(pasted)
            terminal.wait(end)
            terminal.type(ENTER)
            terminal.wait("[ 4 tokens", count=n_answers)
            terminal.wait_for_prompt()
        terminal.leave()
    assert questions(home) == [block, program.strip("\n")]
    assert terminal.text.count(shown) == 1 and "99 the man" not in terminal.text
    assert "+199 the man" in (home / "history").read_text(encoding="utf-8"), "expected the whole block"


def test_a_block_pasted_during_an_answer_is_one_message_and_runs_no_command(chat: Open, home: Path) -> None:
    block = "the man\n/clear\n/set parameter num_predict 3\n\n" + "\n".join(f"{n} the man" for n in range(99))
    with chat("--ignore-eos", n=1900) as terminal:
        terminal.type("tell me everything" + ENTER)
        terminal.wait_until(lambda: len(terminal.text) > 400)
        terminal.paste(block)
        terminal.wait_until(lambda: len(terminal.text) > 800)
        terminal.type(CTRL_C)
        terminal.wait("[pasted 103 lines]")
        terminal.type(ENTER)
        terminal.wait(" tokens/s")
        terminal.wait_until(lambda: len(questions(home)) == 2, "the second question on the disk")
        terminal.wait_until(lambda: len(terminal.text.rpartition("[pasted 103 lines]")[2]) > 100)
        terminal.type(CTRL_C)
        terminal.wait_for_prompt()
        assert terminal.leave() == 0
    assert questions(home) == ["tell me everything", block]
    assert terminal.raw.endswith("\x1b[?2004l"), "the command must turn bracketed paste off again"


def test_ctrl_c_stops_the_answer_and_the_chat_continues(chat: Open, home: Path) -> None:
    with chat("--ignore-eos", n=1900) as terminal:
        terminal.type("tell me everything" + ENTER)
        terminal.wait("tell me everything")
        terminal.wait_until(lambda: len(terminal.text) > 400)
        terminal.type(CTRL_C)
        terminal.wait(" tokens/s")
        terminal.wait_for_prompt()
        terminal.say("/set parameter num_predict 5", "'num_predict' to '5'")
        terminal.say("still there?", "[ 5 tokens")
        terminal.type(CTRL_C)
        terminal.wait("Use Ctrl + d or /bye to exit.")
        assert terminal.leave() == 0
    messages = saved_chats(home)[0]["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2
    partial = messages[1]["content"]
    assert partial and "".join(partial.split()) in "".join(terminal.text.split())
    assert "^C" not in terminal.text


def test_a_killed_chat_can_be_continued(chat: Open, home: Path) -> None:
    with chat("--ignore-eos", n=1900) as terminal:
        terminal.say("/set parameter num_predict 12" + ENTER + "hello", "[ 12 tokens")
        terminal.say("/set parameter num_predict 1900", "'num_predict' to '1900'")
        terminal.type("tell me everything" + ENTER)
        terminal.wait_until(lambda: questions(home)[-1] == "tell me everything", "the question on the disk")
        os.kill(terminal.process.pid, signal.SIGKILL)
    with chat("--continue") as terminal:
        assert "this question has no answer yet; /regen answers it" in terminal.text
        terminal.say("/regen", "[ 12 tokens")
        terminal.leave()
    assert [message["role"] for message in saved_chats(home)[0]["messages"]] == ["user", "assistant"] * 2
    assert questions(home) == ["hello", "tell me everything"]


def test_tab_completes_commands_parameters_and_files(chat: Open, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("some words", encoding="utf-8")
    with chat() as terminal:
        terminal.say("/save mine", "Created new model 'mine'")
        for typed, offered, whole in (
            ("/str", "Show or set how to draft", "/strategy"),
            ("/set parameter num_thr", "one per physical core", "/set parameter num_thread"),
            ("/read no", "notes.txt", "/read notes.txt"),
            ("/load mi", "/load mi", "/load mine"),
        ):
            terminal.type(typed)
            terminal.wait(offered)
            terminal.type(TAB)
            terminal.wait(f">>> {whole}")
            terminal.type(CTRL_C)
            terminal.wait_for_prompt()
        terminal.type(CTRL_D)


def test_no_key_in_any_state_ends_the_prompt(chat: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("VISUAL", "EDITOR"):  # Ctrl+G starts the editor in these variables
        monkeypatch.setenv(variable, "true")
    states = {"empty": "", "typed": "hel", "menu": "/se", "chosen in the menu": "/se\t"}
    states |= {"search": "\x12hel", "search without a match": "\x12xyz", "lines": "one\x1b\rtwo"}
    keys = {
        "Ctrl+C": CTRL_C,
        "Ctrl+D": CTRL_D,
        "Ctrl+G": "\x07",
        "Ctrl+R": "\x12",
        "Escape": "\x1b",
        "Tab": TAB,
    }
    keys |= {"Up": "\x1b[A", "paste": "\x1b[200~a\rb\x1b[201~", "Alt+Enter": "\x1b\r"}
    with chat() as terminal:
        terminal.say("hello", "[ 12 tokens")
        for state, typed in states.items():
            for key, sent in keys.items():
                if (state, key) == ("empty", "Ctrl+D"):
                    continue
                terminal.type(typed)
                terminal.type(sent)
                terminal.type(CTRL_C + CTRL_C)
                mark = f"{key} in {state}"
                terminal.type(mark)
                terminal.wait_until(lambda: terminal.line == f">>> {mark}", mark, 60)  # noqa: B023
                terminal.type(CTRL_C)
                terminal.wait_for_prompt()
        terminal.type("\x12hel")
        terminal.wait("(reverse-i-search)`hel': hello")
        os.kill(terminal.process.pid, signal.SIGINT)
        terminal.wait_for_prompt()
        assert terminal.leave() == 0


def test_further_lines_of_a_block_have_no_placeholder(chat: Open, home: Path) -> None:
    with chat() as terminal:
        terminal.type('"""one' + ENTER)
        terminal.wait_until(lambda: terminal.line.startswith("..."))
        terminal.type("two")
        terminal.wait("... two")
        assert "Send a message" not in terminal.raw.rpartition('>>> """one')[2]
        terminal.say('"""', "[ 12 tokens")
        terminal.leave()
    assert questions(home) == ["one\ntwo"]


def test_typed_lines_come_back_with_the_up_arrow_in_the_next_chat(chat: Open, home: Path) -> None:
    with chat() as terminal:
        terminal.say("remember this", "[ 12 tokens")
        terminal.say("/set nohistory", "Set 'nohistory' mode.")
        terminal.say("but not this", "[ 12 tokens", count=2)
        terminal.leave()
    assert (home / "history").stat().st_mode & 0o777 == 0o600
    assert "but not this" not in (home / "history").read_text(encoding="utf-8")
    with chat() as terminal:
        terminal.type("\x1b[A\x1b[A")
        terminal.wait(">>> remember this")
        terminal.type(CTRL_C)
        terminal.wait_for_prompt()
        terminal.type(CTRL_D)
