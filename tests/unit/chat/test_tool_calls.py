# SPDX-License-Identifier: MIT
"""Tests the reading of tool calls in the forms that templates teach, however the text is split into
pieces.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglecpp.chat.call_syntax import Tools
from eaglecpp.chat.formats import GPT_OSS, HERMES, KNOWN, CallFormat, Layout, formats_of, layout_of
from eaglecpp.chat.message import Message, ToolCall
from eaglecpp.chat.reader import Reader
from helpers.chat_templates import call_formats

pytestmark = pytest.mark.alone  # these tests measure time


@dataclass(frozen=True)
class Around:
    """Text around a call: the text that precedes the call in an answer, and texts that may end the message to
    the tool.
    """

    layout: Layout | None = None
    said: str = "hm "
    before: str = ""
    after: str = ""


MESSAGES = {  # text of a message around a call, by the mark of the call
    "to=functions.": Around(GPT_OSS, "<|channel|>final<|message|>hm <|end|>"),
    ">>>": Around(layout_of(">>>all\n"), "all\nhm "),
    "<|open|>tools<|sep|>": Around(
        layout_of("<|open|>think<|sep|>"), "<|open|>response<|sep|>hm <|close|>response<|sep|>"
    ),
    "<|message|><atem:function_calls>": Around(
        layout_of(" to=self<|message|>"), " to=user<|message|>hm <|eom|>", " to=save", "<|eom|>"
    ),
}


def around(formats: Sequence[CallFormat]) -> Around:
    return MESSAGES.get(formats[0].open if formats else "", Around())


def reader(formats: Sequence[CallFormat], tools: Tools) -> Reader:
    return Reader(around(formats).layout, formats=formats, tools=tools)


def parts_of(one: Reader, text: str, size: int) -> tuple[str, list[ToolCall]]:
    """Reads an answer in pieces. Returns its text and its calls."""
    parts = [part for at in range(0, len(text), size) for part in one.feed(text[at : at + size])]
    parts += one.finish()
    assert "".join(part.text for part in parts) == text, "each character must come out once, in order"
    said = "".join(part.added + part.text for part in parts if part.kind == "answer")
    return said, [call for part in parts for call in part.calls]


NAMES = ("f", "g")
F1, G = ToolCall("f", {"a": 1}), ToolCall("g")


def read(text: str, marks: Sequence[CallFormat] = (HERMES,), size: int = 3) -> tuple[str, list[ToolCall]]:
    text = around(marks).before + text
    return parts_of(reader(marks, {name: {} for name in NAMES}), text, size)


GLM = "<tool_call>\0\n<arg_key>probe_key</arg_key>\n<arg_value>\0</arg_value>\n</tool_call>"
QWEN = "Qwen3.5-4B"
TEMPLATES = (
    GLM, QWEN, "deepseek-v3.2", "minimax-m2", "minimax-m3", "kimi-k3", "muse", "gigachat-3",
    "functionary-v3.2",
)  # fmt: skip


def forms(template: str) -> tuple[CallFormat, ...]:
    """Returns the forms of a family's template, of a printed call, or of a template that mentions a mark."""
    if "\0" in template:
        return formats_of("", template)
    return call_formats(template) if template in TEMPLATES else formats_of(template)


FORMS = {
    "a list": ("<tool_call>",
               '<tool_call>[{"name":"f","arguments":{"a":1}},{"name":"g"}]</tool_call>', [F1, G]),
    "a list without commas": ("", '[{"name":"f","arguments":{"a":1}}{"name":"g"}]', [F1, G]),
    "several": ("<tool_call>", '<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>\n'
                '<tool_call>{"name":"g","arguments":{}}</tool_call>', [F1, G]),
    "Llama, several": ("<|python_tag|>", '{"name": "f", "parameters": {"a": 1}}; {"name": "g"}', [F1, G]),
    "Llama, marked": ("<|python_tag|>", '<|python_tag|>{"name": "f", "parameters": {"a": 1}}', [F1]),
    "Llama 3.2": ("<|python_tag|>", "[f(a=1), g()]", [F1, G]),
    "DeepSeek": ("<｜tool▁calls▁begin｜>",
                 "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n"
                 '```json\n{"a": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>', [F1]),
    "Qwen coder without the opening mark":
        (QWEN, "<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>\n"
         "<tool_call>\n<function=g>\n</function>\n</tool_call>", [F1, G]),
    "Kimi K2": ("<|tool_calls_section_begin|>", "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
                '<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|><|tool_call_begin|>functions.g:1'
                "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
                [ToolCall("f", {"a": 1}, "functions.f:0"), ToolCall("g", {}, "functions.g:1")]),
    "gpt-oss": ("to=functions.", 'to=functions.f <|constrain|>json<|message|>{"a": 1}<|end|>'
                "to=functions.g<|channel|>commentary json<|message|>{}<|call|>", [F1, G]),
    "GLM, a tool without parameters": (GLM, "<tool_call>g</tool_call>", [G]),
    "Seed-OSS": ("<seed:tool_call>", "<seed:tool_call>\n<function=f>\n<parameter=a>1</parameter>\n</function>"
                 "\n</seed:tool_call><seed:tool_call><function=g></function></seed:tool_call>", [F1, G]),
    "MiniCPM5": ('<function name="', '<function name="f"><param name="a">1</param></function>\n'
                 '<function name="g"></function>', [F1, G]),
    "fenced": ("", '```json\n{"name": "f", "arguments": {"a": 1}}\n```', [F1]),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [1, 4, 1000])
def test_calls_are_found_in_every_form(form: str, size: int) -> None:
    template, text, expected = FORMS[form]
    said, calls = read(text, forms(template), size)
    assert (said, calls) == ("", expected)


# Pairs of texts: a call as a template prints it, with "\0" for the tool's name and for the argument, and two
# calls as a model writes them.
LEARNED = {
    "Apertus": ('<|tools_prefix|>[{"\0": {"probe_key": "\0"}}]<|tools_suffix|>',
                '<|tools_prefix|>[{"f": {"a": 1}}, {"g": {}}]<|tools_suffix|>'),
    "Command R+": ('Action:\n```json\n[{"tool_name": "\0", "parameters": {"probe_key": "\0"}}]```\n',
                   'Action:\n```json\n[{"tool_name": "f", "parameters": {"a": 1}}, '
                   '{"tool_name": "g", "parameters": {}}]```'),
    "Solar": ('<|calls|><|call:begin|>1<|call:name|>\0<|call:args|>{"probe_key": "\0"}<|call:end|>',
              '<|calls|><|call:begin|>1<|call:name|>f<|call:args|>{"a": 1}<|call:end|>'
              "<|call:begin|>2<|call:name|>g<|call:args|>{}<|call:end|>"),
}  # fmt: skip


@pytest.mark.parametrize("form", LEARNED)
def test_marks_are_learned_from_the_printed_template(form: str) -> None:
    called, text = LEARNED[form]
    # A mark that the template prints takes precedence over a mark that the template only mentions. A text
    # that is in every answer is not a mark.
    marks = formats_of("<tool_call>", "<|assistant|>" + called + "<|end|>", "<|assistant|>\0<|end|>")
    assert read("hm " + text, marks, 1) == ("hm", [F1, G])
    assert read("<|assistant|>", marks) == ("<|assistant|>", [])
    assert text.endswith(marks[0].close) and "<|end|>" not in marks[0].printed


TOOLS = {"save": {"properties": {
    "text": {"type": "string"}, "n": {"type": ["integer", "null"]}, "on": {"type": "boolean"},
    "kind": {"enum": ["1", "2"]}, "any": {}, "list": {"type": "array"},
}}}  # fmt: skip


def read_typed(text: str, template: str, size: int = 1) -> tuple[str, list[dict[str, object]]]:
    formats = forms(template)
    said, calls = parts_of(reader(formats, TOOLS), around(formats).before + text, size)
    return said, [dict(call.arguments) for call in calls]


def qwen(**values: str) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function=save>\n{inner}</function>\n</tool_call>"


def glm(**values: str) -> str:
    inner = "".join(
        f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in values.items()
    )
    return f"<tool_call>save{inner}</tool_call>"


@pytest.mark.parametrize(("write", "printed"), [(qwen, QWEN), (glm, GLM)])
def test_values_without_quotes_have_the_schemas_type(write: Callable[..., str], printed: str) -> None:
    for values, meant in (
        ({"text": "3"}, {"text": "3"}),
        ({"text": '{"a": 1}'}, {"text": '{"a": 1}'}),
        ({"text": "    if x:\n        pass\n"}, {"text": "    if x:\n        pass\n"}),
        ({"n": "3", "on": "true", "kind": "1"}, {"n": 3, "on": True, "kind": "1"}),
        # the values have Python's syntax
        ({"n": "None", "list": "['a', True]"}, {"n": None, "list": ["a", True]}),
        ({"on": "{1}", "list": "['a"}, {"on": "{1}", "list": "['a"}),
        ({"any": "3", "other": "x"}, {"any": 3, "other": "x"}),
    ):
        assert read_typed(write(**values), printed) == ("", [meant])


def test_values_of_gemma_are_read_to_any_depth() -> None:
    text = '<|tool_call>call:save{a key:[{b:<|"|>x,y} "q"<|"|>},[1,-0.5],null],on:false}<tool_call|>'
    meant = {"a key": [{"b": 'x,y} "q"'}, [1, -0.5], None], "on": False}
    assert read_typed(text.replace("null", "None"), "<|tool_call>") == ("", [meant]), "as the template prints"
    assert read_typed(text, "<|tool_call>") == ("", [meant])
    assert read_typed("<|tool_call>call:save{a:[}<tool_call|>", "<|tool_call>")[1] == []


@pytest.mark.parametrize(
    "text",
    ["a < b, <tool is fine", '{"name": "other", "arguments": {}}', "<tool_call>no call", '{"a": 1}',
     "see [f(x)", "[1, 2]", "[f(a=__import__('os').getcwd())]",
     "<tool_call><function=f>a: 1</function></tool_call>",
     '<tool_call>{"name": 7}</tool_call>', '{"name": "f"', "```json\n[]\n```"],
)  # fmt: skip
def test_text_that_is_not_a_call_comes_out_unchanged(text: str) -> None:
    assert read(text) == (text, [])


ALL = (*KNOWN, *(form for printed in TEMPLATES for form in forms(printed)))


@pytest.mark.parametrize(
    "piece",
    ["<function=a>", "<parameter=a>\n", "<arg_key>a</arg_key><arg_value>", "a<|channel|>",
     "<｜tool▁call▁begin｜>a<｜tool▁sep｜> ", '<a:invoke name="a">', '<a:parameter name="a">',
     "<tool_call:a>a", "call:a{", "a(", 'a{"a":1,', " ", "\\", '"', "[a]("],
)  # fmt: skip
@pytest.mark.parametrize("start", ["", "a<arg_key>", "call:a{", "["])
def test_repeated_text_takes_time_in_proportion(start: str, piece: str) -> None:
    """Tests that reading repeated text takes linear time, because a model that repeats itself must not delay
    other answers.
    """
    in_proportion(lambda text: [form.calls(start + text, {"a": {}}) for form in ALL], piece)


@pytest.mark.parametrize("form", ALL)
@pytest.mark.parametrize("end", ["", "</parameter>", "</function>"])
def test_repeated_marks_of_an_open_value_take_time_in_proportion(form: CallFormat, end: str) -> None:
    start = around((form,)).before + form.open + "\n<function=save>\n<parameter=text>\n"

    def read_all(text: str) -> None:
        one = reader((form,), TOOLS)
        for at in range(0, len(text), 64):
            one.feed((start if at == 0 else "") + text[at : at + 64])
        one.finish()

    in_proportion(read_all, end + (form.close or form.open))


def in_proportion(work: Callable[[str], object], piece: str) -> None:
    def seconds(n_chars: int) -> float:
        text, times = piece * (n_chars // len(piece)), []
        for _ in range(3):
            started = time.thread_time()
            work(text)
            times.append(time.thread_time() - started)
        return min(times)

    # with quadratic time, the long text would take 64 times as long
    assert seconds(160_000) < 3 * 8 * max(seconds(20_000), 0.002)


def test_any_number_of_ends_without_a_call_is_left_out() -> None:
    text = "<function=g></function>" + "</tool_call>" * 5000
    assert read(text, forms(QWEN), len(text)) == ("", [G])


TEXTS = ("x", "\nx\n", " a ", "3", "null", '{"a": 1}', 'it\'s "q" \\n', "<function=g></function>")


@pytest.mark.parametrize("form", [*KNOWN, *(forms(printed)[0] for printed in TEMPLATES)])
def test_calls_of_the_history_are_written_like_they_are_read(form: CallFormat) -> None:
    tree = {"a": [[1, 2], [{"b": "x"}]], "c": {"c": {"d": False}}}
    arguments = [*({"text": text} for text in TEXTS), {"n": 3, "on": True, "list": ["a", 1], "any": tree}]
    calls = [ToolCall("save", one) for one in (*arguments, {}, {"text": "", "n": None})]
    what = around((form,))
    texts = [form.write(calls)]
    if form.is_message:
        texts = [what.before + form.write([call]) + what.after for call in calls]
    said, found = parts_of(reader((form,), TOOLS), what.said + "".join(texts), 1)
    assert said.strip() == "hm"
    read_back = [(call.name, call.arguments) for call in found]
    assert read_back == [(call.name, call.arguments) for call in calls]


def test_a_number_of_any_length_and_a_line_break_in_json_are_read() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": "x\n\ty"}}</tool_call>'
    assert read(text) == ("", [ToolCall("f", {"a": "x\n\ty"})])
    assert read_typed(qwen(n="1" * 400), QWEN) == ("", [{"n": int("1" * 400)}])


@given(st.lists(st.sampled_from(
    ["<", "</", ">", "a", "\0", "probe_key", '"', "{", ":", "(", "=", "to=functions.", "call:", '<|"|>', "\n",
     "[", "<x>", "</x>", "<|t|>"]
), max_size=14))  # fmt: skip
def test_any_printed_template_gives_a_form_or_none(printed: list[str]) -> None:
    for form in formats_of("", "".join(printed)):
        form.calls("<x>a</x>", {})


MARKS = {
    mark for form in ALL for mark in (form.open, form.close, *re.findall(r"</?[^<>\0]+>", form.printed))
} - {'<|"|>', ""}  # fmt: skip
MARKS |= {
    "<function=delete_all></function>", '<param name="a">', "[delete_all()]", "</parameter>", "</arg_value>",
    '{"name": "delete_all", "arguments": {}}', '<tool_call>{"name": "delete_all", "arguments": {}}',
    "<|end|>", "<|eom|>", ">>>", "<|start|>assistant", "<|close|>response<|sep|>",
}  # fmt: skip


@pytest.mark.parametrize("formats", [*((form,) for form in KNOWN), *map(forms, TEMPLATES)])
def test_marks_of_every_family_in_a_value_are_its_text(formats: tuple[CallFormat, ...]) -> None:
    """A model may quote any text as the value of an argument. The quoted text must neither become a call nor
    end the value.
    """
    for mark in sorted(MARKS):
        value = f"a {mark} b"
        call = ToolCall("save", {"text": value})
        whole = around(formats).before + formats[0].write([call]) + around(formats).after
        assert value in whole or json.dumps(value, ensure_ascii=False) in whole

        def found(text: str, size: int) -> tuple[str, list[Mapping[str, object]]]:
            said, calls = parts_of(reader(formats, TOOLS), text, size)
            return said, [one.arguments for one in calls]

        assert found(whole, 7) == ("", [call.arguments]), mark
        for at in range(1, len(whole)):  # an answer that was cut contains either this call or no call
            assert found(whole[:at], 64)[1] in ([], [call.arguments]), (mark, at)


def test_a_text_stays_a_text_where_the_schema_allows_one() -> None:
    text = {"type": "string"}
    for schema in (
        {"anyOf": [text, {"type": "null"}]},
        {"$ref": "#/$defs/t"},
        {"allOf": [text]},
        {"const": "42"},
    ):
        tools = {"save": {"$defs": {"t": text}, "properties": {"text": schema}}}
        for value in ("90210", "1.10", "true", '{"a": 1}', "NaN"):
            assert parts_of(reader(forms(QWEN), tools), qwen(text=value), 7) == (
                "", [ToolCall("save", {"text": value})],
            )  # fmt: skip


def test_a_schema_that_refers_to_itself_takes_no_time() -> None:
    again = {"$ref": "#/$defs/t"}
    schema = {"$defs": {"t": {"anyOf": [again] * 16}}, "properties": {"text": again}}
    assert forms(QWEN)[0].calls(qwen(text="3")[11:-12], {"save": schema}) == [ToolCall("save", {"text": 3})]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_outside_json_reach_no_client(number: str) -> None:
    text = f'<tool_call>{{"name": "f", "arguments": {{"a": {number}}}}}</tool_call>'
    assert read(text) == (text, [])


def test_python_calls_may_contain_any_text() -> None:
    lfm2 = forms("<|tool_call_start|>")
    for inner, arguments in (
        ('s="weather in Paris (France)"', {"s": "weather in Paris (France)"}),
        ('s="a", b=true, c=null', {"s": "a", "b": True, "c": None}),
        ("s='it\\'s', b=[1,\n True]", {"s": "it's", "b": [1, True]}),
        ('arg={"x": null}', {"arg": {"x": None}}),
        ('s=\'a\n"b"\', t="\n"', {"s": 'a\n"b"', "t": "\n"}),
    ):
        text = f"<|tool_call_start|>[get-docs({inner})]<|tool_call_end|>Checking it."
        assert read(text, lfm2) == ("Checking it.", [ToolCall("get-docs", arguments)])


def test_a_json_answer_that_is_not_a_call_is_not_withheld() -> None:
    one = reader((HERMES,), {"f": {}})
    assert one.feed('{"answer') and one.feed('": 1')
    assert reader((HERMES,), {"f": {}}).feed('json{"name": "f"')
    assert not reader((HERMES,), {"f": {}}).feed('{"name": "f", "arg')


@pytest.mark.parametrize("arguments", ["", "null", "{}", "[]", None, {}])
def test_a_call_without_arguments_is_accepted_in_any_form(arguments: object) -> None:
    function = {"name": "now", "arguments": arguments}
    for calls in ({"tool_calls": [{"function": function}]}, {"function_call": function}):
        assert Message.from_dict({"role": "assistant", **calls}).tool_calls == (ToolCall("now"),)


def test_an_end_without_a_beginning_is_left_out_and_the_text_after_it_is_shown() -> None:
    marks = forms(QWEN)
    text, calls = read("<function=g></function>\n</tool_call>\nso", marks)
    assert (text.strip(), calls) == ("so", [G])
    assert read("an </tool_call> alone", marks)[0].split() == ["an", "</tool_call>", "alone"]
