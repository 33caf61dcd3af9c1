# SPDX-License-Identifier: MIT
"""`PromptCache`: computed states of long prompts, in files, so that a restart need not compute them again.

A file holds the tokens of a conversation and the blob of `core.SavedSequence`: the target's KV cache as
llama.cpp saves it, the drafter's KV cache, and the hidden states that the drafter needs. A state is used only
if the text, the model's files and everything else that affects the state's bits are the same, so answers do
not change.

Files are untrusted. Each file has two codes (keyed BLAKE2b) that only the owner of this user's key can
produce. The code of the head is checked before the head is parsed. The code of the whole file is checked
before llama.cpp or the drafter sees a byte. A file that is damaged, foreign, or of another size counts as
missing. Files are written under another name and renamed, so a kill leaves the old content or the new one.

Reading and writing happen in separate threads. The engine's thread only copies states out of the caches. It
does so between answers, or when a conversation leaves the caches anyway.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO

from eaglecpp._extension import core
from eaglecpp.data_dir import data_dir, expanded
from eaglecpp.engine.native import NativeSequence
from eaglecpp.engine.planner_cache import machine, options_key
from eaglecpp.errors import EagleError, InvalidValueError
from eaglecpp.files import (
    fingerprint,
    make_folder,
    open_regular,
    read_limited,
    remove_leftover,
    replace_bytes,
    replaced,
)
from eaglecpp.human import n_bytes_of
from eaglecpp.opening.plan import OpeningPlan
from eaglecpp.options import DraftOptions
from eaglecpp.references import part_paths

_log = logging.getLogger("eaglecpp.prompts")
WORTH = 32
"""Minimum number of tokens worth copying from a saved state; fewer tokens are computed again."""
LEAST = 512
"""Minimum number of tokens of a text that is saved in a file."""
_MAGIC = b"eaglecpp prompt\n"
_VERSION = 3
_CODE = 32
_HEAD_MOST = 32 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_OURS = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}\.eagle-prompt|" + _NAME.pattern + r"\.eagle-slot")
_LEFT = re.compile(r"\..+\.eagle-(prompt|slot)\.[0-9a-f]{8}\.tmp")


@dataclass(frozen=True)
class _Header:
    """The head of a file. of: hash of everything the state depends on; tokens: the evaluated tokens, -1 for
    an embedding of an image; images: start in the tokens, number of embeddings in the tokens, key and total
    number of embeddings of each image; ends: lengths to which the text can be cut, see `n_usable`.
    """

    of: str
    tokens: list[int]
    images: list[tuple[int, int, str, int]]
    ends: list[int]


@dataclass
class _Entry:
    path: Path
    tokens: list[int]  # evaluated tokens; empty if the file is unusable
    ends: list[int]  # lengths to which the prompt can be cut (see `n_usable`)
    place: tuple[int, int]  # inode and size of the file


def n_common(first: Iterable[int], second: Iterable[int]) -> int:
    """Returns the length of the common prefix of two texts, in tokens."""
    n = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        n += 1
    return n


def n_usable(tokens: list[int], ends: list[int], prompt: Sequence[int]) -> int:
    """Returns the number of a prompt's first tokens that a saved text can provide. ends: lengths to which the
    saved text can be cut, [] = any length
    """
    n = n_common(tokens, prompt)
    return max((end for end in ends if end <= n), default=0) if ends else n


class PromptCache:
    """The prompt files of one engine, in a folder that other processes may share. of: text with everything
    that the saved states depend on.
    """

    def __init__(self, folder: Path, n_bytes_max: int, of: str, native: core.Engine | None = None) -> None:
        self.folder, self._n_bytes_max, self._native = folder, n_bytes_max, native
        self._of = hashlib.sha256(of.encode()).hexdigest()
        make_folder(folder, 0o700)
        self._key = _key()
        for path in [path for path in folder.iterdir() if _LEFT.fullmatch(path.name)]:
            remove_leftover(path)
        self._entries: dict[str, _Entry] = {}
        self._writing: Future[int] | None = None
        self._reader = ThreadPoolExecutor(1, "prompts-read")
        self._writer = ThreadPoolExecutor(1, "prompts-write", _give_way)
        self._has_warned = False
        self._reader.submit(self._look)

    @classmethod
    def of_engine(cls, native: core.Engine, plan: OpeningPlan, drafting: DraftOptions) -> PromptCache | None:
        """Opens the cache of the option `prompt_cache`. Returns None if the option is unset. Logs the reason
        and returns None if the engine's state cannot be saved. Raises InvalidValueError for an unusable
        folder.
        """
        model = plan.model_options()
        if not model.prompt_cache or native.only_embeds:
            return None
        if why := no_cache_reason(native, model.prompt_cache):
            _log.warning("prompt_cache: no prompts are saved, because %s", why)
            return None
        try:
            n_bytes_max = n_bytes_of(model.prompt_cache_bytes)
            return cls(expanded(model.prompt_cache), n_bytes_max, _depends_on(native, plan, drafting), native)
        except OSError as error:
            raise InvalidValueError(
                f"prompt_cache {model.prompt_cache}: expected a folder to write to, found: {error}"
            ) from None

    # Reading files

    def fetch(self, prompt: Sequence[int], n_held: int) -> Future[core.SavedSequence | None]:
        """Searches the files in a thread for the state with the longest prefix of a prompt. n_held: number of
        the prompt's tokens that are already in the caches.
        """
        return self._reader.submit(self._fetch, prompt, n_held)

    def _fetch(self, prompt: Sequence[int], n_held: int) -> core.SavedSequence | None:
        least = max(LEAST, n_held + WORTH)
        if len(prompt) < least:
            return None
        # The last token of the prompt is left out, because the engine always evaluates it again.
        shared = [(n_usable(entry.tokens, entry.ends, prompt[:-1]), entry) for entry in self._look()]
        for n_shared, entry in sorted(shared, key=lambda pair: -pair[0]):
            if n_shared < least:
                return None
            with self._logged(entry.path):
                state = self._read(entry.path)
                os.utime(entry.path)  # the new time marks the file as recently used
                return state
            entry.tokens = []
        return None

    def _look(self) -> list[_Entry]:
        """Returns the current files, including the files of other processes."""
        entries: dict[str, _Entry] = {}
        for path, status in _files(self.folder):
            if not path.name.startswith(self._of[:16] + "-"):
                continue
            known, place = self._entries.get(path.name), (status.st_ino, status.st_size)
            if known is None or known.place != place:
                known = _Entry(path, [], [], place)
                with self._logged(path), open_regular(path) as file:
                    head, _ = self._head(file)
                    known.tokens, known.ends = head.tokens, head.ends
            entries[path.name] = known
        self._entries = entries
        return list(entries.values())

    @contextlib.contextmanager
    def _logged(self, path: Path) -> Iterator[None]:
        """Logs and suppresses errors inside the `with` block. A file with an error counts as missing."""
        try:
            yield
        except (OSError, ValueError, LookupError, TypeError, MemoryError, EagleError) as error:
            _log.info("%s is not used: %s", path, error)

    def _head(self, file: BinaryIO) -> tuple[_Header, bytes]:
        """Returns the head of a file and the code of the whole file. The tokens of the head have this
        process's image ids. Raises ValueError, OSError.
        """
        start = file.read(len(_MAGIC) + 8)
        version_, n = (int.from_bytes(start[at : at + 4], "little") for at in (len(_MAGIC), len(_MAGIC) + 4))
        if start[: len(_MAGIC)] != _MAGIC or version_ != _VERSION:
            raise ValueError(f"expected a file of version {_VERSION}")
        if n > _HEAD_MOST:
            raise ValueError(f"expected a head of at most {_HEAD_MOST} bytes, found {n}")
        head, code = file.read(n), file.read(_CODE)
        if not hmac.compare_digest(self._code(start + head).digest(), code):
            raise ValueError("it is damaged, or was not written by this user")
        read = _Header(**json.loads(head))
        if read.of != self._of:
            raise ValueError("it is from another model, drafter, machine or version, or from other options")
        for at, n, key, n_rows in read.images:
            if self._native:
                first = self._native.image_id(key, n_rows)
                read.tokens[at : at + n] = range(first, first - n, -1)
        return read, code

    def _images(self, tokens: list[int]) -> list[tuple[int, int, str, int]]:
        """Returns the images among tokens, in the form of `_Header.images`."""
        found, end = list[tuple[int, int, str, int]](), 0
        for at, token in enumerate(tokens):
            if token < 0 and at >= end and self._native and (name := self._native.image_name(token)):
                end = min(at + name[1], len(tokens))
                found.append((at, end - at, *name))
        return found

    def _read(self, path: Path) -> core.SavedSequence:
        """Returns the state in a file. Raises ValueError, OSError, MemoryError, EagleError."""
        with open_regular(path) as file:
            head, code = self._head(file)
            n_bytes = os.fstat(file.fileno()).st_size - file.tell() - _CODE
            state = core.SavedSequence(max(0, n_bytes))
            n_read = file.readinto(state.blob)
            if n_read != n_bytes or not hmac.compare_digest(self._end(code, state), file.read()):
                raise ValueError("it is damaged")
            state.check(head.tokens)
            return state

    def _end(self, code: bytes, state: core.SavedSequence) -> bytes:
        end = self._code(code)
        end.update(state.blob)
        return end.digest()

    def _code(self, start: bytes) -> hashlib.blake2b:
        return hashlib.blake2b(start, key=self._key, digest_size=_CODE)

    # Writing files

    def keep(self, sequence: NativeSequence, *, at_last: bool = False) -> None:
        """Writes a conversation to a file between two generations, if the file would save enough computation.
        at_last: the conversation is about to leave the caches, so the file needs to save less.
        """
        with self._logged(self.folder):
            if self.is_worth(sequence.tokens, at_last=at_last) and (state := sequence.offload()) is not None:
                self.write(state)

    def is_worth(self, tokens: list[int], *, at_last: bool) -> bool:
        """Returns whether to write a text to a file; False while another text is being written. Does not
        access the disk, because the engine's thread calls this method.
        """
        if len(tokens) < LEAST or self.is_full:
            return False
        entries = list(self._entries.values())
        n_new = len(tokens) - max((n_usable(one.tokens, one.ends, tokens) for one in entries), default=0)
        return n_new > (WORTH if at_last else max(LEAST // 2, len(tokens) // 8))

    @property
    def is_full(self) -> bool:
        """True while a copied state is being written. There may be only one copied state in memory."""
        return self._writing is not None and not self._writing.done()

    def flush(self) -> None:
        """Waits until everything is written."""
        if self._writing is not None:
            self._writing.result()

    def write(self, state: core.SavedSequence, name: str = "") -> Future[int]:
        """Writes a state in the background. Returns a future of the number of bytes in the file; 0 after a
        failure, which is logged. name: name of a slot's file, see `slot_file`.
        """
        text = hashlib.sha256(",".join(map(str, state.tokens)).encode()).hexdigest()
        path = self.slot_file(name) if name else self.folder / f"{self._of[:16]}-{text[:16]}.eagle-prompt"
        self._writing = self._writer.submit(self._write, path, state)
        return self._writing

    def _write(self, path: Path, state: core.SavedSequence) -> int:
        state.seal()
        tokens = state.tokens[: state.n_past]
        head = json.dumps({
            "of": self._of, "tokens": [max(-1, token) for token in tokens], "images": self._images(tokens),
            "ends": state.ends,
        }).encode()  # fmt: skip
        start = b"".join((_MAGIC, *(n.to_bytes(4, "little") for n in (_VERSION, len(head))), head))
        n_bytes = len(start) + state.n_bytes + 2 * _CODE
        try:
            if n_bytes > self._n_bytes_max:
                raise ValueError(f"the prompt has {n_bytes} bytes, more than prompt_cache_bytes")
            self._make_room(n_bytes)
            with replaced(path, mode=0o600) as temporary, temporary.open("wb") as file:
                code = self._code(start).digest()
                file.writelines((start, code, state.blob, self._end(code, state)))
            self._make_room(0)  # other processes may have added files meanwhile
            if path.suffix == ".eagle-prompt":
                self._drop_beginnings(path, state.tokens)
        except (OSError, ValueError) as error:
            _log.log(logging.INFO if self._has_warned else logging.WARNING, "cannot save a prompt: %s", error)
            self._has_warned = True
            return 0
        return n_bytes

    def _make_room(self, n_bytes: int) -> None:
        """Removes the least recently used files until `n_bytes` more fit."""
        files = sorted(_files(self.folder), key=lambda pair: pair[1].st_mtime_ns)
        n_bytes += sum(status.st_size for _, status in files)
        for path, status in files:
            if n_bytes <= self._n_bytes_max:
                return
            path.unlink(missing_ok=True)
            n_bytes -= status.st_size

    def _drop_beginnings(self, path: Path, tokens: list[int]) -> None:
        """Removes files that the new file makes useless: all but at most `WORTH` of their tokens are a prefix
        of the new file's text.
        """
        for entry in self._look():
            own = entry.tokens
            if own and entry.path != path and len(own) - n_common(own, tokens) <= WORTH:
                entry.path.unlink(missing_ok=True)

    # Saving and loading named slots

    def slot_file(self, name: str) -> Path:
        """Returns the path of the slot file for a name from a client. Raises InvalidValueError for an invalid
        name.
        """
        if not _NAME.fullmatch(name):
            raise InvalidValueError(
                f"filename: expected letters, digits, '.', '_' and '-', at most 100, found {name[:100]!r}"
            )
        return self.folder / f"{name}.eagle-slot"

    def read_slot(self, name: str) -> core.SavedSequence | None:
        """Returns the state saved under a name; None if it is missing or invalid, which is logged."""
        path = self.slot_file(name)
        with self._logged(path):
            return self._read(path)
        return None

    def close(self) -> None:
        """Waits until everything is written, then ends the threads."""
        self._reader.shutdown()
        self._writer.shutdown()


def remove_all(folder: Path) -> tuple[int, int]:
    """Removes all files of prompts and slots in a folder. Returns the number and bytes of these files. Raises
    OSError.
    """
    files = list(_files(folder))
    for path, _ in files:
        path.unlink(missing_ok=True)
    return len(files), sum(status.st_size for _, status in files)


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yields eaglecpp's complete files in a folder. Yields no files if the folder is missing."""
    paths: list[Path] = []
    with contextlib.suppress(OSError):
        paths = [path for path in folder.iterdir() if _OURS.fullmatch(path.name)]
    for path in paths:
        with contextlib.suppress(OSError):  # another process may have removed the file
            yield path, path.stat()


def _give_way() -> None:
    """Lowers the priority of this thread below all others."""
    if sys.platform == "linux":  # only Linux has a priority for each thread
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


def _key() -> bytes:
    """Returns this user's secret key, which is created at its first use. Replaces a damaged key, and a key
    that other users can read.
    """
    path = data_dir() / "prompt-cache.key"
    with contextlib.suppress(OSError):
        key = read_limited(path, 32)
        if len(key) == 32 and (os.name == "nt" or not path.stat().st_mode & 0o077):
            return key
        path.unlink()
    new = path.with_name(f"{path.name}-{secrets.token_hex(8)}")
    try:
        replace_bytes(new, secrets.token_bytes(32), mode=0o600)
        with contextlib.suppress(FileExistsError):  # another process may have created the key first
            os.link(new, path)
    finally:
        new.unlink(missing_ok=True)
    return read_limited(path, 32)


def no_cache_reason(native: core.Engine, folder: str) -> str:
    """Returns the reason why an engine has no prompt cache; "" if the engine can have a prompt cache."""
    if not folder:
        return "it was opened without --prompt-cache DIR"
    return "" if native.can_save else native.chains_only


def _depends_on(native: core.Engine, plan: OpeningPlan, drafting: DraftOptions) -> str:
    """Returns a text with everything that affects the bits of a saved state."""
    model, facts = plan.model_options(), native.device_info()
    files = [part_paths(plan.target), [Path(path) for path in (*dict(model.lora), model.mmproj) if path]]
    files.append([] if plan.draft is None else part_paths(plan.draft))
    metadata = native.metadata()
    trained = metadata.get(f"{metadata.get('general.architecture')}.rope.scaling.original_context_length", "")
    # Beyond their trained context length, some models rotate positions (RoPE) differently.
    is_beyond = trained.isdigit() and native.n_ctx > int(trained)
    parts = [
        version("eaglecpp"),
        machine(),
        [[(fingerprint(path), path.stat().st_mtime_ns) for path in each] for each in files],
        options_key(model, drafting, free={"n_threads_batch", "lora"}),
        [scale for _, scale in model.lora],
        [model.n_batch, is_beyond, *(facts[name] for name in ("repack", "kernels", "draft"))],
    ]
    return repr(parts)
