# SPDX-License-Identifier: MIT
"""Index of a PyTorch .bin file (zip format, torch >= 1.6) without torch.

The file is a zip of `<prefix>/data.pkl` (the state dict with tensors as storage references) and one stored
entry per storage. No entry is ever unpacked: torch stores them as they are, so one that is compressed is
refused, and nothing in memory is larger than its place on the disk. Storages stay in the file; tensors become
`TensorSource`s. Source of the format: pytorch/pytorch: torch/serialization.py.

The pickle is read by a virtual machine that can do nothing but what a state dict of plain tensors needs.
Python's unpickler runs what the file says: a few bytes let it allocate gigabytes (a memo index of 2^31, a
list per byte), or hash a tuple for years, even when no global may be looked up. Here an instruction that a
state dict does not need is refused, every other one makes at most one small value, and there is a limit to
how many are run. What they mean: Lib/pickletools.py.
"""

from __future__ import annotations

import io
import math
import pickletools
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import CheckpointError
from .files import open_regular
from .tensor import DTYPE_BYTES, TensorSource

_MAX_PICKLE_BYTES = 4 << 20  # a state dict's pickle is a few hundred bytes per tensor
_MAX_READ = 4 << 20  # a list of entries has some hundred bytes per tensor; zipfile needs ten times as much
_MAX_DIMS = 8

_STORAGE_DTYPES = {
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8",
    "ByteStorage": "U8", "BoolStorage": "BOOL",
}  # fmt: skip


class _Bounded(io.FileIO):
    """A file of which at most `_MAX_READ` bytes are read at once. zipfile reads the list of entries so, and
    makes an object of each 46 bytes.
    """

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size > _MAX_READ:
            raise zipfile.BadZipFile(f"{size} bytes in one piece, at most {_MAX_READ} are read")
        return super().read(size)


@dataclass(frozen=True)
class _StorageType:
    dtype: str


@dataclass(frozen=True)
class _Storage:
    dtype: str
    key: str
    n_elements: int


@dataclass(frozen=True)
class _Tensor:
    storage: _Storage
    offset: int
    shape: tuple[int, ...]


def read_index(path: Path) -> dict[str, TensorSource]:
    """All tensors of the file by name.

    Raises CheckpointError for anything but a zip-format state dict of plain contiguous tensors.
    """
    try:
        with open_regular(path) as file:
            magic = file.read(4)
        if magic != b"PK\x03\x04":
            raise CheckpointError(
                f"{path}: expected a zip-format PyTorch file, found other content (a legacy .bin from "
                "before torch 1.6, "
                "or a Git LFS pointer?); load it with torch and save it again as .safetensors"
            )
        with _Bounded(path) as content, zipfile.ZipFile(content) as archive:
            return _index_archive(path, archive)
    except (OSError, zipfile.BadZipFile, struct.error, NotImplementedError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise CheckpointError(f"{path}: not a readable PyTorch file: {why}") from error


def _index_archive(path: Path, archive: zipfile.ZipFile) -> dict[str, TensorSource]:
    entries = {info.filename: info for info in archive.infolist()}
    pickles = [name for name in entries if name.endswith("data.pkl") and name.count("/") <= 1]
    if len(pickles) != 1:
        raise CheckpointError(f"{path}: expected one data.pkl in the archive, found {len(pickles)}")
    prefix = pickles[0].removesuffix("data.pkl")
    order = entries.get(prefix + "byteorder")
    if order is not None and _content(path, archive, order, 16).strip() != b"little":
        raise CheckpointError(
            f"{path}: big-endian PyTorch files are not supported; save it again as .safetensors"
        )
    tensors = _load_state_dict(path, _content(path, archive, entries[pickles[0]], _MAX_PICKLE_BYTES))
    file_size = path.stat().st_size
    with path.open("rb") as file:
        return {name: _locate(path, file, file_size, entries, prefix, name, t) for name, t in tensors.items()}


def _content(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, limit: int) -> bytes:
    """A small entry, which must lie in the file as it is: a compressed one may unpack to anything."""
    name = info.filename.rpartition("/")[2]
    if info.compress_type != zipfile.ZIP_STORED:
        raise CheckpointError(f"{path}: {name} is compressed; torch.save never does that")
    if info.file_size > limit:
        raise CheckpointError(f"{path}: {name} is {info.file_size} bytes; that is not a state dict")
    return archive.read(info)


def _load_state_dict(path: Path, data: bytes) -> dict[str, _Tensor]:
    try:
        state = _Machine(_FUNCTIONS, _storage).run(data)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    except Exception as error:  # a hostile pickle may raise anything; none of it is ours to crash on
        raise CheckpointError(f"{path}: data.pkl cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: expected a state dict, found {type(state).__name__}")
    bad = [key[:200] for key, value in state.items() if not isinstance(value, _Tensor)]
    if bad:
        raise CheckpointError(
            f"{path}: expected a flat state dict of tensors, but these entries are something else: "
            f"{', '.join(sorted(bad)[:8])}; save the bare state dict as .safetensors"
        )
    return state


def _storage(pid: Any) -> _Storage:
    if not (
        isinstance(pid, tuple) and len(pid) == 5 and pid[0] == "storage" and isinstance(pid[1], _StorageType)
    ):
        raise CheckpointError("data.pkl contains a persistent id that is not a tensor storage")
    _, kind, key, _, n_elements = pid
    if not (isinstance(key, str) and isinstance(n_elements, int) and n_elements >= 0):
        raise CheckpointError("data.pkl contains a malformed tensor storage")
    return _Storage(kind.dtype, key, n_elements)


def _ordered_dict() -> dict[str, Any]:
    return {}


def _rebuild_tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> _Tensor:
    shape = tuple(size)
    is_sound = isinstance(storage, _Storage) and len(shape) <= _MAX_DIMS
    if not (is_sound and all(isinstance(n, int) and n >= 0 for n in (offset, *shape))):
        raise CheckpointError("data.pkl contains a malformed tensor")
    expected = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    if any(s != e for s, e, n in zip(stride, expected, shape, strict=True) if n > 1):
        raise CheckpointError(
            f"data.pkl contains a tensor of shape {list(shape)} that is not contiguous (strides "
            f"{list(stride)}); save it again with .contiguous()"
        )
    if offset + math.prod(shape) > storage.n_elements:
        raise CheckpointError(f"data.pkl contains a tensor of shape {list(shape)} larger than its storage")
    return _Tensor(storage, offset, shape)


def _rebuild_parameter(tensor: Any, *_: Any) -> Any:
    return tensor


_FUNCTIONS: dict[str, Any] = {
    "collections.OrderedDict": _ordered_dict,
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor,
    "torch._utils._rebuild_parameter": _rebuild_parameter,
    **{
        f"{module}.{name}": _StorageType(dtype)
        for module in ("torch", "torch.storage")
        for name, dtype in _STORAGE_DTYPES.items()
    },
}


def _locate(
    path: Path,
    file: Any,
    file_size: int,
    entries: dict[str, zipfile.ZipInfo],
    prefix: str,
    name: str,
    tensor: _Tensor,
) -> TensorSource:
    """Turn a storage reference into a byte offset: the entry is stored, so its bytes are the data."""
    entry_name = f"{prefix}data/{tensor.storage.key}"
    info = entries.get(entry_name)
    if info is None:
        raise CheckpointError(f"{path}: tensor {name} refers to {entry_name}, which is not in the archive")
    n_bytes = DTYPE_BYTES[tensor.storage.dtype]
    if info.compress_type != zipfile.ZIP_STORED or info.file_size < tensor.storage.n_elements * n_bytes:
        raise CheckpointError(
            f"{path}: storage of tensor {name}: expected {tensor.storage.n_elements * n_bytes} stored "
            "bytes, found "
            f"{info.file_size} ({'stored' if info.compress_type == zipfile.ZIP_STORED else 'compressed'})"
        )
    # The local header has an extra field of its own (torch pads there), so only it knows its length.
    file.seek(info.header_offset + 26)
    name_len, extra_len = struct.unpack("<HH", file.read(4))
    start = info.header_offset + 30 + name_len + extra_len
    if start + info.file_size > file_size:
        raise CheckpointError(f"{path}: storage of tensor {name} reaches beyond the end of the file")
    return TensorSource(name, tensor.shape, tensor.storage.dtype, path, start + tensor.offset * n_bytes)


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
    """Stack and memo. functions: what the file may name, by "module.name"; the callable ones are called.
    storage: of a persistent id.
    """

    functions: Mapping[str, Any]
    storage: Function
    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def run(self, data: bytes) -> Any:
        """What the pickle says. Raises CheckpointError, and anything else for one that is cut or damaged."""
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


def _expect(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise CheckpointError(f"data.pkl: expected {kind.__name__}, found {type(value).__name__}")
    return value
