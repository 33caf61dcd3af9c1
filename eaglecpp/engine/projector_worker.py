# SPDX-License-Identifier: MIT
"""The process that reads images for one engine, with llama.cpp's mtmd: `python -P -m` this module.

llama.cpp ends its process over a damaged projector file, and images of strangers meet a decoder in C there.
So neither is done in the process of the engine (`eaglecpp.engine.projector`), which talks to this one through
stdin and stdout: a message is its length, and an object in MessagePack.

* first {mmproj, target, marker, n_threads, gpu}: {}. Of the target only metadata is read.
* {text, add_special, images}, by id: {chunks}, in order, each {tokens} or {id, n, whole, columns}.
  Each marker in the text stands for one image. columns: as `_columns`.
* {chunk}, a number: {width, rows}, in float32.

Any answer may be {error} instead.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import IO, Any

from msgspec import msgpack


def send(stream: IO[bytes], message: dict[str, Any]) -> None:
    """Writes one message."""
    data = msgpack.encode(message)
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def receive(stream: IO[bytes]) -> dict[str, Any]:
    """Reads one message. Raises EOFError where the other side is gone, ValueError for what is none."""
    n = int.from_bytes(_exactly(stream, 8), "little")
    return msgpack.decode(_exactly(stream, n), type=dict[str, Any])


def _exactly(stream: IO[bytes], n: int) -> bytes:
    data = stream.read(n)
    if len(data) < n:
        raise EOFError
    return data


class _Reader:
    """mtmd's context, and the chunks of the last text."""

    def __init__(self, mmproj: str, target: str, marker: str, n_threads: int, gpu: bool) -> None:
        import llama_cpp
        from llama_cpp import mtmd_cpp

        self.mtmd = mtmd_cpp
        params = llama_cpp.llama_model_default_params()
        # mapped as they lie in the file, weights that nobody asks for are never read
        params.n_gpu_layers, params.use_mmap, params.use_extra_bufts = 0, True, False
        self.model = llama_cpp.llama_model_load_from_file(target.encode(), params)
        if not self.model:
            raise RuntimeError(f"{target} cannot be read")
        self.width = llama_cpp.llama_model_n_embd_inp(self.model)
        own = mtmd_cpp.mtmd_context_params_default()
        own.media_marker = marker.encode()
        own.use_gpu, own.n_threads, own.print_timings, own.warmup = gpu, n_threads, False, False
        self.context = mtmd_cpp.mtmd_init_from_file(mmproj.encode(), self.model, own)
        if not self.context:
            raise RuntimeError("")
        if not mtmd_cpp.mtmd_support_vision(self.context):
            raise RuntimeError("it has no encoder for images")
        self.chunks = mtmd_cpp.mtmd_input_chunks_init()

    def read(self, text: str, add_special: bool, images: list[tuple[str, bytes]]) -> dict[str, Any]:
        mtmd, bitmaps = self.mtmd, []
        try:
            for name, data in images:
                buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
                bitmap = mtmd.mtmd_helper_bitmap_init_from_buf(self.context, buffer, len(data), False)
                if not bitmap:
                    return {"error": "an image cannot be decoded: it is damaged"}
                bitmaps.append(bitmap)
                mtmd.mtmd_bitmap_set_id(bitmap, name.encode())
            given = text.encode()
            part = mtmd.mtmd_input_text(given, len(given), add_special, True)
            array = (ctypes.c_void_p * len(bitmaps))(*bitmaps)
            mtmd.mtmd_input_chunks_free(self.chunks)
            self.chunks = mtmd.mtmd_input_chunks_init()
            code = mtmd.mtmd_tokenize(self.context, self.chunks, ctypes.byref(part), array, len(bitmaps))
        finally:
            for bitmap in bitmaps:
                mtmd.mtmd_bitmap_free(bitmap)
        if code != 0:
            return {"error": f"llama.cpp cannot prepare the images for this model (code {code})"}
        return {"chunks": [self._chunk(i) for i in range(mtmd.mtmd_input_chunks_size(self.chunks))]}

    def _chunk(self, index: int) -> dict[str, Any]:
        mtmd = self.mtmd
        chunk = mtmd.mtmd_input_chunks_get(self.chunks, index)
        if mtmd.mtmd_input_chunk_get_type(chunk) == mtmd.MTMD_INPUT_CHUNK_TYPE_TEXT:
            n = ctypes.c_size_t()
            tokens = mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(n))
            return {"tokens": tokens[: n.value] if tokens else []}
        return {
            "id": (mtmd.mtmd_input_chunk_get_id(chunk) or b"").decode(),
            "n": mtmd.mtmd_input_chunk_get_n_tokens(chunk),
            "whole": bool(mtmd.mtmd_decode_use_non_causal(self.context, chunk)),
            "columns": self._columns(chunk),
        }

    def _columns(self, chunk: Any) -> int:
        """Of an image whose rows have one position, and beside it those of their line and column (M-RoPE).
        0: its rows are numbered as text; -1: in another way, as HunyuanVL's.
        """
        mtmd = self.mtmd
        if not mtmd.mtmd_decode_use_mrope(self.context):
            return 0
        image = mtmd.mtmd_input_chunk_get_tokens_image(chunk)
        n = mtmd.mtmd_input_chunk_get_n_tokens(chunk)
        places = [mtmd.mtmd_image_tokens_get_decoder_pos(image, 0, i) for i in range(n)]
        n_columns = max(place.x for place in places) + 1
        n_positions = max(n_columns, -(-n // n_columns))
        is_grid = all((p.t, p.y, p.x) == (0, *divmod(i, n_columns)) for i, p in enumerate(places))
        return n_columns if is_grid and mtmd.mtmd_input_chunk_get_n_pos(chunk) == n_positions else -1

    def encode(self, index: int) -> dict[str, Any]:
        mtmd = self.mtmd
        chunk = mtmd.mtmd_input_chunks_get(self.chunks, index)
        code = mtmd.mtmd_encode_chunk(self.context, chunk)
        rows = mtmd.mtmd_get_output_embd(self.context)
        if code != 0 or not rows:
            return {"error": f"llama.cpp cannot encode an image (code {code})"}
        n = mtmd.mtmd_input_chunk_get_n_tokens(chunk)
        return {"width": self.width, "rows": ctypes.string_at(rows, 4 * n * self.width)}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl+C is for the engine's process
    # what llama.cpp prints must not get between the messages
    incoming, outgoing = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        reader = _Reader(**receive(incoming))
    except RuntimeError as error:
        send(outgoing, {"error": str(error)})
        return
    send(outgoing, {})
    while True:
        try:
            message = receive(incoming)
        except EOFError:
            return
        send(outgoing, reader.read(**message) if "text" in message else reader.encode(message["chunk"]))


if __name__ == "__main__":
    main()
