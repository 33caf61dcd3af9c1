# SPDX-License-Identifier: MIT
"""Tests the statements of docs/templates.md about each family of models: the marks in the family's template,
and the reading of answers that the tests force.

The templates are in tests/templates. The forced answers are written like the family's models write them, and
follow the prompt of the family's template. The marks in an answer are control tokens, as in the models'
files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from eaglecpp import Engine
from eaglecpp.chat.codec import ChatCodec, ChatPrompt, PromptOptions
from eaglecpp.chat.message import Message, ToolCall
from eaglecpp.engine.grammar import Lark, resolve_grammar
from eaglecpp.lowlevel import Target
from eaglecpp.results import Chunk
from helpers.chat_templates import family_template
from helpers.native import make_sampler, open_target
from helpers.vocabularies import write_bpe

DOCS = Path(__file__).parents[3] / "docs" / "templates.md"
LAMP = {
    "type": "function",
    "function": {"name": "lamp", "description": "Switches the lamp",
                 "parameters": {"type": "object", "properties": {"on": {"type": "boolean"}}}},
}  # fmt: skip
BELL = {"type": "function", "function": {"name": "bell", "description": "Rings", "parameters": {}}}
ON, RING = ToolCall("lamp", {"on": True}), ToolCall("bell")
QUESTION = [Message("user", "light?")]
FORM = '{"a": 1}'
HERMES = '<tool_call>\n{"name": "lamp", "arguments": {"on": true}}\n</tool_call>'


@dataclass(frozen=True)
class Family:
    """A model family: its template, and an answer with a call in the family's form.

    thinks: an answer that thinks "hm" and says "yes"; "" for models that do not think. late: the thought
    before a formatted answer, if this thought is not `thinks` without "yes".
    """

    file: str
    call: str
    thinks: str = ""
    late: str = ""


XML = "<tool_call>\n<function=lamp>\n<parameter=on>\ntrue\n</parameter>\n</function>\n</tool_call>"
KIMI = ("<|tool_calls_section_begin|><|tool_call_begin|>functions.lamp:0<|tool_call_argument_begin|>"
        '{"on": true}<|tool_call_end|><|tool_calls_section_end|>')  # fmt: skip
MISTRAL = '[TOOL_CALLS][{"name": "lamp", "arguments": {"on": true}}]'
DEEPSEEK = ('hm</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>lamp<｜tool▁sep｜>{"on": true}'
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜>")  # fmt: skip
DSML = ('<｜DSML｜function_calls>\n<｜DSML｜invoke name="lamp">\n<｜DSML｜parameter name="on" string="false">'
        "true</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>")  # fmt: skip
MINIMAX = ('<minimax:tool_call>\n<invoke name="lamp">\n<parameter name="on">true</parameter>\n</invoke>\n'
           "</minimax:tool_call>")  # fmt: skip
PLAN = "<|START_THINKING|>hm<|END_THINKING|>"
COMMAND = (PLAN + '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "lamp", "parameters": {"on": true}}]'
           "<|END_ACTION|>")  # fmt: skip
HUNYUAN = ("<tool_calls:opensource>\n<tool_call:opensource>lamp<tool_sep:opensource>\n<arg_key:opensource>on"
           "</arg_key:opensource>\n<arg_value:opensource>true</arg_value:opensource>\n</tool_call:opensource>\n"
           "</tool_calls:opensource>")  # fmt: skip
K3 = ('<|open|>tools<|sep|><|open|>call tool="lamp" index="1"<|sep|><|open|>argument key="on" type="boolean"'
      "<|sep|>true<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>")  # fmt: skip
K3_THOUGHT, K3_PLAIN = "hm<|close|>think<|sep|>", "<|open|>response<|sep|>"
K3_END = "<|close|>message<|sep|>"
M3 = ("]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"lamp\">]<]minimax[>[<on>true]<]minimax[>[</on>"
      "]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>")  # fmt: skip
MUSE = (" to=self<|message|>hm<|eom|><|start|>assistant to=lamp<|message|><atem:function_calls>\n"
        '<atem:invoke name="lamp">\n<atem:parameter name="on">true</atem:parameter>\n</atem:invoke>\n'
        "</atem:function_calls><|eot|>")  # fmt: skip
GIGACHAT = ('<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "lamp", "arguments": {"on": true}}'
            "<|message_sep|>\n\n")  # fmt: skip
FAMILIES = {
    "Qwen3": Family("Qwen-Qwen3-0.6B", HERMES, "<think>\nhm\n</think>\n\nyes"),
    "Qwen3.5": Family("Qwen3.5-4B", "hm\n</think>\n\n" + XML, "hm\n</think>\n\nyes"),
    "Gemma 3": Family("gemma-3", HERMES),
    "Gemma 4": Family("google-gemma-4-31B-it", "<|tool_call>call:lamp{on:true}<tool_call|>",
                      "<|channel>thought\nhm<channel|>yes"),
    "Mistral v0.3": Family("mistral-7b-v0.3", MISTRAL),
    "Mistral Nemo": Family("mistralai-Mistral-Nemo-Instruct-2407", MISTRAL),
    "Llama 3.1": Family("meta-llama-Llama-3.1-8B-Instruct", '{"name": "lamp", "parameters": {"on": true}}'),
    "gpt-oss": Family(
        "openai-gpt-oss-120b",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.lamp "
        '<|constrain|>json<|message|>{"on": true}<|call|>',
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final <|constrain|>json"
        "<|message|>",
    ),
    "Kimi K2": Family("moonshotai-Kimi-K2", KIMI),
    "Kimi K2 Thinking": Family("moonshotai-Kimi-K2-Thinking", "<think>hm</think>" + KIMI,
                               "<think>hm</think>yes"),
    "DeepSeek R1": Family("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "hm\n</think>\n\n" + HERMES,
                          "hm\n</think>\n\nyes"),
    "DeepSeek V3.1": Family("deepseek-ai-DeepSeek-V3.1", DEEPSEEK, "hm</think>yes"),
    "DeepSeek V3.2": Family("deepseek-v3.2", "hm</think>\n\n" + DSML, "hm</think>yes"),
    "MiniMax M2": Family("minimax-m2", "hm\n</think>\n\n" + MINIMAX, "hm\n</think>\n\nyes"),
    "MiniMax M3": Family("minimax-m3", "hm</mm:think>" + M3, "hm</mm:think>yes"),
    "Kimi K3": Family("kimi-k3", K3_THOUGHT + K3 + K3_END, f"{K3_THOUGHT}{K3_PLAIN}yes{K3_END}",
                      K3_THOUGHT + K3_PLAIN),
    "Muse": Family("muse", MUSE, " to=self<|message|>hm<|eom|><|start|>assistant to=user<|message|>yes"),
    "GigaChat 3": Family("gigachat-3", GIGACHAT),
    "Functionary 3.2": Family("functionary-v3.2", 'lamp\n{"on": true}'),
    "Command R7B": Family("command-r7b", COMMAND, f"{PLAN}<|START_RESPONSE|>yes", PLAN),
    "Hunyuan 3": Family("hunyuan-3", "hm</think:opensource>" + HUNYUAN, "hm</think:opensource>yes"),
    "Idefics3": Family("idefics3", HERMES),
    "LLaVA-NeXT": Family("llava-next", HERMES),
    "SmolLM2": Family("smollm2", HERMES),
}  # fmt: skip
MARK = re.compile(
    r"<\|\w+\|?>|\]<\]\w+\[>\[|</?mm:think>|<\w+\|>|<｜[\w▁]+｜>|</?(?:think|tool_call)>|\[TOOL_CALLS\]|｜DSML｜"
)
MARKS = {mark for one in FAMILIES.values() for mark in MARK.findall(one.call + one.thinks)}
MARKS |= {"<|return|>"}  # without this mark, llama.cpp would treat <|end|> as the end of an answer


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = write_bpe(tmp_path_factory.mktemp("marks") / "marks.gguf", "gpt-2", sorted(MARKS))
    with Engine.open(path, n_ctx=64, n_threads=1) as one:
        yield one


@pytest.fixture(scope="module")
def target(engine: Engine) -> Target:
    """Opens the target, whose vocabulary a sampler without an engine needs."""
    return open_target(engine.target_path)


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


def chat_of(engine: Engine, family: Family) -> ChatCodec:
    return engine.shared.chat.with_template(family_template(family.file))


def said(engine: Engine, text: str) -> Chunk:
    """Returns an answer that consists of these tokens. The text of the answer has no control tokens."""
    tokens = engine.tokenize(text, add_bos=False)
    shown = engine.detokenize(tokens)
    assert engine.detokenize(tokens, special=True) == text
    return Chunk(shown, tokens, [False] * len(tokens), finish_reason="stop")


def message(chat: ChatCodec, prompt: ChatPrompt, answer: Chunk) -> Message:
    reader = chat.reader(prompt)
    reader.read(answer)
    return reader.message


def answered(engine: Engine, family: Family, text: str, options: PromptOptions, *turns: Message) -> Message:
    """Returns the message that a forced answer of this family gives to a question."""
    chat = chat_of(engine, family)
    return message(chat, prompt_of(chat, options, *turns), said(engine, text))


def prompt_of(chat: ChatCodec, options: PromptOptions, *turns: Message) -> ChatPrompt:
    rendered, taken = chat.render([*QUESTION, *turns], options)
    return ChatPrompt(rendered, [], options.tools, taken.describes, options.has_form)


def test_thinking_is_separated(engine: Engine, family: Family) -> None:
    if family.thinks:
        made = answered(engine, family, family.thinks, PromptOptions(think=True))
        assert (made.thinking, made.content) == ("hm", "yes")
    plain = answered(engine, family, "yes", PromptOptions(think=False))
    assert (plain.thinking, plain.content) == ("", "yes")


def test_a_call_is_found(engine: Engine, family: Family) -> None:
    made = answered(
        engine, family, family.call, PromptOptions([LAMP, BELL], think=bool(family.thinks) or None)
    )
    assert [(call.name, call.arguments) for call in made.tool_calls] == [(ON.name, ON.arguments)]
    assert made.content.strip() == "" and made.thinking in ("", "hm")
    if family.call.startswith("hm\n</think>"):
        made = answered(
            engine, family, family.call.replace("</think>", ""), PromptOptions([LAMP], think=True)
        )
        assert (made.thinking, [call.name for call in made.tool_calls]) == ("hm", [ON.name])
    # In some families, "<|im_end|>" ends answers, and the template also writes "<|im_end|>" around calls.
    ended = answered(engine, family, family.call + "<|im_end|>", PromptOptions([LAMP, BELL], think=True))
    assert "<|im_end|>" not in ended.content
    assert not answered(engine, family, family.call, PromptOptions(think=True)).tool_calls, (
        "tools that were not offered cannot be called"
    )


@pytest.mark.parametrize(
    ("family", "text", "content"),
    [
        ("Kimi K3", f"{K3_THOUGHT}{K3_PLAIN}I look.<|close|>response<|sep|>{K3}{K3_END}", "I look."),
        ("Muse", MUSE.replace("to=self<|message|>hm", "to=user<|message|>I look."), "I look."),
        ("Functionary 3.2", 'all\nI look.>>>lamp\n{"on": true}', "I look."),
        ("GigaChat 3", "I look." + GIGACHAT, "I look."),
        ("Muse", " to=user<|message|>So:\n" + MUSE[MUSE.index("<atem:function_calls>") :], None),
        ("gpt-oss", "<|channel|>final<|message|>So: to=functions.lamp<|message|>{}", None),
        ("gpt-oss", "<|channel|>final<|message|>So: \0to=functions.lamp<|message|>{}", None),
        ("Kimi K3", f"{K3_THOUGHT}{K3_PLAIN}So: {K3}", None),
        ("Functionary 3.2", "all\n>>> lamp\n{}", None),
    ],
)  # fmt: skip
def test_text_before_a_call_is_kept(engine: Engine, family: str, text: str, content: str | None) -> None:
    """Text before a call is kept. In families whose answers consist of several messages, the call is in a
    separate message.
    """
    made = answered(engine, FAMILIES[family], text, PromptOptions([LAMP, BELL], think=True))
    assert [call.arguments for call in made.tool_calls] == ([] if content is None else [{"on": True}])
    if content is not None:
        assert made.content.strip() == content


def test_json_in_the_final_channel_is_not_a_call(engine: Engine) -> None:
    """JSON in the final channel is text, unless the answer must be a call. In that case a grammar forces
    JSON, which is read as a call.
    """
    text, options = '{"name": "bell", "arguments": {}}', PromptOptions([LAMP, BELL], think=True)
    shown = "<|channel|>final<|message|>" + text
    made = answered(engine, FAMILIES["gpt-oss"], shown, options)
    assert (made.content, made.tool_calls) == (text, ())
    forced = answered(engine, FAMILIES["gpt-oss"], shown, replace(options, has_form=True))
    assert (forced.content, forced.tool_calls) == ("", (RING,))


def allowed(engine: Engine, target: Target, grammar: str, text: str) -> bool:
    """Returns True if a grammar allows a whole text, and allows the answer to end after this text."""
    sampler = make_sampler(target, grammar=Lark(grammar))
    for token in [*engine.tokenize(text, add_bos=False), engine.native.eos]:
        if not sampler.allowed()[token]:
            return False
        sampler.accept(token)
    return True


def test_a_form_is_the_answer(engine: Engine, target: Target, family: Family) -> None:
    """A formatted answer has no thought, unless the request asks for thinking. A requested thought precedes
    the formatted text.
    """
    chat = chat_of(engine, family)
    form = resolve_grammar(response_format={"type": "json_object"})
    assert form is not None
    for think in (None, False):
        prompt = prompt_of(chat, PromptOptions(think=think, has_form=True))
        assert chat.grammar(prompt, form, think) == form
        made = message(chat, prompt, said(engine, FORM))
        assert (made.thinking, made.content) == ("", FORM)
    if not family.thinks:
        return
    prompt = prompt_of(chat, PromptOptions(think=True, has_form=True))
    late = (family.late or family.thinks.removesuffix("yes")) + FORM
    made = message(chat, prompt, said(engine, late))
    assert (made.thinking, made.content) == ("hm", FORM)
    grammar = chat.grammar(prompt, form, True)
    assert allowed(engine, target, grammar, late)
    close = chat.tags.close if chat.tags is not None else ""
    # The closing text comes after all its shorter prefixes.
    begun = "".join(close[:n] for n in range(1, len(close))) + close
    assert allowed(engine, target, grammar, late.replace(close, begun)), "the whole tag must end the thought"
    assert not allowed(engine, target, grammar, late + " and more"), "after the thought, the grammar applies"


def test_a_started_answer_is_continued(engine: Engine, family: Family) -> None:
    for think in (None, True):
        chat = chat_of(engine, family)
        prompt = prompt_of(chat, PromptOptions(think=think), Message("assistant", "Su"))
        assert prompt.rendered.text.endswith("Su") and prompt.rendered.begins in ("any", "answer")
        made = message(chat, prompt, said(engine, "re."))
        assert (made.thinking, made.content) == ("", "re.")


def test_a_started_thought_is_continued(engine: Engine, family: Family) -> None:
    if not family.thinks:
        return
    chat = chat_of(engine, family)
    tags = chat.tags
    assert tags is not None
    for start in (Message("assistant", "", "h"), Message("assistant", f"{tags.open}h")):
        prompt = prompt_of(chat, PromptOptions(), start)
        text = prompt.rendered.text
        assert text.endswith("h") and text.count(tags.open) == text.removesuffix("h").rstrip().count(
            tags.open
        )
        assert not re.search(re.escape(tags.open) + r"\s*" + re.escape(tags.open), text)
        made = message(chat, prompt, said(engine, "m" + tags.closing(tags.open) + "yes"))
        assert (made.thinking, made.content) == ("m", "yes")


# Results of tool calls


CALLED = Message("assistant", "", "", (ToolCall("lamp", {"on": True, "ms": 1764525600000}, "call_0123abcd"),
                                       ToolCall("bell", {}, "call_4567abcd")))  # fmt: skip
RESULTS = (Message("tool", "it is on", tool_call_id="call_0123abcd"),
           Message("tool", "it rang", tool_call_id="call_4567abcd"))  # fmt: skip


def rendered(engine: Engine, family: Family, *turns: Message, tools: Any = (LAMP, BELL)) -> str:
    return chat_of(engine, family).render([*QUESTION, *turns], PromptOptions(tools))[0].text


def test_parallel_calls_and_results_come_back(engine: Engine, family: Family) -> None:
    text = rendered(engine, family, CALLED, *RESULTS)
    reply = [text.index(part) for part in ("light?", "it is on", "it rang")]
    assert reply == sorted(reply)
    rest = text[reply[0] :]
    assert "lamp" in rest and "bell" in rest and "1764525600000" in rest and rest.lower().count("true") == 1
    assert rendered(engine, family, CALLED, *RESULTS, tools=()), "the history must render without tools too"


def test_tools_that_a_template_cannot_print_are_described(engine: Engine) -> None:
    """Hermes 3's template, for example, cannot print a parameter that may be null."""
    text = "{% for t in tools or [] %}{{ t.function.name }}{% if t.function.parameters.properties.on %}"
    text += "{{ raise_exception('nested') }}{% endif %}{% endfor %}{{ messages[0].content }}"
    chat = engine.shared.chat.with_template(text)
    described = [chat.render(QUESTION, PromptOptions([tool]))[1].describes for tool in (BELL, LAMP)]
    assert described == [False, True]


def test_a_system_prompt_that_is_printed_in_some_conversations_only_is_never_lost(engine: Engine) -> None:
    """Tests that a system prompt is never lost. Nemo's template prints the system prompt in the last message,
    but only if the last message is a question.
    """
    chat = chat_of(engine, FAMILIES["Mistral Nemo"])
    head = Message("system", "be brief")
    plain, taken = chat.render([head, *QUESTION])
    assert "[INST]be brief\n\nlight?" in plain.text and not taken.notices
    late, taken = chat.render([head, *QUESTION, CALLED, *RESULTS], PromptOptions([LAMP, BELL]))
    assert "be brief\n\nlight?" in late.text and "omits this system prompt" in taken.notices[-1]


@pytest.mark.parametrize(
    "turns",
    [
        [("system", "one"), ("system", "two"), ("user", "three")],
        [("system", "one"), ("user", "two"), ("assistant", "three"), ("system", "four"), ("user", "five")],
        [("user", "one"), ("system", "two")],
        [("user", "one"), ("user", "two"), ("assistant", "three"), ("assistant", "four"), ("user", "five")],
        [("system", "one")],
    ],
)
def test_all_messages_are_in_the_prompt(engine: Engine, family: Family, turns: list[tuple[str, str]]) -> None:
    if turns == [("system", "one")] and family.file == "Qwen3.5-4B":
        turns = [*turns, ("user", "two")]  # this template refuses a conversation without a question
    chat = chat_of(engine, family)
    messages = [Message(role, f"probe-{text}") for role, text in turns]
    text = chat.render(chat.conversation(messages).prompt())[0].text
    found = [text.find(message.content) for message in messages]
    assert min(found) >= 0
    # Some templates print all system messages before the other messages.
    spoken = [at for at, (role, _) in zip(found, turns, strict=True) if role != "system"]
    assert spoken == sorted(spoken)
    if turns[:2] == [("system", "one"), ("system", "two")]:
        assert found == sorted(found)


def test_the_docs_match_the_families(engine: Engine) -> None:
    lines = [line for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    rows = {row[0]: row[1:] for row in cells if row[0] in FAMILIES}
    assert list(rows) == list(FAMILIES)
    for name, (thoughts, calls, several) in rows.items():
        family = FAMILIES[name]
        _, taken = chat_of(engine, family).render([*QUESTION, CALLED, *RESULTS], PromptOptions([LAMP, BELL]))
        assert bool(thoughts) == bool(family.thinks), name
        assert calls.startswith("described") == taken.describes, name
        n_calls = max(len(message.tool_calls) for message in taken.messages)
        assert several == {0: "text", 1: "one by one", 2: "together"}[n_calls], name
