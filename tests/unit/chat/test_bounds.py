# SPDX-License-Identifier: MIT
"""Tests that no template takes more time, memory or output than allowed, neither when it is compiled nor when
it is rendered.
"""

from __future__ import annotations

import contextlib
import time
import tracemalloc

import pytest

from eaglecpp.chat import bounds
from eaglecpp.chat.bounds import MAX_TOKENS
from eaglecpp.chat.jinja import JinjaTemplate
from eaglecpp.errors import TemplateError

pytestmark = pytest.mark.alone  # these tests measure time

DOUBLE = "{% set s = namespace(x='0123456789') %}{% for i in range(300) %}{% set s.x = EXPR %}{% endfor %}"
IN_A_LOOP = (
    "s.x + s.x",
    "s.x ~ s.x",
    "'%s%s' % (s.x, s.x)",
    "s.x.replace('0', '01234567890')",
    "[s.x] + [s.x]",
    "[s.x, s.x]|tojson",
    "(s.x|int(1) + 9) * (s.x|int(1) + 9)",
    "[s.x, s.x]|map('upper')|join",
    "s.x|indent(900, true)",
)
GROWING = {
    **{text: DOUBLE.replace("EXPR", text) for text in IN_A_LOOP},
    "shared values": "{% set s = namespace(x=[1]) %}{% for i in range(60) %}{% set s.x = [s.x, s.x] %}"
    "{% endfor %}",
    "percent width": "{{ '%0999999999d' % 1 }}",
    "format width by value": "{{ '{:{}}'.format(1, 999999999) }}",
    "indent": "{{ 'x\\n'|indent(999999999, true, true) }}",
    "tojson of deep lists": "{% set s = namespace(x=range(31000)|list) %}{% for i in range(88) %}"
    "{% set s.x = [s.x] %}{% endfor %}{{ s.x|tojson(indent=16) }}",
    "replace": "{{ ('x' * 20000)|replace('x', 'y' * 10000) }}",
    "times": "{{ 'x' * 200000000 }}",
    "to_bytes": "{{ (5).to_bytes(999999999, 'big') }}",
    "join": "{{ ('x' * 10000)|list|join('y' * 20000) }}",
    "sum of lists": "{{ [[1, 2]]|sum(start=[]) }}",
    "wide characters, one by one": "{% set l = ('\U0001f600\U0001f601' * 300000)|list %}",
    "date": "{{ strftime_now('%0999999999d') }}",
    "text in a loop": "{% for i in range(99999) %}" + "x" * 9999 + "{% endfor %}",
    "a long template": "x" * (2 << 20),
    "nested loops": "{% for a in b %}" * 30 + "{% endfor %}" * 30,
    "wide characters": "{% set a = '\U0001f600' * 900000 %}"
    + "".join(f"{{% set a{i} = a ~ {i} %}}" for i in range(16)),
    "a backward search": "{% set a = 'a' * 90000 %}{{ a.rfind('a' * 30000 ~ 'b' ~ 'a' * 30000) }}",
    "digits": "{{ " + "1" * 5000 + " }}",
    "a method that JSON calls": "{{ (['a'] * 200)|tojson(cls=namespace, encode=('x' * 900000).join) }}",
    "namespaces in each other": "{% set s = namespace(d={"
    + "".join(f"'a{i}': 1, " for i in range(99))
    + "}) %}"
    "{% for i in range(99999) %}{% set s.x = namespace(x=s.x, **s.d) %}{% endfor %}",
    "a macro that calls itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "comparisons": "{% set a = 'a' * 900000 %}{{ a" + " in a" * 900 + " }}",
}


def nested(n: int, begin: str, end: str, inner: str) -> str:
    return "".join(begin.replace("#", str(i)) for i in range(n)) + inner + end * n


def repeated(n: int, text: str) -> str:
    return "".join(text.replace("#", str(i)) for i in range(n))


TOO_LONG = {
    "keywords": "{{ x(" + repeated(4200, "a#=1,") + ") }}",
    "blocks in each other": nested(70, "{% block a# %}", "{% endblock %}", ""),
    "a long sum": "{{ x" + " + x" * 100 + " }}",
}
N_TOKENS = MAX_TOKENS // 4
COSTLY = {
    "loops in each other": nested(
        55, "{% for a in x recursive %}", "{% endfor %}", "{{ x }}" * ((N_TOKENS - 55 * 10) // 3)
    ),
    "keywords": "{{ x(" + repeated(N_TOKENS // 4 - 10, "a#=1,") + ") }}",
}


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allows a sixteenth of the usual memory, so that a test reaches the limit quickly."""
    for name in ("MAX_CHARS", "MAX_PRODUCT", "MAX_VALUE", "MAX_BYTES"):
        monkeypatch.setattr(bounds, name, getattr(bounds, name) // 16)


def refused(text: str) -> None:
    tracemalloc.start()
    started = time.thread_time()
    try:
        with pytest.MonkeyPatch.context() as patch, pytest.raises(TemplateError):
            patch.setattr(bounds, "MAX_SECONDS", 0.5)
            JinjaTemplate(text).render({"b": [1]})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20 << 20
    assert time.thread_time() - started < 10


@pytest.mark.parametrize("text", GROWING.values(), ids=GROWING.keys())
def test_nothing_grows_at_once_or_in_a_loop(text: str) -> None:
    refused(text)


@pytest.mark.parametrize("text", TOO_LONG.values(), ids=TOO_LONG.keys())
def test_too_long_templates_are_not_compiled(text: str) -> None:
    started = time.thread_time()
    with pytest.raises(TemplateError, match=r"more than|at most|nested too deeply"):
        JinjaTemplate(text)
    assert time.thread_time() - started < 2


@pytest.mark.parametrize("text", COSTLY.values(), ids=COSTLY.keys())
def test_compiling_takes_no_more_than_its_share(text: str) -> None:
    """Compiles a template of a quarter of the allowed size, which takes a quarter of about 4 s. Slow machines
    take several times as long.
    """
    started = time.thread_time()
    # After rendering, Python may refuse the template, because the template is nested too deeply.
    with contextlib.suppress(TemplateError):
        JinjaTemplate(text)
    assert time.thread_time() - started < 10


@pytest.mark.parametrize("body", ["{% if s in t %}{% endif %}", "{% if t is eq(s) %}{% endif %}"])
def test_time_is_limited_where_no_output_grows(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(bounds, "MAX_SECONDS", 0.2)
    begin = "{% set s = 'a' * 1000000 ~ 'b' %}{% set t = 'a' * 1000000 ~ 'c' %}"
    started = time.thread_time()
    with pytest.raises(TemplateError, match="the template runs longer than"):
        JinjaTemplate(begin + "{% for i in range(99) %}" + body * 500 + "{% endfor %}").render({})
    assert time.thread_time() - started < 3


def test_a_long_conversation_is_not_an_attack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    messages = [{"role": "user", "content": "é" * 2000}] * 700
    text = (
        "{% macro one(m, all) %}{{ m.content|trim }}{{ all|length }}{% endmacro %}{% for m in messages %}"
        "{{ '<|' ~ m.role ~ '|>' }}{{ one(m, messages) }}{{ messages[1:]|length }}"
        "{{ m.content.split('</think>')[-1][:0] }}"
        "{% if loop.index == messages|length and (messages|last).role == 'user' %}!{% endif %}{% endfor %}"
    )
    assert len(JinjaTemplate(text).render({"messages": messages})) == 700 * (2000 + 14) + 1
    text = "{{ messages|map(attribute='content')|join('<|im_end|><|im_start|>user') }}"
    assert len(JinjaTemplate(text).render({"messages": messages})) == 700 * 2000 + 699 * 26


def test_output_that_would_escape_the_limits_is_counted() -> None:
    spaces = "{% set n = namespace(x='y') %}{{ [n, n.x] }}"
    assert JinjaTemplate(spaces).render({}) == "[<Namespace>, 'y']"
    loops = (
        "{% set s = namespace(x=[1]) %}{% for i in range(99999) %}{% set s.x = s.x|_counted %}{% endfor %}"
    )
    counted = JinjaTemplate(loops + "{% for x in s.x %}{{ x }}{% endfor %}")
    assert counted.render({}) == "1", "nested cyclers must not overflow Python's stack"


@pytest.mark.parametrize(
    "text",
    [
        "{{ cycler() }}",  # cycler() raises RuntimeError
        "{{ 1 / 0 }}",
        "{{ [1]|groupby('a.b') }}{{ nothing.at.all }}",
        "{{ 'é'.encode('latin-9x') }}",
        "{{ 2 ** 2 }}",
        "\n{{ raise_exception('roles must alternate') }}",
        "{{ messages.__class__.mro() }}",
        "{% set _ = messages.append(1) %}",
    ],
)
def test_any_error_of_a_template_is_a_template_error(text: str) -> None:
    with pytest.raises(TemplateError, match=r"chat_template:[12]: .") as raised:
        JinjaTemplate(text).render({"messages": [1]})
    assert raised.value.line == 1 + text.count("\n")
