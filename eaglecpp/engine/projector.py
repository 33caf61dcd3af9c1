# SPDX-License-Identifier: MIT
"""`Projector`: turns prompts with images into lists of ids, in which image embeddings have ids too.

A projector (`--mmproj`, llama.cpp's term for the vision encoder and the adapter to the target) runs in its
own process, `eaglecpp.engine.projector_worker`. The engine keeps the embeddings of recent images, so the next
turn of a conversation encodes no image again.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eaglecpp._extension import core
from eaglecpp.chat.images import check_together, check_unpacked
from eaglecpp.engine import projector_worker
from eaglecpp.engine.native import NativeEngine, Unique
from eaglecpp.engine.projector_worker import receive, send
from eaglecpp.errors import InvalidValueError, MismatchError, ModelNotFoundError, UnsupportedError
from eaglecpp.threads import check_wanted

_MAX_S = 600.0  # maximum seconds for encoding one image


@dataclass(frozen=True)
class InputChunk:
    """A piece of a prompt: tokens, or `n` embeddings of an image. image: mark of the image, "" for tokens;
    part: index of this piece among the pieces into which llama.cpp cuts the image; whole, columns: as in
    `NativeEngine.add_image`.
    """

    tokens: Sequence[int] = ()
    image: str = ""
    part: int = 0
    n: int = 0
    whole: bool = False
    columns: int = 0


class Projector(Unique):
    """Encodes images in a separate process. mmproj: the projector's file; target: the target's file, from
    which only metadata is read; gpu: the projector may run on a GPU.

    Raises GgufError for a damaged file, MismatchError for a projector of another model or for a projector
    whose embeddings this engine cannot position.
    """

    _process: subprocess.Popen[bytes] | None = None

    def __init__(
        self, engine: NativeEngine, mmproj: Path, target: Path, n_threads: int, *, gpu: bool
    ) -> None:
        if not mmproj.is_file():
            raise ModelNotFoundError(f"projector {os.fspath(mmproj)!r} is not on this machine")
        core.check_projector(os.fspath(mmproj))
        self.path = mmproj
        self._target = target
        self._engine = engine
        self._lock = threading.Lock()
        self._marker = f"<__media_{secrets.token_hex(8)}__>"  # a random marker, so that no prompt contains it
        self._start = {
            "marker": self._marker, "mmproj": os.fspath(mmproj), "target": os.fspath(target),
            "n_threads": n_threads, "gpu": gpu,
        }  # fmt: skip
        self._open()

    def read(self, parts: Sequence[str], images: Mapping[str, bytes], *, add_bos: bool) -> list[InputChunk]:
        """Splits a prompt into chunks without decoding images. parts: result of `split_at_images`; images:
        contents of the image files by mark. Raises InvalidValueError for an unsupported image.
        """
        marks = parts[1::2]
        reply = self._ask({
            "text": self._marker.join(parts[::2]), "add_special": add_bos, "images": marks,
            "sizes": check_together(images[mark] for mark in set(marks)),
        })  # fmt: skip
        chunks = [InputChunk(**chunk) for chunk in reply["chunks"]]
        if any(min(chunk.tokens, default=0) < 0 for chunk in chunks):
            raise UnsupportedError(f"{self.path} needs image tokens, which this model's vocabulary lacks")
        if any(chunk.columns < 0 for chunk in chunks):
            raise UnsupportedError(f"{self.path} numbers image positions in an unsupported way")
        return chunks

    def tokens(self, chunks: Sequence[InputChunk], images: Mapping[str, bytes]) -> list[int]:
        """Returns the ids of the chunks. Equal images have equal ids and are encoded once. Raises
        InvalidValueError for an image that cannot be decoded.
        """
        ids: list[int] = []
        for chunk in chunks:
            ids += self._rows(chunk, images[chunk.image]) if chunk.image else chunk.tokens
        if not self.has_all(ids):
            raise InvalidValueError("the images of this prompt are too large to be kept together; send fewer")
        return ids

    def has_all(self, ids: Sequence[int]) -> bool:
        """Returns whether the engine still has the embeddings of all images whose ids are in a prompt."""
        return all(self._engine.get().has_image(id) for id in ids if id < 0)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Ends the projector's process."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(OSError), process:
                process.kill()

    def _rows(self, chunk: InputChunk, data: bytes) -> Sequence[int]:
        """Returns the ids of an image's embeddings. Raises CancelledError if no client waits for the image
        any more.
        """
        import numpy as np  # the import is here, because it takes 0.1 s

        native, key = self._engine.get(), f"{chunk.image}:{chunk.part}"
        known = native.find_image(key)
        if known is None:
            check_wanted()
            check_unpacked(data)
            reply = self._ask({"image": chunk.image, "data": data, "part": chunk.part})
            rows = np.frombuffer(reply["rows"], np.float32).reshape(-1, reply["width"])
            if len(rows) != chunk.n:
                raise InvalidValueError(
                    f"an image is damaged: the size in its header gives {chunk.n} embeddings, found "
                    f"{len(rows)}"
                )
            if not np.isfinite(rows).all():
                raise InvalidValueError(f"{self.path} produces NaN or infinity for an image")
            try:
                known = native.add_image(key, rows, chunk.whole, chunk.columns)
            except ValueError as error:  # native code only raises built-in exceptions
                raise InvalidValueError(f"{self.path}: {error}") from None
        first, n = known
        return range(first, first - n, -1)

    def _open(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", projector_worker.__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "GGML_NO_BACKTRACE": "1"},  # a crash of ggml must not start a debugger
        )
        try:
            self._exchange(self._start)
            return
        except (EOFError, OSError):
            why = "llama.cpp's image reader crashed"
        except InvalidValueError as error:
            why = str(error) or "llama.cpp refuses it"
        self.close()
        raise MismatchError(
            f"{self.path} is not a projector for {self._target.name}: {why}; use the mmproj file that was "
            "made with this model"
        )

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Sends a message to the process and returns the reply. A process that crashed on an image is started
        again for the next message.
        """
        with self._lock:
            if self._process is None:
                self._open()
            try:
                return self._exchange(message)
            except (EOFError, OSError):
                raise InvalidValueError(
                    "llama.cpp's image reader crashed on an image, or was killed; check the image for damage"
                ) from None

    def _exchange(self, message: dict[str, Any]) -> dict[str, Any]:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        # The timer ends a process that computes forever, for example because of a malicious image.
        watch = threading.Timer(_MAX_S, process.kill)
        watch.daemon = True
        watch.start()
        try:
            send(process.stdin, message)
            reply = receive(process.stdout)
        # The process is closed after any exception, even Ctrl+C. Otherwise the next message would get the
        # late reply.
        except BaseException:
            self.close()
            raise
        finally:
            watch.cancel()
        if "error" in reply:
            raise InvalidValueError(reply["error"])
        return reply
