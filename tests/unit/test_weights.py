# SPDX-License-Identifier: MIT
"""Tests which lines tests/weights.py counts as code."""

from __future__ import annotations

from pathlib import Path

import weights

PYTHON = '''# a comment
"""A docstring
of two lines.
"""

X = """a text
of two lines"""  # a comment
"""What X is."""


def f() -> str:
    """Docstring."""
    return "# no comment"
'''
CPP = """// a comment
/* another
   one */
#include <string>

const char * url = "http://a";  // not behind the slashes
int f() { return 1; /* here */ }
"""


def test_comments_docstrings_and_blank_lines_do_not_count(tmp_path: Path) -> None:
    for name, text, n in (("a.py", PYTHON, 4), ("a.cpp", CPP, 3)):
        (tmp_path / name).write_text(text)
        assert weights.code_lines(tmp_path / name) == n
