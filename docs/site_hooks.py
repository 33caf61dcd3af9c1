# SPDX-License-Identifier: MIT
"""Hooks of mkdocs: the README becomes the site's first page, with links relative to docs/."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

README = Path(__file__).parents[1] / "README.md"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.src_uri != "index.md":
        return markdown
    text = README.read_text(encoding="utf-8").replace("](docs/", "](")
    # these two pages are not part of the site
    return re.sub(r"\[([^]]+)\]\((?:SECURITY|CONTRIBUTING)\.md\)", r"\1", text)
