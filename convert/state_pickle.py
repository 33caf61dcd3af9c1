# SPDX-License-Identifier: MIT
"""Reads the pickle of a PyTorch state dict with a virtual machine that can do nothing else.

Python's unpickler runs what the file says: a few bytes let it allocate gigabytes (a memo index of 2^31, a
list per byte), or hash a tuple for years, even when no global may be looked up. Here an instruction that a
state dict does not need is refused, every other one makes at most one small value, and there is a limit to
how many are run. What the instructions mean: Lib/pickletools.py.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import CheckpointError

__all__ = ["MAX_STEPS", "load"]

MAX_STEPS = 500_000
"""Instructions; torch needs some forty per tensor."""
_MAX_INT_BYTES = 8

Function = Callable[..., Any]
_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_NUMBERS = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT")
_TEXTS = ("BINUNICODE", "SHORT_BINUNICODE")
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass
class _Machine:
    """Stack and memo. functions: what the file may name, by "module.name"."""

    functions: Mapping[str, Any]
    storage: Function
    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def run(self, data: bytes) -> Any:
        for n_steps, (code, argument, _) in enumerate(pickletools.genops(io.BytesIO(data))):
            if n_steps >= MAX_STEPS:
                raise CheckpointError(
                    f"data.pkl has more than {MAX_STEPS} instructions; that is not a state dict"
                )
            if code.name == "STOP":
                return self.stack.pop()
            self.step(code.name, argument)
        raise CheckpointError("data.pkl has no end")

    def step(self, code: str, argument: Any) -> None:
        stack = self.stack
        if code in _NUMBERS:
            if isinstance(argument, int) and argument.bit_length() >= 8 * _MAX_INT_BYTES:
                raise CheckpointError("data.pkl contains a number of more than 64 bits")
            stack.append(argument)
        elif code in _TEXTS:
            stack.append(argument)
        elif code in _CONSTANTS:
            stack.append(_CONSTANTS[code])
        elif code in _TUPLES:
            stack.append(tuple(self.take(_TUPLES[code])))
        elif code in ("BINPUT", "LONG_BINPUT"):
            self.memo[argument] = stack[-1]
        elif code == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif code in ("BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif code not in ("PROTO", "FRAME"):
            self.build(code, argument)

    def build(self, code: str, argument: Any) -> None:
        """The instructions that put values together."""
        stack = self.stack
        if code == "MARK":
            stack.append(_MARK)
        elif code in ("EMPTY_TUPLE", "TUPLE"):
            stack.append(() if code == "EMPTY_TUPLE" else tuple(self.to_mark()))
        elif code in ("EMPTY_LIST", "EMPTY_DICT"):
            stack.append([] if code == "EMPTY_LIST" else {})
        elif code in ("APPEND", "APPENDS"):
            values = self.to_mark() if code == "APPENDS" else self.take(1)
            _expect(stack[-1], list).extend(values)
        elif code in ("SETITEM", "SETITEMS"):
            self.set_items(self.to_mark() if code == "SETITEMS" else self.take(2))
        elif code in ("GLOBAL", "STACK_GLOBAL"):
            name = argument.replace(" ", ".", 1) if code == "GLOBAL" else ".".join(map(str, self.take(2)))
            stack.append(self.find(name))
        elif code == "BINPERSID":
            stack.append(self.storage(stack.pop()))
        elif code == "REDUCE":
            function, arguments = self.take(2)
            if not callable(function) or not any(function is one for one in self.functions.values()):
                raise CheckpointError("data.pkl calls something that is not a function")
            stack.append(function(*_expect(arguments, tuple)))
        elif code == "BUILD":
            target, _ = self.take(2)  # attributes of an OrderedDict, such as a module's _metadata
            stack.append(_expect(target, dict))
        else:
            raise CheckpointError(f"data.pkl uses the instruction {code}, which a state dict does not need")

    def find(self, name: str) -> Any:
        if name not in self.functions:
            raise CheckpointError(
                f"data.pkl asks for {name[:200]}, which a state dict of plain tensors does not need. "
                "Load the file where it was made and save the bare tensors as .safetensors"
            )
        return self.functions[name]

    def set_items(self, values: list[Any]) -> None:
        target = _expect(self.stack[-1], dict)
        for key, value in zip(values[::2], values[1::2], strict=True):
            target[_expect(key, str)] = value  # no other key: hashing a nested tuple can take for ever

    def take(self, n: int) -> list[Any]:
        values = self.stack[-n:]
        if len(values) < n or any(value is _MARK for value in values):
            raise CheckpointError("data.pkl takes more values than it has")
        del self.stack[-n:]
        return values

    def to_mark(self) -> list[Any]:
        for at in range(len(self.stack) - 1, -1, -1):
            if self.stack[at] is _MARK:
                values = self.stack[at + 1 :]
                del self.stack[at:]
                return values
        raise CheckpointError("data.pkl takes more values than it has")


def load(data: bytes, functions: Mapping[str, Any], storage: Function) -> Any:
    """What the pickle says. Raises CheckpointError, and anything else for one that is cut or damaged.

    functions: what it may name, by "module.name"; the callable ones are called. storage: of a persistent id
    """
    return _Machine(functions, storage).run(data)


def _expect(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise CheckpointError(f"data.pkl: expected {kind.__name__}, found {type(value).__name__}")
    return value
