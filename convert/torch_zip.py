# SPDX-License-Identifier: MIT
"""Index of a PyTorch .bin file (zip format, torch >= 1.6) without torch.

The file is a zip of `<prefix>/data.pkl` (the state dict with tensors as storage references) and one stored
entry per storage. torch never compresses entries, so compressed entries are rejected. No entry therefore
takes more memory than its size on the disk. The data of storages are not loaded, because tensors become
`TensorSource`s. Source of the format: pytorch/pytorch: torch/serialization.py.

The pickle is read by Python's own unpickler, limited to the instructions that a state dict needs. With other
instructions, a few bytes of pickle could allocate gigabytes or hash a nested tuple for years, even without
looking up globals. Each allowed instruction creates at most one small value, and calls only functions in this
module. The Python version of the unpickler is used, because the C version allocates a memo for the largest
index in the file.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NoReturn

from .errors import CheckpointError
from .files import open_regular
from .tensor import DTYPE_BYTES, TensorSource

_MAX_PICKLE_BYTES = 1 << 20
"""Maximum bytes of the pickle, which has some hundred bytes per tensor. When parsed, it takes a hundred times
its size.
"""
# Maximum bytes of one read. The zip's list of entries has some hundred bytes per tensor, and zipfile needs
# ten times as much memory for this list.
_MAX_READ = 4 << 20
_MAX_DIMS = 8

_STORAGE_DTYPES = {
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8",
    "ByteStorage": "U8", "BoolStorage": "BOOL",
}  # fmt: skip
_ALLOWED = (
    pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE,
    pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1, pickle.BINFLOAT, pickle.BINUNICODE,
    pickle.SHORT_BINUNICODE, pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3,
    pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE, pickle.BINGET, pickle.LONG_BINGET, pickle.GLOBAL,
    pickle.STACK_GLOBAL, pickle.REDUCE, pickle.BINPERSID, pickle.SETITEM, pickle.SETITEMS,
)  # fmt: skip


class _Bounded(io.FileIO):
    """A file that refuses reads above `_MAX_READ` bytes. The limit is for zipfile, which reads the list of
    entries in one piece, and creates an object for every 46 bytes of the list.
    """

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size > _MAX_READ:
            raise zipfile.BadZipFile(f"expected at most {_MAX_READ} bytes in one entry, found {size}")
        return super().read(size)


def read_index(path: Path) -> dict[str, TensorSource]:
    """Returns all tensors of the file by name.

    Raises CheckpointError for any file but a zip-format state dict of contiguous tensors.
    """
    try:
        with open_regular(path) as file:
            magic = file.read(4)
        if magic != b"PK\x03\x04":
            raise CheckpointError(
                "expected a zip-format PyTorch file, found other content, perhaps a Git LFS pointer or a "
                ".bin from before torch 1.6. Load it with torch, and save it again as .safetensors"
            )
        with _Bounded(path) as content, zipfile.ZipFile(content) as archive:
            return _index_archive(path, archive)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    except (OSError, zipfile.BadZipFile, struct.error, NotImplementedError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise CheckpointError(f"{path}: not a readable PyTorch file: {why}") from error


def _index_archive(path: Path, archive: zipfile.ZipFile) -> dict[str, TensorSource]:
    entries = {info.filename: info for info in archive.infolist()}
    pickles = [name for name in entries if name.endswith("data.pkl") and name.count("/") <= 1]
    if len(pickles) != 1:
        raise CheckpointError(f"expected one data.pkl in the archive, found {len(pickles)}")
    prefix = pickles[0].removesuffix("data.pkl")
    order = entries.get(prefix + "byteorder")
    if order is not None and _content(archive, order, 16).strip() != b"little":
        raise CheckpointError("big-endian PyTorch files are not supported; save it again as .safetensors")
    data = _content(archive, entries[pickles[0]], _MAX_PICKLE_BYTES)
    try:
        with path.open("rb") as file:
            state: Any = _StateDict(data, file, path, entries, prefix).load()
    except CheckpointError:
        raise
    except Exception as error:  # a malicious pickle may raise any exception
        raise CheckpointError(f"data.pkl cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"expected a state dict, found {type(state).__name__}")
    bad = [key[:200] for key, value in state.items() if not isinstance(value, TensorSource)]
    if bad:
        raise CheckpointError(
            "expected a flat state dict of tensors, but these entries are something else: "
            f"{', '.join(sorted(bad)[:8])}; save the bare state dict as .safetensors"
        )
    return {name: replace(tensor, name=name) for name, tensor in state.items()}


def _content(archive: zipfile.ZipFile, info: zipfile.ZipInfo, limit: int) -> bytes:
    """Reads a small entry of the zip. Raises CheckpointError for a compressed entry, because a compressed
    entry could unpack to any size.
    """
    name = info.filename.rpartition("/")[2]
    if info.compress_type != zipfile.ZIP_STORED:
        raise CheckpointError(f"{name}: expected an uncompressed entry, found a compressed one")
    if info.file_size > limit:
        raise CheckpointError(f"{name}: expected at most {limit} bytes, found {info.file_size}")
    return archive.read(info)


class _Entries(dict[str, Any]):
    """The only kind of dict that the pickle can create. The keys must be texts, because hashing a nested
    tuple may take unlimited time.
    """

    __slots__ = ()

    def __setitem__(self, key: str, value: Any) -> None:
        if type(key) is not str:
            raise CheckpointError(f"data.pkl: expected str as a key, found {type(key).__name__}")
        super().__setitem__(key, value)


class _StateDict(pickle._Unpickler):
    """Unpickler of a state dict. entries: entries of the archive `file` by name; prefix: prefix of these
    names. A storage becomes a `TensorSource` with one axis.
    """

    stack: list[Any]

    def __init__(
        self, data: bytes, file: BinaryIO, path: Path, entries: dict[str, zipfile.ZipInfo], prefix: str
    ) -> None:
        super().__init__(io.BytesIO(data))
        self._file, self._path, self._entries, self._prefix = file, path, entries, prefix

    def find_class(self, module: str, name: str) -> Any:
        if module in ("torch", "torch.storage") and name in _STORAGE_DTYPES:
            return _STORAGE_DTYPES[name]
        function = _FUNCTIONS.get(f"{module}.{name}")
        if function is None:
            raise CheckpointError(
                f"data.pkl asks for {module[:100]}.{name[:100]}, which a state dict of plain tensors does "
                "not need. Load the file with the program that wrote it, and save the tensors as "
                ".safetensors"
            )
        return function

    def persistent_load(self, pid: Any) -> TensorSource:
        """Returns a storage as a `TensorSource` with its position in the file. The data begin after the
        entry's local header. Only the local header itself states its length, because torch pads it.
        """
        if not (isinstance(pid, tuple) and len(pid) == 5 and pid[0] == "storage"):
            raise CheckpointError("data.pkl contains a persistent id that is not a tensor storage")
        _, dtype, key, _, n = pid
        is_sound = isinstance(dtype, str) and isinstance(key, str) and isinstance(n, int)
        if not is_sound or dtype not in DTYPE_BYTES or n < 0:
            raise CheckpointError("data.pkl contains a malformed tensor storage")
        name = f"{self._prefix}data/{key}"
        info = self._entries.get(name)
        if info is None:
            raise CheckpointError(f"a tensor refers to {name}, which is not in the archive")
        n_bytes = n * DTYPE_BYTES[dtype]
        if info.compress_type != zipfile.ZIP_STORED or info.file_size < n_bytes:
            raise CheckpointError(f"{name}: expected {n_bytes} stored bytes, found {info.file_size}")
        self._file.seek(info.header_offset + 26)
        start = info.header_offset + 30 + sum(struct.unpack("<HH", self._file.read(4)))
        if start + info.file_size > self._file.seek(0, io.SEEK_END):
            raise CheckpointError(f"{name} reaches beyond the end of the file")
        return TensorSource(name, (n,), dtype, self._path, start)

    def make_entries(self) -> None:
        self.stack.append(_Entries())

    def drop_attributes(self) -> None:
        """Ignores attributes of an OrderedDict, such as a module's _metadata."""
        self.stack.pop()

    def refuse(self) -> NoReturn:
        raise CheckpointError("data.pkl uses an instruction that a state dict does not need")

    dispatch: ClassVar[dict[int, Any]] = {
        **dict.fromkeys(range(256), refuse),
        **{code[0]: pickle._Unpickler.dispatch[code[0]] for code in _ALLOWED},
        pickle.EMPTY_DICT[0]: make_entries,
        pickle.BUILD[0]: drop_attributes,
    }


def _rebuild_tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> TensorSource:
    shape, numbers = tuple(size), (offset, *size, *stride)
    if not isinstance(storage, TensorSource) or len(shape) > _MAX_DIMS:
        raise CheckpointError("data.pkl contains a malformed tensor")
    if not all(isinstance(n, int) and n >= 0 for n in numbers):
        raise CheckpointError("data.pkl contains a malformed tensor")
    expected = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    if any(s != e for s, e, n in zip(stride, expected, shape, strict=True) if n > 1):
        raise CheckpointError(
            f"data.pkl contains a tensor of shape {list(shape)} that is not contiguous (strides "
            f"{list(stride)}); save it again with .contiguous()"
        )
    if offset + math.prod(shape) > storage.n_elements:
        raise CheckpointError(f"data.pkl contains a tensor of shape {list(shape)} larger than its storage")
    first = storage.offset + offset * DTYPE_BYTES[storage.dtype]
    return TensorSource(storage.name, shape, storage.dtype, storage.path, first)


_FUNCTIONS: dict[str, Any] = {
    "collections.OrderedDict": lambda: _Entries(),  # with arguments, `dict` would not check the keys
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor,
    "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
}
