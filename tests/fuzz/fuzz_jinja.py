# SPDX-License-Identifier: MIT
"""Fuzzes the Jinja templates: any text is rendered or refused with a TemplateError, within its bounds
(libFuzzer watches the memory).
"""

from __future__ import annotations

import time

from atheris_target import fuzz, instrumented

with instrumented():
    from eaglecpp.chat import bounds
    from eaglecpp.chat.jinja import JinjaTemplate
    from eaglecpp.errors import TemplateError

bounds.MAX_SECONDS = 2.0
bounds.MAX_CHARS = 1 << 18
bounds.MAX_VALUE = 1 << 20
bounds.MAX_BYTES = 4 << 20

SEEDS = [
    "{% for m in messages %}<{{ m.role }}>{{ m['content']|trim }}{{ loop.index0 }}{% endfor %}",
    "{% set s = namespace(x='a') %}{% for i in range(9) %}{% set s.x = s.x ~ s.x + '%s' % i %}{% endfor %}",
    "{% macro f(n) %}{{ n|tojson(indent=2) }}{{ f(n - 1) if n }}{% endmacro %}{{ f(3) }}",
    "{{ '{:>4}{}'.format(1, [2, (3,)])|replace('3', 'abc')|indent(9) }}{{ 'a,b'.split(',')|join('-') }}",
    "{%- if tools is defined and not x -%}{{ tools[0].function.name[1:] * 3 }}{%- else -%}x{%- endif -%}",
    "{% set c = cycler('a', 'b') %}{{ c.next() ~ c.next() }}{% set j = joiner() %}{{ j() ~ dict(a=1) }}",
    "{{ messages|map(attribute='role')|list|unique|join(' ') }}{{ raise_exception('no') if false }}",
]
VARIABLES = {
    "messages": [{"role": "user", "content": "Hi <there>"}, {"role": "assistant", "content": "é\n"}],
    "tools": [{"type": "function", "function": {"name": "weather", "parameters": {"a": [1, 2.5, None]}}}],
    "bos_token": "<s>",
    "add_generation_prompt": True,
}
WORDS = [
    "{{", "}}", "{%", "%}", "{%-", "-%}", "for ", " in ", "endfor", "if ", "else", "endif", "set ", "endset",
    "macro ", "endmacro", "call ", "filter ", "namespace(", "range(", "messages", "|tojson",
    "|join(", "|replace(", "|format(", "|indent(", "|list", "|map(", ".format(",
    ".join(", ".replace(", ".split(", " ~ ", " + ", " * ", " % ", "'%0999d'", "'{:999}'",
    "99999", "loop", "recursive", "dict(", "cycler(", "strftime_now(",
]  # fmt: skip


def test_one(data: bytes) -> None:
    started = time.monotonic()
    try:
        text = JinjaTemplate(data.decode("utf-8", "replace")).render(VARIABLES)
        assert len(text) <= bounds.MAX_CHARS
    except TemplateError as error:
        assert str(error).startswith("template: ")
    assert time.monotonic() - started < 15


if __name__ == "__main__":
    fuzz(test_one, SEEDS, WORDS)
