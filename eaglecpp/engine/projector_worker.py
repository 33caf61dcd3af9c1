# SPDX-License-Identifier: MIT
"""The process that reads images for one engine, with llama.cpp's mtmd: `python -P -m` this module.

llama.cpp aborts on a damaged projector file, and untrusted images reach a decoder in C. The projector and the
decoder therefore run outside the engine's process. The engine's process (`eaglecpp.engine.projector`)
exchanges messages with this process through stdin and stdout. A message is a length, then a MessagePack
object. The requests and their replies:

* first {mmproj, target, marker, n_threads, gpu}: {}. Only the target's metadata is read.
* {text, add_special, sizes, images}: {chunks}, in order, each as `eaglecpp.engine.projector.InputChunk`, with
`_columns`. sizes: width and height of each image, by id; images: the id for each marker in the text. No image
is decoded for this.
* {image, data, part}: {width, rows}, in float32.

Any reply may be {error} instead.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from msgspec import msgpack

# Additional bytes of memory. Decoding 64 million pixels takes 1.4 GB, and encoding 4096 rows of Qwen2-VL
# takes 0.8 GB.
_MARGIN = 4 << 30
_PER_THREAD = 128 << 20  # bytes for one thread's stack and its allocator's arena


def send(stream: IO[bytes], message: dict[str, Any]) -> None:
    """Writes one message."""
    data = msgpack.encode(message)
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def receive(stream: IO[bytes]) -> dict[str, Any]:
    """Reads one message. Raises EOFError if the stream has ended, ValueError for an invalid message."""
    n = int.from_bytes(_exactly(stream, 8), "little")
    return msgpack.decode(_exactly(stream, n), type=dict[str, Any])


def _exactly(stream: IO[bytes], n: int) -> bytes:
    data = stream.read(n)
    if len(data) < n:
        raise EOFError
    return data


def _limit_memory(n_bytes: int) -> None:
    """Limits further allocations of this process, if the system supports that (Linux)."""
    if sys.platform == "linux":
        import resource

        n_pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = n_pages * resource.getpagesize() + n_bytes
        with suppress(ValueError):  # the process may already have a lower limit
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


class _ImageReader:
    """mtmd's context, and the chunks of the last text or image."""

    def __init__(self, mmproj: str, target: str, marker: str, n_threads: int, gpu: bool) -> None:
        import llama_cpp
        from llama_cpp import mtmd_cpp

        self.mtmd = mtmd_cpp
        params = llama_cpp.llama_model_default_params()
        # The target's weights are never read, because they are memory-mapped and only metadata is used.
        params.n_gpu_layers, params.use_mmap, params.use_extra_bufts = 0, True, False
        self.model = llama_cpp.llama_model_load_from_file(target.encode(), params)
        if not self.model:
            raise RuntimeError(f"cannot read {target}")
        self.width = llama_cpp.llama_model_n_embd_inp(self.model)
        # With a GPU there is no limit, because GPU drivers reserve terabytes of addresses.
        if not (gpu and llama_cpp.llama_supports_gpu_offload()):
            _limit_memory(Path(mmproj).stat().st_size + _MARGIN + n_threads * _PER_THREAD)
        own = mtmd_cpp.mtmd_context_params_default()
        own.media_marker, self.marker = marker.encode(), marker
        own.use_gpu, own.n_threads, own.print_timings, own.warmup = gpu, n_threads, False, False
        self.context = mtmd_cpp.mtmd_init_from_file(mmproj.encode(), self.model, own)
        if not self.context:
            raise RuntimeError("")
        if not mtmd_cpp.mtmd_support_vision(self.context):
            raise RuntimeError("it has no image encoder")
        self.chunks = mtmd_cpp.mtmd_input_chunks_init()
        self.image = ""  # id of the image whose pixels are in `chunks`

    def read(
        self, text: str, add_special: bool, sizes: dict[str, tuple[int, int]], images: list[str]
    ) -> dict[str, Any]:
        bitmaps = {name: self.mtmd.mtmd_bitmap_init(*size, None) for name, size in sizes.items()}
        for name, bitmap in bitmaps.items():
            self.mtmd.mtmd_bitmap_set_id(bitmap, name.encode())
        self._tokenize(text, add_special, bitmaps, images)
        chunks = [self._chunk(chunk) for chunk in self._all()]
        pieces = [chunk for chunk in chunks if "image" in chunk]
        # llama.cpp may cut an image into several pieces. It cuts equal images into equal pieces.
        n_images, n_pieces = Counter(images), Counter(piece["image"] for piece in pieces)
        n_seen = Counter[str]()
        for piece in pieces:
            name = piece["image"]
            piece["part"] = n_seen[name] % (n_pieces[name] // n_images[name])
            n_seen[name] += 1
        return {"chunks": chunks}

    def _all(self) -> list[Any]:
        n = self.mtmd.mtmd_input_chunks_size(self.chunks)
        return [self.mtmd.mtmd_input_chunks_get(self.chunks, i) for i in range(n)]

    def _tokenize(self, text: str, add_special: bool, bitmaps: dict[str, Any], images: list[str]) -> None:
        """Builds the chunks of a text, and frees the bitmaps."""
        mtmd, data = self.mtmd, text.encode()
        part = mtmd.mtmd_input_text(data, len(data), add_special, True)
        array = (ctypes.c_void_p * len(images))(*map(bitmaps.__getitem__, images))
        mtmd.mtmd_input_chunks_free(self.chunks)
        self.chunks, self.image = mtmd.mtmd_input_chunks_init(), ""
        code = mtmd.mtmd_tokenize(self.context, self.chunks, ctypes.byref(part), array, len(images))
        for bitmap in bitmaps.values():
            mtmd.mtmd_bitmap_free(bitmap)
        if code != 0:
            raise RuntimeError(f"llama.cpp cannot prepare the images for this model (code {code})")

    def _chunk(self, chunk: Any) -> dict[str, Any]:
        mtmd = self.mtmd
        if mtmd.mtmd_input_chunk_get_type(chunk) == mtmd.MTMD_INPUT_CHUNK_TYPE_TEXT:
            n = ctypes.c_size_t()
            tokens = mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(n))
            return {"tokens": tokens[: n.value] if tokens else []}
        return {
            "image": (mtmd.mtmd_input_chunk_get_id(chunk) or b"").decode(),
            "n": mtmd.mtmd_input_chunk_get_n_tokens(chunk),
            "whole": bool(mtmd.mtmd_decode_use_non_causal(self.context, chunk)),
            "columns": self._columns(chunk),
        }

    def _columns(self, chunk: Any) -> int:
        """Returns the number of columns of an image with M-RoPE positions: all embeddings have the same
        position in the text, and differ in line and column. 0 = the embeddings have positions like text; -1 =
        another scheme of positions, such as HunyuanVL's.
        """
        mtmd = self.mtmd
        if not mtmd.mtmd_decode_use_mrope(self.context):
            return 0
        image = mtmd.mtmd_input_chunk_get_tokens_image(chunk)
        n = mtmd.mtmd_input_chunk_get_n_tokens(chunk)
        positions = [mtmd.mtmd_image_tokens_get_decoder_pos(image, 0, i) for i in range(n)]
        n_columns = max(position.x for position in positions) + 1
        n_positions = max(n_columns, -(-n // n_columns))
        is_grid = all((p.t, p.y, p.x) == (0, *divmod(i, n_columns)) for i, p in enumerate(positions))
        return n_columns if is_grid and mtmd.mtmd_input_chunk_get_n_pos(chunk) == n_positions else -1

    def encode(self, image: str, data: bytes, part: int) -> dict[str, Any]:
        mtmd = self.mtmd
        if self.image != image:
            buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
            bitmap = mtmd.mtmd_helper_bitmap_init_from_buf(self.context, buffer, len(data), False)
            if not bitmap:
                raise RuntimeError("an image cannot be decoded; it may be damaged")
            self._tokenize(self.marker, False, {image: bitmap}, [image])
            self.image = image
        text = mtmd.MTMD_INPUT_CHUNK_TYPE_TEXT
        chunk = [c for c in self._all() if mtmd.mtmd_input_chunk_get_type(c) != text][part]
        code = mtmd.mtmd_encode_chunk(self.context, chunk)
        rows = mtmd.mtmd_get_output_embd(self.context)
        if code != 0 or not rows:
            raise RuntimeError(f"llama.cpp cannot encode an image (code {code})")
        n = mtmd.mtmd_input_chunk_get_n_tokens(chunk)
        return {"width": self.width, "rows": ctypes.string_at(rows, 4 * n * self.width)}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C of the terminal is handled by the engine's process
    # Messages go to a copy of stdout, so that llama.cpp's output does not mix with the messages.
    incoming, outgoing = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        reader = _ImageReader(**receive(incoming))
    except RuntimeError as error:
        send(outgoing, {"error": str(error)})
        return
    send(outgoing, {})
    while True:
        try:
            message = receive(incoming)
        except EOFError:
            return
        try:
            reply = reader.read(**message) if "text" in message else reader.encode(**message)
        except RuntimeError as error:
            reply = {"error": str(error)}
        send(outgoing, reply)


if __name__ == "__main__":
    main()
