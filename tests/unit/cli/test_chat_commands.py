# SPDX-License-Identifier: MIT
"""Slash commands: Ollama's with Ollama's words, and ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from eaglecpp.cli.chat.chat import Chat
from eaglecpp.cli.chat.commands import COMMANDS
from eaglecpp.cli.chat.model import find_source
from eaglecpp.cli.chat.set import SETTINGS
from eaglecpp.cli.chat.show import FACTS
from eaglecpp.conversations.saved import ChatFolder
from eaglecpp.modelfile import Modelfile
from eaglecpp.modelfile.parameters import PARAMETERS
from helpers.opening import found_file

if TYPE_CHECKING:
    from conftest import Models

Talk = Callable[..., Chat]
Capture = pytest.CaptureFixture[str]


def said(chat: Chat) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in chat.conversation.messages]


# As in Ollama


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("/set parameter top_k 5", "Set parameter 'top_k' to '5'"),
        ("/set parameter stop one two", "Set parameter 'stop' to 'one, two'"),
        ("/set parameter nope 1", "Couldn't set parameter: \"unknown parameter 'nope'\""),
        ("/set parameter top_k x", 'Couldn\'t set parameter: "invalid int value [x]"'),
        ("/set system Be brief.", "Set system message."),
        ("/set wordwrap", "Set 'wordwrap' mode."),
        ("/set nowordwrap", "Set 'nowordwrap' mode."),
        ("/set verbose", "Set 'verbose' mode."),
        ("/set quiet", "Set 'quiet' mode."),
        ("/set think", "Set 'think' mode."),
        ("/set think high", "Set 'think' mode to 'high'."),
        ("/set nothink", "Set 'nothink' mode."),
        ("/set format json", "Set format to 'json' mode."),
        ("/set format", "Invalid or missing format. For 'json' mode use '/set format json'"),
        ("/set format xml", "Invalid or missing format. For 'json' mode use '/set format json'"),
        ("/set noformat", "Disabled format."),
        ("/set nonsense", "Unknown command '/set nonsense'. Type /? for help"),
        ("/show nonsense", "Unknown command '/show nonsense'. Type /? for help"),
        ("/show license", "No license was specified for this model."),
        ("/show system", "No system message was specified for this model."),
        ("/clear", "Cleared session context"),
        ("/load", "Usage:\n  /load <modelname>"),
        ("/load missing.gguf", "Couldn't find model 'missing.gguf'"),
        ("/nonsense", "Unknown command '/nonsense'. Type /? for help"),
        ("/strategi off", "Unknown command '/strategi'. Did you mean /strategy?"),
        ("/set nohistry", "Unknown command '/set nohistry'. Did you mean /set nohistory?"),
        ("/show licence", "Unknown command '/show licence'. Did you mean /show license?"),
        (
            "/set parameter temprature 1",
            "Couldn't set parameter: \"unknown parameter 'temprature'\"; did you mean temperature?",
        ),
        ("/usr/bin/env is a file", "Unknown command '/usr/bin/env'. Type /? for help"),
    ],
)
def test_ollamas_answers(talk: Talk, capsys: Capture, line: str, answer: str) -> None:
    talk(line)
    assert capsys.readouterr().out == f"{answer}\n"


@pytest.mark.parametrize("line", ["/bye", "/exit"])
def test_leaving(talk: Talk, line: str) -> None:
    with pytest.raises(AssertionError, match="ended too early"):
        talk(line, "never asked")


@pytest.mark.parametrize("line", ["/?", "/help"])
def test_help_lists_every_command(talk: Talk, capsys: Capture, line: str) -> None:
    talk(line)
    out = capsys.readouterr().out
    assert out.startswith("Available Commands:\n")
    assert all(name in out for name in COMMANDS)
    assert '"""' in out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/?  set", ["/set parameter", "/set nothink"]),
        ("/help /show", ["/show modelfile"]),
        ("/? shortcuts", ["Ctrl + c", "Ctrl + g"]),
        ("/set", ["/set parameter", "/set format json"]),
        ("/show", ["/show info", "/show template"]),
        ("/set parameter", list(PARAMETERS)),
        ("/set parameter top_k", list(PARAMETERS)),
        ("/? nonsense", ["no help for 'nonsense'", "Available Commands:"]),
    ],
)
def test_help_for_one_thing(talk: Talk, capsys: Capture, line: str, words: list[str]) -> None:
    talk(line)
    out = capsys.readouterr().out
    assert all(word in out for word in words)


def test_parameters_reach_the_answer(talk: Talk) -> None:
    chat = talk("/set parameter num_predict 3", "hello", "/set parameter stop e", "more")
    assert chat.totals.predicted_n <= 6
    assert chat.model.sampling().stop == ("e",)
    assert "e" not in chat.conversation.messages[3].content


def test_a_parameter_out_of_range_is_moved_into_it_and_that_is_said(talk: Talk, capsys: Capture) -> None:
    chat = talk("/set parameter top_p 3")
    assert chat.model.sampling().top_p == 1.0
    assert "the range of top_p is 0 to 1; using 1.0" in capsys.readouterr().err


def test_old_parameters_are_warned_about(talk: Talk, capsys: Capture) -> None:
    talk("/set parameter mirostat 1")
    out, err = capsys.readouterr()
    assert "parameter mirostat is deprecated" in err
    assert out == ""


def test_a_longer_context_reads_the_model_again_and_keeps_the_chat(talk: Talk, capsys: Capture) -> None:
    chat = talk("hello", "/set parameter num_ctx 1024", "more")
    assert chat.model.engine.n_ctx == 1024
    assert len(said(chat)) == 4
    assert "reloaded; context 1024 tokens" in capsys.readouterr().err


def test_a_context_that_cannot_be_had_leaves_the_old_one(talk: Talk, capsys: Capture) -> None:
    chat = talk("/set parameter num_ctx 999999999", "hello")
    assert chat.model.engine.n_ctx == 512
    assert "num_ctx" not in chat.model.parameters
    assert len(said(chat)) == 2
    assert "error: " in capsys.readouterr().err


def test_a_system_prompt_over_several_lines(talk: Talk, capsys: Capture) -> None:
    chat = talk('/set system """You', 'are terse."""', "hello", "/show system", '/system "Other."', "/system")
    assert chat.conversation.system == "Other."
    assert chat.conversation.prompt()[0].content == "Other."
    out = capsys.readouterr().out
    assert "You\nare terse.\n" in out
    assert out.endswith("Set system message.\nOther.\n")


def test_clear_keeps_the_system_prompt_and_begins_another_saved_chat(talk: Talk, folder: ChatFolder) -> None:
    chat = talk("/set system Be brief.", "hello", "/clear", "again")
    assert chat.conversation.system == "Be brief."
    assert len(said(chat)) == 2
    assert len(list(folder.directory.glob("*.json"))) == 2


def test_json_answers(talk: Talk) -> None:
    import json

    options = {"max_tokens": 200, "temperature": 0.8, "seed": 3}
    chat = talk("/set format json", "hello", "/set noformat", options=options)
    assert isinstance(json.loads(chat.conversation.messages[1].content), dict)
    schema = '{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}'
    chat = talk(f"/set format {schema}", "hello", options=options)
    assert list(json.loads(chat.conversation.messages[1].content)) == ["n"]


def test_a_schema_that_is_none_is_refused_at_once(talk: Talk, capsys: Capture) -> None:
    chat = talk('/set format {"type": 3', "hello")
    assert "error: the JSON schema cannot be read" in capsys.readouterr().err
    assert len(said(chat)) == 2


def test_show_tells_what_the_model_is(talk: Talk, models: Models, capsys: Capture) -> None:
    text = (
        "SYSTEM Be brief.\nPARAMETER top_k 7\nPARAMETER stop end\nLICENSE Free.\n"
        "MESSAGE user shown\nMESSAGE assistant first\n"
    )
    source = found_file(models.target, text, models.draft)
    lines = ("info", "license", "parameters", "system", "template", "modelfile")
    talk("/set parameter top_p 0.5", "hello", *(f"/show {line}" for line in lines), source=source)
    out = capsys.readouterr().out
    assert "architecture        llama" in out and "architecture          eagle3" in out
    assert "context     512 tokens (asked for)" in out
    assert "template    Jinja template from the GGUF" in out
    assert "Free.\n" in out
    assert f'Model defined parameters:\n  {"top_k":<30} 7\n  {"stop":<30} "end"\n' in out
    assert "User defined parameters:\n  top_p                          0.5" in out
    assert "{% for message in messages %}" in out
    made = Modelfile.from_text(out[out.index("FROM ") :].rstrip() + "\n")
    assert made.parameters == {"top_k": 7, "stop": ("end",), "top_p": 0.5}
    assert [m.content for m in made.messages][:3] == ["shown", "first", "hello"]
    assert made.draft[0].args == str(models.draft)


def test_loading_another_model_begins_a_new_chat(
    talk: Talk, models: Models, base_model: Path, folder: ChatFolder, capsys: Capture
) -> None:
    chat = talk("hello", f"/load {base_model}", "again", f"/load {models.target} {models.draft}")
    assert chat.model.engine.has_draft
    out, err = capsys.readouterr()
    assert f"Loading model '{base_model}'" in out
    assert "no chat template" in err
    saved = folder.latest()
    assert saved is not None
    assert (saved.model, len(saved.messages)) == (str(base_model), 2)


def test_a_model_that_cannot_be_loaded_leaves_the_chat_as_it_was(
    talk: Talk, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "broken.gguf").write_text("no weights")
    chat = talk("hello", f"/load {tmp_path / 'broken.gguf'}", "/load missing.gguf", "still there?")
    assert len(said(chat)) == 4
    assert "broken.gguf" in capsys.readouterr().err


def test_a_saved_chat_is_a_model_that_begins_with_it(
    talk: Talk, models: Models, folder: ChatFolder, capsys: Capture
) -> None:
    chat = talk(
        "/set system Be brief.", "/set parameter top_k 7", "/strategy chain:2", "hello", "/save mine", "/list"
    )
    out = capsys.readouterr().out
    assert "Created new model 'mine'" in out
    assert "mine:latest" in out[out.index("Created") :]
    saved = find_source("mine")
    assert saved.draft is not None
    assert saved.draft.read_bytes() == models.draft.read_bytes()
    again = talk("more", source=saved, strategy=None)
    assert again.conversation.system == "Be brief."
    assert [(m.role, m.content) for m in again.conversation.examples] == said(chat)
    assert again.model.sampling().top_k == 7
    assert str(again.model.strategy) == "chain:2"
    assert folder.latest("mine:latest") is not None


def test_a_chat_with_a_stored_model_is_saved_on_top_of_it(
    talk: Talk, models: Models, capsys: Capture
) -> None:
    talk("/set parameter top_k 7", "/set system One.", "/save base")
    capsys.readouterr()
    talk("/set parameter top_p 0.5", "hello", "/save derived", source=find_source("base"))
    assert "base:latest · drafter eagle3 · context" in capsys.readouterr().err, "not the name of a blob"
    derived = find_source("derived")
    assert derived.modelfile.parameters == {"top_k": 7, "top_p": 0.5}
    assert derived.modelfile.system == "One."
    assert len(derived.modelfile.messages) == 2
    assert derived.target.samefile(find_source("base").target), "the weights are not copied"


def test_a_name_that_is_none_is_refused(talk: Talk, capsys: Capture) -> None:
    talk("/save", "/save a/b/c/d/e")
    out = capsys.readouterr().out
    assert out == "Usage:\n  /save <modelname>\nerror: The model name 'a/b/c/d/e' is invalid\n"


# Ours


def test_regen_answers_again_with_another_seed(talk: Talk) -> None:
    options = {"temperature": 1.5, "seed": 1, "max_tokens": 20}
    once = talk("hello", options=options)
    chat = talk("hello", "/regen", options=options)
    assert len(said(chat)) == 2
    assert said(chat)[1] != said(once)[1]
    assert said(talk("hello", "/regen", options=options)) == said(chat), "and is repeatable"


def test_regen_at_temperature_0_says_that_nothing_changes(talk: Talk, capsys: Capture) -> None:
    chat, once = talk("hello", "/regen"), talk("hello")
    assert said(chat) == said(once)
    assert "temperature is 0" in capsys.readouterr().err


def test_there_is_nothing_to_regenerate_at_first(talk: Talk, capsys: Capture) -> None:
    talk("/regen", "/edit")
    err = capsys.readouterr().err
    assert "error: there is no question to answer again" in err
    assert "error: there is no question to edit" in err


def test_edit_offers_the_last_question_and_asks_it_changed(talk: Talk) -> None:
    chat = talk("one", "two", "/edit", lambda question: question + " three")
    assert [content for role, content in said(chat) if role == "user"] == ["one", "two three"]
    chat = talk("one", '/edit """a', 'b"""')
    assert [content for role, content in said(chat) if role == "user"] == ["a\nb"]


def test_an_edit_that_is_dropped_changes_nothing(talk: Talk) -> None:
    once = talk("one")
    assert said(talk("one", "/edit", KeyboardInterrupt("half"))) == said(once)
    assert said(talk("one", "/edit", "")) == said(once)


def test_a_file_overrides_the_next_message_and_only_that(talk: Talk, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "my notes.txt"
    path.write_text("first line\nsecond line\n", encoding="utf-8")
    chat = talk(f"/read {path}", f'/read "{path}"', "sum up", "more")
    questions = [content for role, content in said(chat) if role == "user"]
    file = "my notes.txt:\n\nfirst line\nsecond line\n"
    assert questions == [f"{file}\n\n{file}\n\nsum up", "more"]
    assert "2 lines, " in capsys.readouterr().out


def test_files_that_cannot_be_read_are_named(talk: Talk, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "long").write_text("word " * 5000)
    talk("/read", "/read missing.txt", f"/read {tmp_path / 'binary'}", f"/read {tmp_path / 'long'}")
    err = capsys.readouterr().err
    for text in ("needs a file name", "missing.txt", "not a text file in UTF-8", "the context of 512"):
        assert text in err


@pytest.mark.parametrize(
    "strategy", ["chain:2", "chain:24", "tree:k=2,depth=3,nodes=6", "tree:k=4,depth=6,nodes=40"]
)
def test_a_strategy_changes_how_and_not_what(talk: Talk, strategy: str, capsys: Capture) -> None:
    plain = talk("/strategy off", "hello", options={"max_tokens": 30})
    chat = talk(f"/strategy {strategy}", "hello", options={"max_tokens": 30})
    assert said(chat) == said(plain)
    assert (plain.totals.draft_n, chat.totals.draft_n > 0) == (0, True)
    assert chat.totals.plan["strategy"] == strategy
    assert f"Strategy: {strategy} (asked for)" in capsys.readouterr().out


def test_a_drafter_left_out_at_first_is_loaded_when_it_is_wanted(talk: Talk, models: Models) -> None:
    source = found_file(models.target, "#eaglecpp: strategy off\n", models.draft)
    chat = talk("hello", "/strategy chain:2", "more", source=source, strategy=None)
    assert chat.totals.draft_n > 0


def test_a_strategy_that_cannot_be_is_refused(talk: Talk, models: Models, capsys: Capture) -> None:
    chat = talk("/strategy chain:x", "/strategy chain:4", "hello", source=find_source(str(models.target)))
    err = capsys.readouterr().err
    assert "a chain needs a depth" in err and "needs a drafter" in err
    assert len(said(chat)) == 2


def test_the_speed_up_is_known_after_a_plain_answer(talk: Talk, capsys: Capture) -> None:
    talk("hello", "/stats", options={"max_tokens": 30, "exact": "off"})
    assert "speed-up:           unknown" in capsys.readouterr().out
    lines = ("/strategy off", "hello", "/strategy chain:2", "more", "/stats")
    talk(*lines, options={"max_tokens": 30, "exact": "off"})
    out, err = capsys.readouterr()
    assert "x plain decoding" in out
    assert "x plain ]" in err.splitlines()[-2]


def test_the_planner_knows_the_speed_up_by_itself(talk: Talk, capsys: Capture) -> None:
    chat = talk("hello", "/stats", strategy="auto", options={"max_tokens": 400, "ignore_eos": True})
    plan = chat.totals.plan
    assert plan["strategy"] == "auto"
    out, err = capsys.readouterr()
    assert " · auto: " in err or " · not drafted" in err
    if "plain steps" in plan["why"]:  # it did draft, most of the time
        assert "x plain ]" in err
        assert "x plain decoding" in out


def test_stats_count_everything(talk: Talk, capsys: Capture) -> None:
    chat = talk("hello", "more", "/stats")
    out = capsys.readouterr().out
    assert "answers:            2" in out
    assert "generated:          24 tokens" in out
    assert f"{chat.totals.reused_n} taken from the cache" in out
    assert f"context:            {chat.n_prompt()} of 512 tokens" in out


def test_color_is_switched(talk: Talk, capsys: Capture) -> None:
    chat = talk("/color", "/color on", "/color off", "/color on")
    assert chat.screen.color
    assert capsys.readouterr().out.count("shown in colour") == 3
    talk("/color blue")
    assert "error: /color is on or off" in capsys.readouterr().err


def test_every_command_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[3] / "docs" / "chat.md").read_text(encoding="utf-8")
    for name in COMMANDS:
        assert f"`{name}" in page, f"docs/chat.md does not explain {name}"
    for word in SETTINGS:
        assert f"`/set {word}" in page
    for word in FACTS:
        assert f"`{word}`" in page or f"`/show {word}`" in page
