# SPDX-License-Identifier: MIT
"""The end of writing a GGUF file."""

from __future__ import annotations

import gguf


def finish(writer: gguf.GGUFWriter) -> None:
    """Writes the header, the keys and the tensors, and closes the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
