# SPDX-License-Identifier: MIT
"""Checks the images of messages, and puts a mark for each image into the text.

A mark is a hash of its image, so two prompts with equal text have equal images.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence

from eaglecpp.errors import InvalidValueError
from eaglecpp.human import human_bytes

_MARK = re.compile(r"<__image_[0-9a-f]{64}__>")
MAX_BYTES = 32 << 20
_MAX_PIXELS = 64 << 20  # maximum number of pixels in one image, and in all images of a prompt together
_MAX_HEAD = 2 << 20  # maximum bytes of a JPEG file before the field that states the image's size
_FORMATS = "PNG, JPEG, GIF or BMP"
_PACKED, _UNPACKED = 1 << 16, 1 << 20  # maximum bytes to unpack at a time, and maximum bytes of the result
_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8\xff"
_BEGINNINGS = (_PNG, _JPEG, b"GIF87a", b"GIF89a", b"BM")


def image_mark(data: bytes) -> str:
    """Returns the mark that stands for an image in a text."""
    return f"<__image_{hashlib.sha256(data).hexdigest()}__>"


def is_image_name(name: str) -> bool:
    """Returns whether a file name has the ending of an image."""
    return name.lower().endswith((".png", ".jpg", ".jpeg", ".gif", ".bmp"))


def split_at_images(text: str, images: Mapping[str, bytes]) -> list[str]:
    """Splits a text at the marks of these images into [text, mark, text, mark, ..., text]. Marks of other
    images stay in the text.
    """
    parts, at = [""], 0
    for found in _MARK.finditer(text):
        if found[0] in images:
            parts[-1] += text[at : found.start()]
            parts += [found[0], ""]
            at = found.end()
    parts[-1] += text[at:]
    return parts


def without_images(text: str, images: Sequence[bytes]) -> str:
    """Returns the text without the marks of these images."""
    return "".join(split_at_images(text, {image_mark(data): data for data in images})[::2])


def decoded_image(text: object) -> bytes:
    """Decodes an image in base64, as in Ollama's API. Raises InvalidValueError."""
    if not isinstance(text, str):
        raise InvalidValueError(f"images: expected base64 text, found {type(text).__name__}")
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        raise InvalidValueError("images: expected base64 text") from None
    return checked_image(data)


def image_of_url(url: object) -> bytes:
    """Returns the image in a `data:` URL, as in OpenAI's API. Raises InvalidValueError for other URLs."""
    match = re.match(r"data:image/[\w.+-]+;base64,", url) if isinstance(url, str) else None
    if match is None:
        raise InvalidValueError(
            "image: expected data:image/...;base64,... or base64 data; other URLs are not fetched"
        )
    return decoded_image(str(url)[match.end() :])


def checked_image(data: bytes) -> bytes:
    """Returns the bytes of a supported image. Raises InvalidValueError for an unsupported image."""
    if len(data) > MAX_BYTES:
        raise InvalidValueError(f"an image has more than {human_bytes(MAX_BYTES)}, the maximum")
    size = _size(data)
    if size is None and data.startswith(_JPEG) and len(data) > _MAX_HEAD:
        raise InvalidValueError(
            f"a JPEG does not give its width and height in its first {human_bytes(_MAX_HEAD)}; save it again "
            "without metadata (EXIF, previews)"
        )
    if size is None:
        raise InvalidValueError(f"an image has an unsupported format: expected {_FORMATS}")
    if not 0 < size[0] * size[1] <= _MAX_PIXELS:
        raise InvalidValueError(f"an image has {size[0]} x {size[1]} pixels; the maximum is 64 million")
    return data


def check_together(images: Iterable[bytes]) -> dict[str, tuple[int, int]]:
    """Returns the width and height of images by their marks. Raises InvalidValueError for an unsupported
    image, and for images that together are too large for one prompt.
    """
    sizes = {image_mark(data): _size(checked_image(data)) or (0, 0) for data in images}
    n = sum(width * height for width, height in sizes.values())
    if n > _MAX_PIXELS:
        raise InvalidValueError(
            f"the images of a prompt have {n >> 20} million pixels; the maximum is {_MAX_PIXELS >> 20}"
        )
    return sizes


def check_unpacked(data: bytes) -> None:
    """Raises InvalidValueError for a PNG whose data unpacks to more bytes than the image's pixels need.
    Decoders would unpack all of the data.
    """
    if not data.startswith(_PNG):
        return
    width, height, depth, color = struct.unpack(">IIBB", data[16:26].ljust(10, b"\0"))
    n_channels = {2: 3, 4: 2, 6: 4}.get(color, 1)
    # Upper bound of the unpacked bytes. Each line begins with a filter byte, and an interlaced image has
    # fewer than two lines for each row of pixels.
    n_max = height * (-(-width * n_channels * depth // 8) + 5) + 16
    packed, at = bytearray(), len(_PNG)
    while at < len(data) and (kind := data[at + 4 : at + 8]) != b"IEND":
        end = at + 8 + int.from_bytes(data[at : at + 4], "big")
        if kind == b"IDAT":
            packed += data[at + 8 : end]
        at = end + 4  # the chunk's checksum is skipped
    # zlib's checksum is not checked, because image decoders ignore it as well
    n, inflater = 0, zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        for first in range(2, len(packed), _PACKED):
            piece: bytes | bytearray = packed[first : first + _PACKED]
            while piece and not inflater.eof:
                n += len(inflater.decompress(piece, _UNPACKED))
                piece = inflater.unconsumed_tail
                if n > n_max:
                    raise InvalidValueError(
                        f"an image of {width} x {height} pixels unpacks to more than {human_bytes(n_max)}; "
                        "save the image again"
                    )
    except zlib.error as error:
        raise InvalidValueError(f"an image cannot be decoded: it is damaged ({error})") from None


def _size(data: bytes) -> tuple[int, int] | None:
    """Returns the width and height of an image from the head of its file; None for an unsupported format."""
    import imagesize

    width, height = (-1, -1)
    if data.startswith(_BEGINNINGS):
        width, height = imagesize.get(io.BytesIO(data[:_MAX_HEAD]), exif_rotation=False)
    return (width, height) if min(width, height) >= 0 else None
