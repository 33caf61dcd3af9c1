# SPDX-License-Identifier: MIT
"""Tests the chat without a terminal, with scripted input, a real tiny model and captured output."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from eaglecpp.chat.images import image_mark
from eaglecpp.chat.message import Role
from eaglecpp.cli.chat.chat import Chat
from eaglecpp.cli.chat.commands import COMMANDS
from eaglecpp.cli.open_engine import look_up
from eaglecpp.conversations.saved import ChatFolder
from eaglecpp.engine import loading
from eaglecpp.engine.engine import Engine
from eaglecpp.engine.exactness import Exactness
from eaglecpp.modelfile import Modelfile
from helpers.models import Models
from helpers.opening import found_file
from helpers.tiny_projector import make_image, make_projector

Talk = Callable[..., Chat]
Capture = pytest.CaptureFixture[str]


def said(chat: Chat) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in chat.conversation.messages]


# Commands that Ollama has too


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("/set parameter top_k 5", "Set parameter 'top_k' to '5'"),
        ("/set parameter stop one two", "Set parameter 'stop' to 'one, two'"),
        ("/set system Be brief.", "Set system message."),
        ("/set nowordwrap", "Set 'nowordwrap' mode."),
        ("/set think high", "Set 'think' mode to 'high'."),
        ("/set format json", "Set format to 'json' mode."),
        ("/set format", "Usage:\n  /set format <json|schema>"),
        ("/show license", "No license was specified for this model."),
        ("/show system", "No system message was specified for this model."),
        ("/clear", "Cleared session context"),
        ("/load", "Usage:\n  /load <model or chat>"),
        ("/strategi off", "Unknown command '/strategi'. Did you mean /strategy?"),
        ("/show licence", "Unknown command '/show licence'. Did you mean /show license?"),
        ("/ hello", "Unknown command '/'. Type /? for help"),
        ("/usr/bin/env is a file", "Unknown command '/usr/bin/env'. Type /? for help"),
    ],
)
def test_ollamas_answers(talk: Talk, capsys: Capture, line: str, answer: str) -> None:
    talk(line)
    assert capsys.readouterr().out == f"{answer}\n"


def test_parameters_reach_the_answer_and_a_longer_context_reloads(talk: Talk, capsys: Capture) -> None:
    lines = ["/set parameter num_predict 3", "hello", "/set parameter num_ctx 1024"]
    chat = talk(*lines, "/set parameter num_ctx 9999999999", "/set parameter stop e", "more")
    assert chat.engine.n_ctx == 1024 and len(said(chat)) == 4
    err = capsys.readouterr().err
    assert "reloaded; context 1024 tokens" in err
    assert "expected -1 to 1073741824" in err and "-c is 2147483647" not in err
    assert chat.engine.timings.predicted_n <= 6
    assert chat.plan.sampling_options().stop == ("e",)
    assert "e" not in chat.conversation.messages[3].content


def test_a_chat_measures_while_the_user_types(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that a chat finishes its measurements at the prompt, with the same answers and cached prompts."""
    whole = talk("hello", "and now?")
    measure, is_done = Engine.measure_exactness, threading.Event()

    def measured(engine: Engine, go_on: Callable[[], bool]) -> Exactness:
        if (found := measure(engine, go_on)).is_complete:
            is_done.set()
        return found

    monkeypatch.setattr(Engine, "measure_exactness", measured)
    monkeypatch.setattr(loading, "_MEASURE_S", 0.0)
    chat = talk("hello", lambda default: is_done.wait() and "and now?")
    assert said(chat) == said(whole)
    assert chat.engine.native.exact_state["rows"] == whole.engine.native.exact_state["rows"]
    assert chat.engine.timings.reused_n == whole.engine.timings.reused_n > 0


def test_a_model_that_cannot_think_is_noted_before_it_answers(talk: Talk, capsys: Capture) -> None:
    talk("hello", "/set think")
    assert "note: the template of target-f32 has no tags for thinking" in capsys.readouterr().err


def test_a_system_prompt_over_several_lines(talk: Talk, capsys: Capture) -> None:
    chat = talk(
        '/set system """You', 'are terse."""', "hello", "/show system", '/set system "Other."', "/show system"
    )
    assert chat.conversation.system == "Other."
    assert chat.conversation.prompt()[0].content == "Other."
    out = capsys.readouterr().out
    assert "You\nare terse.\n" in out
    assert out.endswith("Set system message.\nOther.\n")


def test_clear_keeps_the_system_prompt_and_begins_another_saved_chat(talk: Talk, capsys: Capture) -> None:
    chat = talk("/set system Be brief.", "of whales", "/clear", "of apples", "/chats", "/chats WHALES")
    assert chat.conversation.system == "Be brief." and len(said(chat)) == 2
    both, whales = capsys.readouterr().out.split("BEGINS WITH")[1:]
    assert both.index("of apples") < both.index("of whales")
    assert "of whales" in whales and "of apples" not in whales
    assert "less than" not in both and both.count("seconds ago") + both.count("second ago") == 2


def test_a_saved_chat_is_opened_in_a_chat(
    talk: Talk, models: Models, base_model: Path, folder: ChatFolder, capsys: Capture
) -> None:
    talk("/set parameter top_k 5", "/set system Be brief.", "of whales", strategy="chain:3")
    whales = folder.latest()
    assert whales is not None
    chat = talk(
        "of apples", f"/load {whales.id}", "and more", source=found_file(base_model, ""), strategy=None
    )
    assert [content for role, content in said(chat) if role == Role.USER] == ["of whales", "and more"]
    assert (chat.conversation.system, chat.settings.parameters) == ("Be brief.", {"top_k": 5})
    assert chat.engine.has_draft
    assert ">>> of whales" in capsys.readouterr().out
    saved = folder.find(whales.id)
    assert saved is not None and len(saved.messages) == 4


@pytest.mark.parametrize("line", ["/?", "/? shortcuts", "/? set"])
def test_help_fits_a_screen(talk: Talk, capsys: Capture, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    talk(line)
    lines = capsys.readouterr().out.splitlines()
    assert 8 < len(lines) < 24 and max(map(len, lines)) <= 80
    assert any("Ctrl+R" in one or "/? shortcuts" in one or "/set system" in one for one in lines)


def test_json_answers(talk: Talk) -> None:
    schema = '{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}'
    options = {"max_tokens": 200, "temperature": 0.8, "seed": 3}
    chat = talk("/set format json", "hello", f"/set format {schema}", "more", options=options)
    any_json, by_schema = (json.loads(chat.conversation.messages[place].content) for place in (1, 3))
    assert isinstance(any_json, dict) and list(by_schema) == ["n"]


def test_show_describes_the_model(talk: Talk, models: Models, capsys: Capture) -> None:
    text = (
        "SYSTEM Be brief.\nPARAMETER top_k 7\nPARAMETER stop end\nLICENSE Free.\n"
        "MESSAGE user shown\nMESSAGE assistant first\n"
    )
    source = found_file(models.target, text, models.draft)
    lines = ("info", "license", "parameters", "system", "template", "modelfile")
    talk("hello", "/set parameter top_p 0.5", *(f"/show {line}" for line in lines), source=source)
    out = capsys.readouterr().out
    assert "option:     top_p 0.5 (set in this chat)" in out
    assert f"target:     {models.target}" in out and f"drafter:    {models.draft}" in out
    assert "option:     n_ctx 512 (" in out and "template:   Jinja template from the GGUF" in out
    assert "Free.\n" in out
    assert f'{"stop":<30} "end"\n' in out and f"{'top_p':<30} 0.5\n" in out
    assert "{% for message in messages %}" in out
    made = Modelfile.from_text(out[out.index("FROM ") :].rstrip() + "\n")
    assert made.parameters == {"top_k": 7, "stop": ("end",), "top_p": 0.5}
    assert [m.content for m in made.messages][:3] == ["shown", "first", "hello"]
    assert f"\n#eaglecpp: draft {models.draft}\n" in out and "    embedding length    64\n" in out


def test_loading_another_model_begins_a_new_chat(
    talk: Talk, models: Models, base_model: Path, folder: ChatFolder, capsys: Capture
) -> None:
    chat = talk("hello", f"/load {base_model}", "again", f"/load {models.target} {models.draft}")
    assert chat.engine.has_draft
    out, err = capsys.readouterr()
    assert f"Loading model '{base_model}'" in out
    assert "no chat template" in err
    saved = folder.latest()
    assert saved is not None
    assert (saved.model, len(saved.messages)) == (str(base_model), 2)


def test_a_saved_chat_is_a_model(talk: Talk, models: Models, folder: ChatFolder, capsys: Capture) -> None:
    lines = ["/set system Be brief.", "/set parameter top_k 7", "/strategy chain:2", "hello", "/save mine"]
    chat = talk(*lines, "/list", "/list nothing", "/list --json")
    out = capsys.readouterr().out
    assert out[out.index("Created new model 'mine'") :].count("mine:latest") == 1
    saved = look_up("mine")
    assert saved.draft is not None
    assert saved.draft.read_bytes() == models.draft.read_bytes()
    again = talk("more", source=saved, strategy=None)
    assert again.conversation.system == "Be brief."
    assert [(m.role, m.content) for m in again.conversation.examples] == said(chat)
    assert again.plan.sampling_options().top_k == 7
    assert str(again.strategy) == "chain:2"
    assert folder.latest("mine:latest") is not None


# Commands that Ollama lacks


def test_regen_answers_again_with_another_seed(talk: Talk) -> None:
    options = {"temperature": 1.5, "seed": 1, "max_tokens": 20}
    once = talk("hello", options=options)
    chat = talk("hello", "/regen", options=options)
    assert len(said(chat)) == 2
    assert said(chat)[1] != said(once)[1]
    assert said(talk("hello", "/regen", options=options)) == said(chat), "/regen must give the same text"


def test_an_edit_keeps_attachments_and_offers_the_typed_text(
    talk: Talk, tmp_path: Path, folder: ChatFolder, capsys: Capture
) -> None:
    notes, picture = tmp_path / "notes.txt", tmp_path / "one.png"
    notes.write_text("a line", encoding="utf-8")
    picture.write_bytes(make_image(1))
    options = {"mmproj": str(make_projector(tmp_path / "mmproj.gguf", 64))}
    offered: list[str] = []

    def change(question: str) -> str:
        offered.append(question)
        return question + "!"

    lines = [f"/read {notes}", f"/read {picture}", "what is it", "/edit", change, "/edit and now"]
    chat = talk(*lines, "/edit", change, options=options)
    assert offered == ["what is it", "and now"]
    question, _ = chat.conversation.messages
    mark = image_mark(make_image(1))
    assert question.content == f"{mark}notes.txt:\n\na line\n\nand now!"
    assert question.images == (make_image(1),)
    saved = folder.latest()
    assert saved is not None
    capsys.readouterr()
    again = talk("/edit", change, f"/read {notes}", "/edit two of them", options=options, saved=saved)
    assert "__image_" not in capsys.readouterr().out
    assert offered[2:] == ["and now!"]
    file = "notes.txt:\n\na line\n\n"
    assert again.conversation.messages[0].content == f"{mark}{file}{file}two of them"


def test_images_are_attached_by_their_paths_in_a_message(talk: Talk, tmp_path: Path, capsys: Capture) -> None:
    picture = tmp_path / "my picture.png"
    picture.write_bytes(make_image(1))
    dragged = str(picture).replace(" ", "\\ ")
    options = {"mmproj": str(make_projector(tmp_path / "mmproj.gguf", 64))}
    lines = [f"what is {picture}", f"{dragged} and this", f"'{picture}'", "and this", f"/edit {dragged} now"]
    chat = talk(*lines, "is it cat.png?", f"/strategi {picture}", options=options)
    asked = [message for message in chat.conversation.messages if message.role == Role.USER]
    assert [(one.typed, len(one.images)) for one in asked] == [
        ("what is", 1), ("and this", 1), ("now", 2), ("is it cat.png?", 0),
    ]  # fmt: skip
    out, err = capsys.readouterr()
    assert err.count(f"Added image '{picture}'") == 4
    assert "note: no such file: cat.png; the model sees only the name" in err
    assert "Unknown command '/strategi'" in out
    blind = talk(f"what is {picture}")
    assert blind.conversation.messages[0].typed == f"what is {picture}"
    assert f"note: {picture} is not attached: " in capsys.readouterr().err


def test_an_existing_model_name_is_reused_only_after_confirmation(talk: Talk, capsys: Capture) -> None:
    talk("hello", "/save smollm2", "", "/save mine", "/save mine")
    talk("more", "/save mine", "", "/save smollm2", "y", "/save mine", "yes")
    lines = [line for line in capsys.readouterr().out.splitlines() if "model '" in line or "saved." in line]
    made = "Created new model '{}'"
    refused, mine, hidden = "Nothing was saved.", made.format("mine"), made.format("smollm2")
    assert lines == [refused, mine, mine, refused, hidden, mine]


@pytest.mark.parametrize("strategy", ["chain:24", "tree:k=2,depth=3,nodes=6"])
def test_a_strategy_changes_the_drafts_and_not_the_text(talk: Talk, strategy: str, capsys: Capture) -> None:
    plain = talk("/strategy off", "hello", options={"max_tokens": 30})
    chat = talk(f"/strategy {strategy}", "hello", options={"max_tokens": 30})
    assert said(chat) == said(plain)
    assert (plain.engine.timings.draft_n, chat.engine.timings.draft_n > 0) == (0, True)
    assert chat.engine.timings.plan["strategy"] == strategy
    assert f"Strategy: {strategy} (asked for)" in capsys.readouterr().out


def test_a_drafter_left_out_at_first_is_loaded_on_demand(talk: Talk, models: Models) -> None:
    source = found_file(models.target, "#eaglecpp: strategy off\n", models.draft)
    chat = talk("hello", "/strategy chain:2", "more", source=source, strategy=None)
    assert chat.engine.timings.draft_n > 0


def test_every_command_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[3] / "docs" / "chat.md").read_text(encoding="utf-8")
    names = [(name, name.rpartition(" ")[2]) for name in COMMANDS]
    assert [name for name, word in names if f"`{name}" not in page and f"`{word}`" not in page] == []


def test_errors_do_not_end_the_chat(talk: Talk, models: Models, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "broken.gguf").write_text("no weights")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "long").write_text("word " * 5000)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(bytes(64_000_001))
    wrong = {
        f"/read {tmp_path / 'large'}": "large: the file is larger than 64 MB",
        "/read missing.txt": "missing.txt",
        f"/read {tmp_path / 'binary'}": "not UTF-8 text",
        f"/read {tmp_path / 'pipe'}": "pipe: expected a file, found a named pipe",
        "/read /dev/zero": "/dev/zero: expected a file, found a device",
        "/regen": "there is no question to answer again",
        "/edit": "there is no question to edit",
        "/read ~nobody-has-this/x": "no user 'nobody-has-this'",
        '/set format {"type": 3': "the JSON schema cannot be read",
        f"/set format {tmp_path}": f"{tmp_path}: Is a directory",
        f"/set format {tmp_path / 'binary'}": "binary: not UTF-8 text",
        "/set parameter mirostat 1": "parameter mirostat is deprecated",
        "/set parameter top_p 3": "the range of top_p is 0 to 1; using 1.0",
        "/strategy chain:x": "expected auto, off, chain:DEPTH",
        f"/load {models.target} nofile.gguf": "drafter 'nofile.gguf'",
        f"/load {tmp_path / 'broken.gguf'}": "broken.gguf",
        "/set parameter top_k x": "invalid int value [x]",
        "/set parameter temperature nan": "invalid float value [nan]",
        "/set parameter num_thread -3": "the range of num_thread is 0 to 512; using 0",
        "/set parameter temprature 1": "unknown parameter 'temprature'; did you mean temperature?",
        "/set parameter foo 3": "unknown parameter 'foo'; /set parameter lists all",
        "/load missing.gguf": "target 'missing.gguf'",
        f"/read {tmp_path / 'long'}": "",
        "what is that": "the prompt is too long",
    }
    chat = talk(*wrong, "hello", "/edit", KeyboardInterrupt("half"))
    err = capsys.readouterr().err
    assert [text for text in wrong.values() if text not in err] == []
    assert [role for role, _ in said(chat)] == ["user", "assistant"]


class _Interrupting:
    """Finder of modules that presses Ctrl+C in the import of the store."""

    def find_spec(self, name: str, *rest: Any) -> None:
        if name == "eaglecpp.store.create":
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_interrupts_no_import(talk: Talk, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that Ctrl+C interrupts no import, because numpy cannot be imported again afterwards."""
    monkeypatch.delitem(sys.modules, "eaglecpp.store.create", raising=False)
    monkeypatch.setattr(sys, "meta_path", [_Interrupting(), *sys.meta_path])
    talk("/save mine")
    assert "Created new model 'mine'" in capsys.readouterr().out


# Questions and answers


def test_old_messages_are_left_out_with_a_note(talk: Talk, folder: ChatFolder, capsys: Capture) -> None:
    long = "the man and the dog say one thing to all of us and then they go out " * 3
    chat = talk(*[f"{index} {long}" for index in range(8)], options={"n_ctx": 512})
    err = capsys.readouterr()
    assert "no longer sees" in err.err
    assert "up to 2048" in err.err
    assert chat.conversation.n_left_out > 0
    assert chat.engine.timings.prompt_n < 9 * 512
    saved = folder.latest()
    assert saved is not None
    assert len(saved.messages) == 16, "the saved chat must have all messages"


# Settings of the model's Modelfile


def test_the_models_own_messages_are_shown_and_stay(talk: Talk, models: Models, capsys: Capture) -> None:
    modelfile = "SYSTEM Be brief.\nMESSAGE user shown\nMESSAGE assistant first\n"
    source = found_file(models.target, modelfile, models.draft)
    chat = talk("hello", "/clear", "again", source=source)
    assert capsys.readouterr().out.startswith(">>> shown\nfirst\n")
    assert [(m.role, m.content) for m in chat.conversation.prompt()][:4] == [
        ("system", "Be brief."), ("user", "shown"), ("assistant", "first"), ("user", "again"),
    ]  # fmt: skip


def test_a_models_own_drafter_that_does_not_fit_is_left_out_with_a_note(
    models: Models, base_model: Path, capsys: Capture, talk: Talk
) -> None:
    chat = talk("hello", source=found_file(base_model, "", models.draft))
    assert "running without the drafter, because it does not fit: " in capsys.readouterr().err
    assert not chat.engine.has_draft
    assert len(said(chat)) == 2


# Saving and loading chats


def test_every_turn_is_saved_and_can_be_continued(talk: Talk, folder: ChatFolder) -> None:
    seen: list[int] = []

    def look(default: str) -> str:
        saved = folder.latest()
        seen.append(0 if saved is None else len(saved.messages))
        return "more"

    chat = talk(look, look, look, "/set system Be brief.", "/set parameter top_k 5", "/strategy chain:2")
    assert seen == [0, 2, 4]
    saved = folder.latest()
    assert saved is not None
    assert (saved.system, saved.parameters, saved.strategy) == ("Be brief.", {"top_k": 5}, "")
    chat.reply(partial(chat.session.stream, "once more"))
    saved = folder.latest()
    assert saved is not None and saved.strategy == "chain:2"
    again = talk("go on", saved=saved)
    assert said(again)[:8] == said(chat)
    assert again.conversation.system == "Be brief."
    assert len(list(folder.directory.glob("*.json"))) == 1


@pytest.mark.parametrize(
    ("lines", "is_saved"),
    [(["/set nohistory", "hello"], False), (["/set nohistory", "hello", "/set history"], True)],
)
def test_nohistory_saves_nothing(talk: Talk, folder: ChatFolder, lines: list[str], is_saved: bool) -> None:
    talk(*lines)
    assert (folder.latest() is not None) is is_saved


def test_a_disk_error_does_not_end_the_chat(talk: Talk, folder: ChatFolder, capsys: Capture) -> None:
    folder.directory.parent.mkdir(parents=True, exist_ok=True)
    folder.directory.write_text("a file where the folder should be")
    assert len(said(talk("hello", "more"))) == 4
    assert "error: " in capsys.readouterr().err


def test_an_unreadable_image_is_reported_and_not_attached(talk: Talk, tmp_path: Path) -> None:
    good, damaged = tmp_path / "good.png", tmp_path / "damaged.png"
    good.write_bytes(make_image(1))
    damaged.write_bytes(make_image(1)[:200])
    chat = talk(f"/read {good}", "hello there")  # this model has no projector, so no picture is attached
    assert chat.images == [] and len(chat.conversation.messages) == 2
    mmproj = {"mmproj": str(make_projector(tmp_path / "mmproj.gguf", 64))}
    seeing = talk(
        f"/read {damaged}", "what is it", "hello there", f"/read {good}", "and this", options=mmproj
    )
    asked = [message for message in seeing.conversation.messages if message.role == Role.USER]
    assert [len(message.images) for message in asked] == [0, 1] and seeing.images == []


@pytest.mark.parametrize(
    ("pragma", "given", "n"),
    [("", {}, 512), ("#eaglecpp: max_repeats 0\n", {}, 530), ("", {"max_repeats": 0.0}, 530)],
)
def test_a_repeating_answer_ends_unless_model_or_user_disable_that(
    talk: Talk, models: Models, capsys: Capture, pragma: str, given: dict[str, Any], n: int
) -> None:
    source = found_file(models.target, pragma, models.draft)
    options = {"max_tokens": 530, "n_ctx": 1024, "ignore_eos": True, "repeat_last_n": -1} | given
    chat = talk("hello", source=source, options={**options, "repeat_penalty": 1e-3})
    assert chat.engine.timings.predicted_n == n
    assert ("ended, because the answer repeats itself" in capsys.readouterr().err) == (n == 512)
