# SPDX-License-Identifier: MIT
"""Reads, checks, resolves and writes Modelfiles. Importing this package loads neither llama.cpp nor numpy.

    commands = eaglecpp.modelfile.parse(text)          # [Command(name, args, line), ...]
    text = eaglecpp.modelfile.format(commands)
    modelfile = eaglecpp.modelfile.Modelfile.load("Modelfile")
    files = eaglecpp.modelfile.Resolved(modelfile, ".")  # the target, drafter and adapters

The package prints nothing. It raises errors as `ModelfileError` and returns warnings as `Notice`s.
"""

from __future__ import annotations

from eaglecpp.references import ModelName as ModelName
from eaglecpp.references import ModelNameError as ModelNameError

from .model import Modelfile as Modelfile
from .resolve import Resolved as Resolved
from .syntax import Command as Command
from .syntax import Document as Document
from .syntax import ModelfileError as ModelfileError
from .syntax import Notice as Notice
from .syntax import decode as decode
from .syntax import format as format
from .syntax import parse as parse
from .syntax import read as read
