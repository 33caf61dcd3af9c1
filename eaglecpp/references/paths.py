# SPDX-License-Identifier: MIT
"""From a path as it is written to the path that it means. Source of the rules: ollama/ollama:
parser/parser.go.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["FileSearchError", "expand_path"]


class FileSearchError(Exception):
    """No usable files; the text is Ollama's. The caller knows the line and raises ModelfileError."""


def expand_path(value: str, directory: Path) -> Path:
    """The absolute path a value stands for; `~` and `~user` are homes, the rest is relative to `directory`.

    Raises FileSearchError for an unknown user.
    """
    if value.startswith("~"):
        try:
            value = str(Path(value).expanduser())
        except RuntimeError:
            user = value.partition("/")[0][1:]
            raise FileSearchError(f"failed to find user '{user}'") from None
    return Path(os.path.abspath(directory / value))  # noqa: PTH100 - resolve() would follow symlinks
