# SPDX-License-Identifier: MIT
"""Tests that chats in Python handle roles, thinking, tools and context like `run` and the server."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest

from eaglecpp import AsyncEngine, ChatSession, Engine
from eaglecpp.chat.codec import ChatCodec, PromptOptions
from eaglecpp.chat.conversation import PromptMemory
from eaglecpp.chat.message import Message, ToolCall
from eaglecpp.chat.reader import message_of
from eaglecpp.chat.template import ChatTemplate, Rendered
from eaglecpp.errors import ContextFullError, UnsupportedError
from eaglecpp.results import Chunk
from helpers import tiny
from helpers.models import Models
from helpers.opening import found_file
from helpers.sayer import THOUGHTFUL, make_sayer, make_thinker
from helpers.tiny_tokenizer import Tokenizer, tiny_tokenizer

GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 8}
HELLO = [{"role": "user", "content": "hello"}]
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "<{{ m.content }}>{% endfor %}"
)
LAMP = {
    "type": "function",
    "function": {"name": "lamp", "parameters": {"type": "object", "properties": {"on": {"type": "boolean"}}}},
}


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_thinker(tmp_path_factory.mktemp("thinker") / "thinker.gguf")


def text_of(engine: Engine, tokens: list[int]) -> str:
    return engine.detokenize(tokens, special=True)


def said(engine: Engine, text: str) -> Chunk:
    """Returns an answer with this text."""
    tokens = engine.tokenize(text, add_bos=False)
    return Chunk(text, tokens, [False] * len(tokens), finish_reason="stop")


@pytest.mark.parametrize("how", ["Engine.chat", "ChatSession", "generate_many"])
def test_without_system_role_the_system_prompt_goes_into_the_question(engine: Engine, how: str) -> None:
    messages = [{"role": "system", "content": "Be brief."}, *HELLO]
    if how == "Engine.chat":
        made = engine.chat(messages, template=NO_SYSTEM, max_tokens=1)
    elif how == "ChatSession":
        made = ChatSession(engine, system="Be brief.").ask("hello", template=NO_SYSTEM, max_tokens=1)
    else:
        (made,) = engine.generate_many([messages], template=NO_SYSTEM, max_tokens=1)
    assert text_of(engine, made.prompt_tokens).endswith("<Be brief.\n\nhello>")


def test_a_system_prompt_that_a_template_changes_is_in_the_prompt_once(engine: Engine) -> None:
    joins = "{% for m in messages %}<{{ m.content | replace(' ', '_') }}>{% endfor %}"
    talk = [{"role": "system", "content": "be kind"}, *HELLO]
    assert text_of(engine, engine.chat_prompt(talk, template=joins)).endswith("|><be_kind><hello>")


def test_an_invalid_list_of_messages_is_refused_with_the_expected_form(engine: Engine) -> None:
    wrong: Any = (
        ("str 'hello'", "hello"),
        ("dict", {"role": "user"}),
        ("a list with str 'hello'", ["hello"]),
    )
    for found, messages in wrong:
        with pytest.raises(TypeError, match=f"expected a list of messages such as .* found {found}"):
            engine.chat(messages)


def test_only_a_completion_of_a_chat_has_a_message(engine: Engine) -> None:
    result = engine.chat(HELLO, **GREEDY)
    assert result.message == Message("assistant", result.text)
    again = engine.chat([*HELLO, result.message, {"role": "user", "content": "more"}], **GREEDY)
    assert result.text in text_of(engine, again.prompt_tokens)
    with pytest.raises(ValueError, match="only text"):
        _ = engine.generate("hello", **GREEDY).message


def test_a_base_model_chats_with_a_given_template(base_model: Path) -> None:
    with Engine.open(base_model, n_ctx=64, n_threads=1) as engine:
        assert not engine.has_chat_template
        with pytest.raises(UnsupportedError, match="has no chat template"):
            engine.chat(HELLO)
        for template in ("{{ messages[0].content }}", ChatTemplate.choose(choice="chatml")):
            assert "hello" in text_of(engine, engine.chat_prompt(HELLO, template=template))


# Answers with thoughts


def test_thinking_is_not_in_the_message_or_in_later_prompts(thinker: Path) -> None:
    with Engine.open(thinker, n_ctx=256, n_threads=1) as engine:
        chat = ChatSession(engine)
        first = chat.ask("hello", template=THOUGHTFUL, **GREEDY)
        assert (first.thinking, first.message) == ("we", Message("assistant", "ys", "we"))
        assert text_of(engine, chat.ask("more", template=THOUGHTFUL, **GREEDY).prompt_tokens).endswith(
            "user: hello\nassistant: ys\nuser: more\n<|channel>thought\n"
        )


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_streamed_chat_yields_each_block_once(thinker: Path, is_async: bool) -> None:
    if is_async:
        async with await AsyncEngine.open(thinker, n_ctx=256, n_threads=1) as engine:
            stream = await engine.chat(HELLO, stream=True, template=THOUGHTFUL, **GREEDY)
            found = [chunk async for chunk in stream]
    else:
        with Engine.open(thinker, n_ctx=256, n_threads=1) as alone:
            found = list(alone.chat(HELLO, stream=True, template=THOUGHTFUL, **GREEDY))
    events = [event for chunk in found for event in chunk.events]
    assert message_of(part for chunk in found for part in chunk.parts) == Message("assistant", "ys", "we")
    ends = [(event.index, event.part, event.is_last) for event in events if event.step == "end"]
    assert ends == [(0, ("thinking", "we"), False), (1, ("content", "ys"), True)]
    assert [event.index for event in events if event.step == "begin"] == [0, 1]


def test_a_requested_thought_comes_before_the_json(thinker: Path) -> None:
    with Engine.open(thinker, n_ctx=256, n_threads=1) as engine:
        options: dict[str, Any] = {"template": THOUGHTFUL, "response_format": {"type": "json_object"}}
        result = engine.chat(HELLO, think=True, **options, **GREEDY)
        assert result.message.thinking == "we" and result.message.content.startswith("{")
        given = replace(engine.sampling, grammar='root ::= "{" | "["')
        formed = engine.chat(HELLO, template=THOUGHTFUL, think=True, sampling=given, max_tokens=8)
        assert formed.message.thinking == "we" and formed.message.content in ("{", "[")
        unasked = engine.chat(HELLO, think=False, **options, **GREEDY)
        assert unasked.message.thinking == "" and unasked.message.content.startswith("{")


def test_a_template_that_always_thinks_gets_an_empty_thought(thinker: Path) -> None:
    """A template that always thinks, like QwQ's, has no option to leave out the thought, so it gets an empty
    one.
    """
    always = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}<|channel>thought{{ '\n' }}"
    with Engine.open(thinker, n_ctx=256, n_threads=1) as engine:
        result = engine.chat(HELLO, template=always, response_format={"type": "json_object"}, **GREEDY)
        assert result.message.thinking == "" and result.message.content.startswith("{")
        quiet = engine.chat_prompt(HELLO, template=always, think=False)
        assert text_of(engine, quiet).endswith("<|channel>thought\n<channel|>")
        begun = [*HELLO, {"role": "assistant", "content": "y"}]
        assert text_of(engine, engine.chat_prompt(begun, template=always)).endswith("thought\n<channel|>y")


# Files with unusual templates and tokens


class _Other(Tokenizer):
    def add_to(self, writer: gguf.GGUFWriter, with_template: bool) -> None:
        super().add_to(writer, with_template=False)
        writer.add_add_eos_token(True)
        writer.add_chat_template("{{ messages[0].content }}")


@pytest.fixture(scope="module")
def other_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a file whose tokenizer adds EOS to texts."""
    path, made = tmp_path_factory.mktemp("other") / "other.gguf", tiny_tokenizer()
    spec, tokenizer = tiny.TargetSpec(n_layers=2), _Other(made.tokens, made.merges)
    tiny.write_gguf(path, spec, tokenizer, tiny.target_weights(spec, tokenizer), "F32")
    return path


def test_no_prompt_ends_with_an_end_token(other_file: Path) -> None:
    with Engine.open(other_file, n_ctx=64, n_threads=1) as engine:
        assert engine.native.add_eos
        for tokens in (engine.chat_prompt(HELLO), engine.tokenize("hello"), engine.prompt_tokens("hello")):
            assert tokens[0] == engine.native.bos and tokens[-1] != engine.native.eos
        assert engine.tokenize("hello<|endoftext|>")[-1] == engine.native.eos, "EOS in a text must stay"
        with pytest.raises(ContextFullError):
            engine.generate("a b " * 64, max_tokens=1)


def test_a_stop_string_that_is_a_control_token_stops(tmp_path: Path) -> None:
    path = make_sayer(tmp_path / "sayer.gguf", "\n", ["w", "e", "<|b|>", "y", "s"], ("<|a|>", "<|b|>"))
    with Engine.open(path, n_ctx=64, n_threads=1) as engine:
        free = engine.generate("a\n", **GREEDY)
        assert (free.text, free.stopped_by) == ("weys", None)
        stopped = engine.generate("a\n", stop=["<|b|>", "other"], **GREEDY)
        assert (stopped.text, stopped.finish_reason, stopped.stopped_by) == ("we", "stop", "<|b|>")
        own = engine.generate("a\n", stop=["<|endoftext|>"], **GREEDY)
        assert (own.text, own.stopped_by) == ("weys", None), "the end token must not be part of the text"


def test_a_conversation_continues_from_its_tokens(tmp_path: Path) -> None:
    """A conversation continues from its own tokens, not from its text, which is not tokenized again."""
    path = make_sayer(tmp_path / "sayer.gguf", "\n", [" ", "t", "h"], ("<|a|>", "<|b|>"))
    end = "{{ '<|b|>\n' if m.role == 'user' else '<|a|>' }}"
    template = "{% for m in messages %}{{ m.content }}" + end + "{% endfor %}"
    with Engine.open(path, n_ctx=64, n_threads=1) as engine:
        chat = ChatSession(engine)
        first, second = [chat.ask(text, template=template, **GREEDY) for text in ("a", "b")]
        known = [*first.prompt_tokens, *first.tokens[:3]]
        assert engine.tokenize(first.text, add_bos=False) != first.tokens[:3]
        assert second.prompt_tokens[: len(known)] == known


# Conversations that fill the context


def test_a_full_context_drops_old_messages_and_counts_tools(engine: Engine) -> None:
    """Tests that a full context drops old messages and counts tools: the tool's description takes more than
    half of the context.
    """
    template = (
        "{{ tools[0].function.description }}{% for m in messages %}<{{ m.role }} {{ m.content }}>{% endfor %}"
    )
    tool = {"type": "function", "function": {"name": "f", "description": "a b " * 70}}
    assert len(engine.tokenize(tool["function"]["description"])) > 128  # type: ignore[index]
    chat = ChatSession(engine)
    for turn in range(6):
        result = chat.ask(f"c{turn} " * 10, template=template, tools=[tool], **GREEDY)
        assert result.finish_reason != "length" or len(result.tokens) == 8
    assert 0 < chat.left_out < 11 and len(chat.history) == 12


def test_the_modelfiles_messages_are_in_a_prompt_once(models: Models) -> None:
    from eaglecpp.opening.plan import make_plan

    found = found_file(models.target, "SYSTEM Be brief.\nMESSAGE user one\nMESSAGE assistant two\n")
    with Engine(make_plan(found, options={"n_ctx": 256})) as engine:
        chat = ChatSession(engine)
        for question in ("three", "four"):
            prompt = text_of(engine, chat.ask(question, **GREEDY).prompt_tokens)
            assert [prompt.count(f"user\n{text}<") for text in ("one", question)] == [1, 1]
            assert prompt.count("Be brief.") == 1


def test_the_templates_text_determines_how_a_model_calls_tools(engine: Engine) -> None:
    """If the request has a template without tools, the model's own form of calls is used."""
    chat: ChatCodec = engine.shared.chat.with_template("<think>{{ messages[0].content }}<tool_call>")
    other = chat.with_template("{{ messages[0].content }}")
    assert other.tags == chat.tags and other.tags is not None
    call = json.dumps({"name": "lamp", "arguments": {"on": False}})
    prompt = other.prompt([Message("user", "light?")], options=PromptOptions([LAMP]))
    reader = other.reader(prompt)
    reader.read(said(engine, f"<tool_call>{call}</tool_call>"))
    assert reader.message.tool_calls == (ToolCall("lamp", {"on": False}),)


def test_cached_text_is_reused_only_at_token_boundaries(engine: Engine) -> None:
    """Tests that cached text is reused only up to a control token, because ordinary tokens may merge with the
    text that follows.
    """
    vocabulary = engine.shared.vocabulary
    memory = PromptMemory(vocabulary, lambda: 4096)
    result = engine.generate("hello there", **GREEDY)
    memory.remember(Rendered("hello there", has_bos=False), result)
    whole = "hello there" + result.text
    assert memory.continued(Rendered(whole + vocabulary.border_texts[1], has_bos=False)) == [
        *result.prompt_tokens, *result.tokens, *vocabulary.tokenize(vocabulary.border_texts[1], add_bos=False)
    ]  # fmt: skip
    assert memory.continued(Rendered(whole + "s of mine", has_bos=False)) is None


def test_an_answer_cut_by_a_stop_string_is_not_continued(engine: Engine) -> None:
    memory = PromptMemory(engine.shared.vocabulary, lambda: 4096)
    result = engine.generate("hello there", **GREEDY)
    cut = replace(result, text=result.text[:-1])
    memory.remember(Rendered("hello there", has_bos=False), cut)
    end = engine.shared.vocabulary.border_texts[1]
    for text in (result.text, cut.text):
        known = memory.continued(Rendered("hello there" + text + end, has_bos=False))
        assert known is None or known[: len(result.prompt_tokens) + 1] != [
            *result.prompt_tokens,
            result.tokens[0],
        ]
