# SPDX-License-Identifier: MIT
"""Modelfiles: read, check, resolve and write them. Usable on its own; loads neither llama.cpp nor numpy.

    commands = eaglecpp.modelfile.parse(text)          # [Command(name, args, line), ...]
    text = eaglecpp.modelfile.format(commands)
    modelfile = eaglecpp.modelfile.Modelfile.load("Modelfile")
    plan = eaglecpp.modelfile.resolve(modelfile, ".")  # which target, drafter, adapters

Nothing here prints: refusals are `ModelfileError`, remarks are `Notice`s.
"""

from __future__ import annotations

from eaglecpp.references.names import ModelName, ModelNameError
from eaglecpp.references.reference import Reference

from .errors import ModelfileError, Notice
from .model import Modelfile
from .resolve import Plan, resolve
from .syntax import Command, Document, decode, format, parse, read

__all__ = [
    "Command",
    "Document",
    "ModelName",
    "ModelNameError",
    "Modelfile",
    "ModelfileError",
    "Notice",
    "Plan",
    "Reference",
    "decode",
    "format",
    "parse",
    "read",
    "resolve",
]
