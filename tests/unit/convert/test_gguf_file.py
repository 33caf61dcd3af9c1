# SPDX-License-Identifier: MIT
"""Tests the GGUF reader. It agrees with the gguf package on valid files, and raises GgufError for damaged
files.
"""

from __future__ import annotations

import random
import struct
import time
from pathlib import Path

import gguf
import pytest

from eaglecpp.convert import inspect_file
from eaglecpp.convert.errors import GgufError
from eaglecpp.convert.gguf_file import read_gguf
from helpers.tiny import TinyTarget

pytestmark = pytest.mark.alone  # these tests measure time


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def header(n_tensors: int = 0, n_fields: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_fields)


def field(name: str, kind: int, value: bytes) -> bytes:
    return string(name) + struct.pack("<I", kind) + value


def tensor(name: str, dims: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def test_it_reads_the_same_as_the_gguf_package(target: TinyTarget) -> None:
    ours, theirs = read_gguf(target.gguf), gguf.GGUFReader(target.gguf)
    names = [name for name in theirs.fields if not name.startswith("GGUF.")]
    assert list(ours.fields) == names
    for name in names:
        value = ours.fields[name].value
        if isinstance(value, list):
            value = [v.decode() if isinstance(v, bytes) else v for v in value]
        assert (value.decode() if isinstance(value, bytes) else value) == theirs.fields[name].contents(), name
    for info in theirs.tensors:
        mine = ours.tensors[info.name]
        assert (mine.offset, mine.n_bytes, mine.shape) == (
            info.data_offset, info.n_bytes, tuple(int(n) for n in reversed(info.shape)),
        )  # fmt: skip


U32, STRING, ARRAY = 4, 8, 9
HUGE = 1 << 60


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "truncated: magic"),
        (b"GGML" + bytes(20), "not a GGUF file"),
        (b"\x89PNG" + bytes(20), "found a PNG picture"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(16), "big-endian"),
        (header(version=1), "expected 2 or 3, found 1"),
        (header(version=9), "expected 2 or 3, found 9"),
        (header(n_fields=HUGE), "key count is"),
        (header(n_tensors=HUGE), "tensor count is"),
        (header(n_fields=1) + struct.pack("<Q", HUGE) + bytes(32), "string of"),
        (header(n_fields=1) + field("a", 99, bytes(16)), "unknown value type 99"),
        (header(n_fields=1) + field("a", STRING, struct.pack("<Q", 100)), "truncated: key a"),
        (header(n_fields=1) + field("a", ARRAY, struct.pack("<IQ", STRING, HUGE)), "array of"),
        (
            header(n_fields=1) + field("a", ARRAY, struct.pack("<IQ", U32, 1 << 25)),
            "array of 33554432 values",
        ),
        (header(n_fields=1) + field("a", ARRAY, struct.pack("<IQ", STRING, 1 << 20)), "string count is"),
        (header(n_fields=1) + field("a", ARRAY, struct.pack("<IQ", U32, 1 << 23)), "truncated: key a"),
        (header(n_fields=1) + field("a", ARRAY, struct.pack("<IQ", ARRAY, 1) + bytes(32)), "nested arrays"),
        (header(n_fields=2) + field("a", U32, bytes(4)) * 2, "key a appears twice"),
        (header(n_fields=1) + struct.pack("<Q", 2) + b"\xff\xfe" + bytes(16), "not UTF-8"),
        (header(0, 1) + field("general.alignment", U32, struct.pack("<I", 3)), "power of two, found 3"),
        (header(0, 1) + field("general.alignment", U32, struct.pack("<I", 0)), "power of two, found 0"),
        (header(n_tensors=1) + tensor("t", [4]), "truncated: tensor t"),
        (header(n_tensors=1) + tensor("t", [HUGE, HUGE]) + bytes(64), "truncated: tensor t"),
        (header(n_tensors=1) + tensor("t", [4], offset=7) + bytes(64), "not a multiple of the alignment"),
        (header(n_tensors=1) + tensor("t", [33], kind=8) + bytes(64), "are not divisible into blocks of 32"),
        (header(n_tensors=1) + string("t") + struct.pack("<I", 9) + bytes(99), "1 to 4 dimensions, found 9"),
        (header(n_tensors=1) + tensor("t", [0, 4]) + bytes(64), "broken file: tensor t: expected rows"),
        (header(n_tensors=2) + tensor("t", [1]) * 2 + bytes(64), "tensor t appears twice"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damage_is_one_clear_error(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    with pytest.raises(GgufError, match=message) as caught:
        inspect_file(path)
    assert str(path) in str(caught.value)


def test_a_type_newer_than_the_table_extends_to_the_next_tensor(tmp_path: Path) -> None:
    head = header(n_tensors=2) + tensor("new", [32], kind=999) + tensor("old", [8], offset=64)
    path = tmp_path / "x.gguf"
    path.write_bytes(head + bytes(-len(head) % 32) + bytes(96))
    infos = read_gguf(path).tensors
    assert (infos["new"].n_bytes, infos["old"].n_bytes) == (64, 32)
    assert inspect_file(path)["types"]["type-999"] == {"tensors": 1, "bytes": 64}


def test_absent_files_and_directories(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(GgufError, match="cannot be read"):
            inspect_file(path)


def test_random_damage_raises_only_gguf_error(target: TinyTarget, tmp_path: Path) -> None:
    """Tests damaged headers: flips random bits and cuts bytes of a real file. The seed is fixed, so a failure
    repeats.
    """
    whole = target.gguf.read_bytes()
    end = min(info.offset for info in read_gguf(target.gguf).tensors.values())
    rng = random.Random(3)
    path, start = tmp_path / "x.gguf", time.thread_time()
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(end) if rng.random() < 0.5 else rng.randrange(400)
            data[at] = rng.choice([0, 1, 8, 9, 127, 255, rng.randrange(256)])
        if rng.random() < 0.3:
            del data[rng.randrange(end) :]
        path.write_bytes(data)
        try:
            inspect_file(path)
        except GgufError as error:
            assert "\n" not in str(error).replace("\\n", "")
    assert time.thread_time() - start < 30


def test_the_quick_reader_and_the_full_one_agree(tmp_path: Path) -> None:
    """Compares the quick reader with the full reader: for lists that are inside one block of the file, lists
    that span two blocks, and skipped lists.
    """
    from eaglecpp.convert.gguf_head import read_keys

    path = tmp_path / "x.gguf"
    texts = b"".join(string("t" * (i % 90)) for i in range(20_000))
    body = field("a.tags", ARRAY, struct.pack("<IQ", STRING, 2) + string("x") + string("y"))
    body += field("a.tokens", ARRAY, struct.pack("<IQ", STRING, 20_000) + texts)
    body += field("a.types", ARRAY, struct.pack("<IQ", U32, 300_000) + bytes(1_200_000))
    body += field("a.layers", ARRAY, struct.pack("<IQ", U32, 3) + struct.pack("<III", 1, 2, 3))
    body += field("a.n", U32, struct.pack("<I", 7)) + field("a.name", STRING, string("e"))
    path.write_bytes(header(n_fields=6) + body)
    assert read_keys(path) == {"a.tags": [b"x", b"y"], "a.layers": [1, 2, 3], "a.n": 7, "a.name": "e"}
    whole = read_gguf(path)
    assert whole.get("a.tokens")[89] == b"t" * 89 and len(whole.get("a.types")) == 300_000
    assert (whole.integer("a.n"), whole.text("a.name", "")) == (7, "e")
    for size in range(len(header(n_fields=6)), len(body), 97_001):
        path.write_bytes((header(n_fields=6) + body)[:size])
        with pytest.raises(GgufError, match=r"truncated|more than fits"):
            read_keys(path)
