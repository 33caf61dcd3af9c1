# SPDX-License-Identifier: MIT
"""Tests weight files that are damaged, hostile or of another kind. Reading such a file raises a
CheckpointError and runs no code from the file.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import time
import tracemalloc
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eaglecpp.convert import read_gguf, safetensors_file, torch_zip
from eaglecpp.convert.errors import CheckpointError, ConfigError, GgufError, SourceError
from helpers.checkpoints import Convert, save_bin, write_checkpoint

pytestmark = pytest.mark.alone  # these tests measure time


def test_every_dtype_of_a_torch_file_is_read_exactly(tmp_path: Path) -> None:
    values = torch.tensor([[0.5, -1.75, 3.0], [1e-3, 2.0, -4.0]])
    names = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool"
    kinds = [getattr(torch, name) for name in names.split()]
    state = {str(kind): (values.abs() if kind is torch.uint8 else values).to(kind) for kind in kinds}
    torch.save(state, tmp_path / "x.bin")
    index = torch_zip.read_index(tmp_path / "x.bin")
    assert index.keys() == state.keys()
    for name, tensor in state.items():
        expected = tensor.float().numpy() if tensor.is_floating_point() else tensor.numpy()
        np.testing.assert_array_equal(index[name].read(), expected, err_msg=name)
        np.testing.assert_array_equal(index[name].read_rows(1, 2), expected[1:], err_msg=name)


def test_parameters_views_and_state_dict_metadata_are_understood(tmp_path: Path) -> None:
    module = torch.nn.Linear(3, 2, bias=False)
    big = torch.arange(12, dtype=torch.float32).reshape(4, 3)
    state = module.state_dict()
    state["view"] = big[1:3]
    state["parameter"] = torch.nn.Parameter(big)
    torch.save(state, tmp_path / "x.bin")
    index = torch_zip.read_index(tmp_path / "x.bin")
    np.testing.assert_array_equal(index["view"].read(), big[1:3].numpy())
    np.testing.assert_array_equal(index["parameter"].read(), big.numpy())
    np.testing.assert_array_equal(index["weight"].read(), module.weight.detach().numpy())


class Attack:
    """A hostile object: if an unrestricted unpickler reads it, the object creates a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return (open, (str(self.marker), "w"))


def archive(path: Path, data: bytes, **entries: bytes) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", data)
        for name, content in entries.items():
            file.writestr(f"archive/{name.replace('__', '/')}", content)


def test_a_hostile_pickle_runs_nothing(tmp_path: Path) -> None:
    archive(tmp_path / "x.bin", pickle.dumps({"a": Attack(tmp_path / "marker")}))
    with pytest.raises(
        CheckpointError, match=r"asks for _?io\.open|asks for io\.open|asks for builtins\.open"
    ):
        torch_zip.read_index(tmp_path / "x.bin")
    assert not (tmp_path / "marker").exists()


class Tensors(pickle.Pickler):
    """Writes tensors like torch.save, but can write wrong values of single fields."""

    def persistent_id(self, obj: Any) -> Any:
        return obj.pid if isinstance(obj, Storage) else None


class Storage:
    def __init__(self, pid: Any) -> None:
        self.pid = pid


SHARED: Any = ()
for _ in range(60):
    SHARED = SHARED, SHARED


class Rebuilt:
    def __init__(self, *args: Any) -> None:
        self.args = args

    def __reduce__(self) -> Any:
        return (torch._utils._rebuild_tensor_v2, self.args)


def pickled(**fields: Any) -> bytes:
    f: dict[str, Any] = {"pid": None, "offset": 0, "size": (2, 3), "stride": (3, 1), **fields}
    pid = f["pid"] or ("storage", torch.FloatStorage, "0", "cpu", 6)
    tensor = Rebuilt(Storage(pid), f["offset"], f["size"], f["stride"], False, OrderedDict())
    out = io.BytesIO()
    Tensors(out, 2).dump({"w": tensor})
    return out.getvalue()


DATA = np.arange(6, dtype="<f4").tobytes()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pickled(stride=(1, 2)), "not contiguous"),
        (pickled(offset=1), "larger than its storage"),
        (pickled(size=(2, 1 << 60)), "not contiguous|larger than its storage"),
        (pickled(size=(1 << 60, 3)), "larger than its storage"),
        (pickled(offset=-1), "malformed tensor"),
        (pickled(size=(2.0, 3)), "malformed tensor"),
        (
            pickled(pid=("storage", torch.FloatStorage, "7", "cpu", 6)),
            "refers to archive/data/7, which is not",
        ),
        (
            pickled(pid=("storage", torch.FloatStorage, "0", "cpu", 600), size=(200, 3)),
            "expected 2400 stored bytes",
        ),
        (pickled(pid=("storage", torch.FloatStorage, "../x", "cpu", 6)), "not in the archive"),
        (pickled(pid=("module", torch.FloatStorage, "0", "cpu", 6)), "not a tensor storage"),
        (pickled(pid=("storage", torch.FloatStorage, "0", "cpu", "6")), "malformed tensor storage"),
        (b"\x80\x02K\x01.", "expected a state dict, found int"),
        (pickle.dumps({"epoch": 3}, 2), "something else: epoch"),
        (pickle.dumps({"state_dict": {}}, 2), "something else: state_dict"),
        (b"\x80\x02}", "data.pkl cannot be read"),
        (b"", "data.pkl cannot be read"),
    ],
)
def test_wrong_fields_of_a_torch_file_and_other_pickles(data: bytes, message: str, tmp_path: Path) -> None:
    archive(tmp_path / "x.bin", data, data__0=DATA)
    with pytest.raises(CheckpointError, match=message):
        torch_zip.read_index(tmp_path / "x.bin")


def test_other_forms_of_torch_files_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    torch.save({"w": torch.ones(2)}, path, _use_new_zipfile_serialization=False)
    refused(path, r"\.bin from before torch 1\.6")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", pickled())
        file.writestr("archive/data/0", DATA)
    refused(path, "compressed")
    archive(path, pickled(), data__0=bytes(24), byteorder=b"big")
    refused(path, "big-endian")


@pytest.mark.parametrize(
    ("save", "file", "keep"),
    [(save_bin, "pytorch_model.bin", -2000)] + [(None, "model.safetensors", n) for n in (0, 4, 8, 200, -100)],
)
def test_a_truncated_file(save: Any, file: str, keep: int, convert: Convert, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "in", "eagle", save=save)
    path = checkpoint / file
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=f"not a readable {'PyTorch' if save else 'safetensors'} file"):
        convert(checkpoint)


def safetensors(path: Path, header: Any, data: bytes = b"", size: int | None = None) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if size is None else size) + text + data)
    return path


@pytest.mark.parametrize(
    ("header", "size"),
    [
        ({}, 1 << 62),
        ({"w": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}, None),
        ({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, None),
        ({"w": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 8]}}, None),
        ({"w": {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}}, None),
        ({"w": {"shape": [2], "data_offsets": [0, 8]}}, None),
        ([1, 2], None),
    ],
)
def test_hostile_safetensors_headers(header: Any, size: int | None, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        safetensors_file.read_index(safetensors(tmp_path / "x.safetensors", header, bytes(8), size))


def test_float8_checkpoints_are_refused_by_dtype(tmp_path: Path) -> None:
    header = {"w": {"dtype": "F8_E5M2", "shape": [8], "data_offsets": [0, 8]}}
    with pytest.raises(CheckpointError, match=r"tensor w: expected dtype .* found F8_E5M2"):
        safetensors_file.read_index(safetensors(tmp_path / "x.safetensors", header, bytes(8)))


@pytest.mark.parametrize("text", ["", "[1]", "{", "\x00", "[" * 100000])
def test_a_broken_config_is_one_error(text: str, convert: Convert, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "in", "eagle")
    (checkpoint / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        convert(checkpoint)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("1" + "0" * 400, "10000"),
        ("1e400", "inf"),
        ('"' + "x" * 9999 + '"', "xxx..."),
        ("[" * 60 + "]" * 60, "[[["),
    ],
    ids=["digits", "exponent", "text", "lists"],
)
def test_nan_or_infinity_is_one_short_error(value: str, shown: str, convert: Convert, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "in", "eagle")
    path = checkpoint / "config.json"
    path.write_text(path.read_text().replace("10000.0", value))
    with pytest.raises(ConfigError, match="rope_theta: expected a number") as caught:
        convert(checkpoint)
    assert shown in str(caught.value)
    assert len(str(caught.value)) < 300


# Small files that unpack to large files


def peak_of(test: Callable[[], None]) -> int:
    """Returns the peak of Python's memory in bytes while `test` runs."""
    tracemalloc.start()
    try:
        test()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_config_of_many_values_is_not_parsed(convert: Convert, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "in", "eagle")
    (checkpoint / "config.json").write_text('{"x": [' + "[]," * 9_000_000 + "[]]}")

    def read() -> None:
        with pytest.raises(
            CheckpointError, match=r"config\.json: cannot be read as JSON: expected at most 4194304"
        ):
            convert(checkpoint)

    assert peak_of(read) < 16 << 20


def test_a_directory_of_many_entries_is_not_read(tmp_path: Path) -> None:
    """Tests that a zip directory with very many entries is not read. For an entry of 46 bytes, zipfile
    allocates an object of some 500 bytes.
    """
    archive(tmp_path / "x.bin", pickled(), data__0=bytes(24))
    whole = (tmp_path / "x.bin").read_bytes()
    entry = struct.pack("<4s6H3L5H2L", b"PK\x01\x02", 20, 20, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"a"
    entries = entry * 100_000
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, len(entries), len(whole), 0)
    (tmp_path / "x.bin").write_bytes(whole + entries + end)
    refused(tmp_path / "x.bin", "not a readable PyTorch file: .*at most 4194304 bytes")


@pytest.mark.skipif(os.name == "nt", reason="without named pipes")
@pytest.mark.parametrize("name", ["x.safetensors", "x.bin", "x.gguf"])
@pytest.mark.parametrize("is_in_a_folder", [False, True])
def test_a_pipe_is_no_weight_file(name: str, is_in_a_folder: bool, convert: Convert, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "in", "eagle")
    (checkpoint / "model.safetensors").unlink()
    os.mkfifo(checkpoint / name)
    if name.endswith(".gguf"):
        with pytest.raises(GgufError, match="expected a file, found a named pipe"):
            read_gguf(checkpoint / name)
    else:
        with pytest.raises((CheckpointError, SourceError), match=r"expected .*file.*, found"):
            convert(checkpoint if is_in_a_folder else checkpoint / name)


def refused(path: Path, message: str, limit: int = 8 << 20) -> None:
    def read() -> None:
        with pytest.raises(CheckpointError, match=message):
            torch_zip.read_index(path)

    assert peak_of(read) < limit


@pytest.mark.parametrize("entry", ["data.pkl", "byteorder"])
def test_a_compressed_entry_is_not_unpacked(entry: str, tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    contents = {"data.pkl": pickled(), "byteorder": b"little", "data/0": bytes(24)}
    with zipfile.ZipFile(path, "w") as file:
        for name, content in contents.items():
            kind = zipfile.ZIP_DEFLATED if name == entry else zipfile.ZIP_STORED
            file.writestr(f"archive/{name}", content + b" " * (64 << 20) * (name == entry), kind)
    assert path.stat().st_size < 1 << 20
    refused(path, f"{entry}: expected an uncompressed entry")


def test_an_entry_with_a_large_declared_size_is_not_read(tmp_path: Path) -> None:
    archive(tmp_path / "x.bin", pickled(), byteorder=b"little" + b" " * 64, data__0=bytes(24))
    refused(tmp_path / "x.bin", "byteorder: expected at most 16 bytes, found 70")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x80\x02" + b"}" * 3_000_000 + b".", "data.pkl: expected at most .* found 3000003"),
        (b"\x80\x02" + b"}" * 1_000_000 + b"K\x01.", "found int"),
        (b"\x80\x02}r\xff\xff\xff\x7f.", ""),  # the memo of this pickle has 2^31 entries
        # this pickle has a bytearray of a terabyte
        (b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b".", "data.pkl"),
        (b"\x80\x05" + b"\x8f" * 10 + b".", "an instruction that"),
        (b"\x80\x02}(" + b")\x85" + b"2\x86" * 40 + b"K\x01u.", "an instruction that"),
        (
            b"\x80\x02})" + b"q\x01h\x01\x86" * 60 + b"K\x01s.",
            "expected str as a key, found tuple",
        ),  # hashing this key would hash 2^60 numbers
        (
            b"\x80\x02ccollections\nOrderedDict\n)" + b"q\x01h\x01\x86" * 60 + b"K\x01\x86\x85\x85R.",
            "data.pkl",
        ),
        (pickled(stride=(3, SHARED)), "malformed tensor"),  # printing this value would print 2^60 numbers
        (pickled(pid=("storage", SHARED, "0", "cpu", 6)), "malformed tensor storage"),
        (b"\x80\x02\x8b" + (1 << 30).to_bytes(4, "little") + b".", "data.pkl"),
        (b"\x80\x02}h\x07.", "data.pkl cannot be read: UnpicklingError"),
        (b"\x80\x02\x85.", "cannot be read"),
    ],
)
def test_no_instruction_of_a_pickle_takes_memory_or_time(data: bytes, message: str, tmp_path: Path) -> None:
    archive(tmp_path / "x.bin", data, data__0=bytes(24))
    started = time.thread_time()
    if message:
        refused(tmp_path / "x.bin", message, len(data) + (96 << 20))
    else:
        assert peak_of(lambda: torch_zip.read_index(tmp_path / "x.bin")) < 8 << 20
    assert time.thread_time() - started < 20


def test_a_safetensors_header_is_not_read_beyond_its_limit(tmp_path: Path) -> None:
    header = b'{"__metadata__":{"x":"' + b"a" * (17 << 20) + b'"}}'
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(CheckpointError, match="at most 16777216 bytes"):
        safetensors_file.read_index(tmp_path / "x.safetensors")
