# SPDX-License-Identifier: MIT
"""Downloads the libraries of the server's page from npm: `python docs/vendor_page.py`.

Writes the browser build and the licence of each pinned version to `eaglecpp/server/static/vendor`, and
`manifest.json`, which describes each file. Archives must have the SHA-512 below, which npm publishes (`npm
view NAME@VERSION dist.integrity`). `icons.svg` only has the Lucide icons that the page uses.
`tests/unit/server/test_page.py` checks the files.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

VENDOR = Path(__file__).parents[1] / "eaglecpp" / "server" / "static" / "vendor"

# (package, version, licence, SHA-512 of the archive, browser build, licence file)
LIBRARIES = (
    ("markdown-it", "15.0.3", "MIT",
     "+Az7Ojz3iRGu8KYMvJ6xVhvrxP3eE+vEtJX75Ow88XBpcQNV/0lGX5ZynIIBftREo4DC2jsveAMDaeltmm8QvQ==",
     "dist/browser/markdown-it.umd.min.js", "LICENSE"),
    ("dompurify", "3.4.18", "Apache-2.0",  # this package is also available under MPL-2.0
     "ofe3wI/uNm68HInABYFJYqQxRw1EaKAjNdrFVKqjUY+UZurvNd2L/HuQe097s/4RivWiZyP6tT7aoT8atjfhwg==",
     "dist/purify.min.js", "LICENSE"),
    ("@highlightjs/cdn-assets", "11.12.0", "BSD-3-Clause",
     "KvOKXODaiFmId9xaq3xc5xCL66wVLUuOngDbO9B/kewbFTqdGbn2nJxNhN3H5R1cgDTVj6R8vH0zgiNDEGjpDw==",
     "highlight.min.js", "LICENSE"),
    ("katex", "0.19.1", "MIT",
     "jG8uKntjSEcm2EpQOh0XturpPuuC9r3Sq5HLHdsFdWZT27E672SF19QEi+of0/YeOy15lDgRhKvr5614uRrEfA==",
     "dist/katex.min.js", "LICENSE"),
    ("lucide-static", "1.62.0", "ISC",
     "WBZA/m2PvkFpMGHDtsBck5P2A9G4ehLlYu4GwwICcmEm1BvYVgj00lCDxKRWLlbMlOibLaiwdQ88G5pHkSWgwA==",
     "icons.svg", "LICENSE"),
    ("preact", "11.2.0", "MIT",
     "/HfHI/7N84e6GrWBJ3J280z3mLaRJiDcSvj/A+y/4AbLnND/1UlGHe1sR6oYuTGwId0nP7dqDU9OnLxMPZ7xBg==",
     "dist/preact.mjs", "LICENSE"),
    ("htm", "3.1.1", "Apache-2.0",
     "983Vyg8NwUE7JkZ6NmOqpCZ+sh1bKv2iYTlUkzlWmA5JD2acKoxd4KVxbMmxX/85mtfdnDmTFoNKcg5DGAvxNQ==",
     "dist/htm.mjs", "LICENSE"),
    ("idb", "8.0.4", "ISC",
     "jd0ITCrN+Zah4J7R/Z2jnR3W7A4BXDAjmo62MwWuSjxCiueUAf7X5rbodEdidWzeknwXHmLpdZkoiiCppNi30Q==",
     "build/index.js", "LICENSE"),
)  # fmt: skip

ICONS = (
    "arrow-up", "check", "chevron-down", "chevron-left", "chevron-right", "columns-2", "copy", "ellipsis",
    "file-text", "box", "menu", "paperclip", "pencil", "refresh-cw", "sliders-horizontal", "square",
    "square-pen", "step-forward", "trash-2", "x", "zap",
)  # fmt: skip
"""Lucide icons that the page uses."""


def archive(name: str, version: str, integrity: str) -> tarfile.TarFile:
    """Returns a package from npm. Raises SystemExit if its bytes differ from the pinned hash."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", "--silent", f"{name}@{version}"], cwd=folder, check=True)
        data = next(Path(folder).iterdir()).read_bytes()
    actual = base64.b64encode(hashlib.sha512(data).digest()).decode()
    if actual != integrity:
        raise SystemExit(f"{name}@{version}: expected the SHA-512 {integrity}, found {actual}")
    return tarfile.open(fileobj=io.BytesIO(data))


def read(packed: tarfile.TarFile, path: str) -> bytes:
    """Returns a file of a package. Raises SystemExit if the package does not have it."""
    try:
        member = packed.extractfile(f"package/{path}")
    except KeyError:
        member = None
    if member is None:
        raise SystemExit(f"{packed.name or 'the package'}: expected the file {path}, found none")
    return member.read()


def sprite(packed: tarfile.TarFile) -> bytes:
    """Returns an SVG file with `ICONS` as symbols, with Lucide's names."""
    symbols = []
    for name in ICONS:
        shapes = re.search(r"<svg[^>]*>(.*)</svg>", read(packed, f"icons/{name}.svg").decode(), re.DOTALL)
        if shapes is None:
            raise SystemExit(f"{name}.svg of lucide-static: expected an <svg> element, found none")
        inner = re.sub(r"\s*\n\s*", "", shapes[1])
        symbols.append(f'<symbol id="{name}" viewBox="0 0 24 24">{inner}</symbol>')
    head = '<svg xmlns="http://www.w3.org/2000/svg">'
    return "\n".join((head, *symbols, "</svg>", "")).encode()


def write(name: str, data: bytes) -> dict[str, str]:
    """Writes a file to the folder and returns its manifest entry."""
    part = VENDOR / f"{name}.part"
    part.write_bytes(data)
    part.replace(VENDOR / name)
    return {name: hashlib.sha256(data).hexdigest()}


def main() -> None:
    VENDOR.mkdir(exist_ok=True)
    manifest: dict[str, Any] = {}
    for name, version, licence, integrity, build, text in LIBRARIES:
        files: dict[str, str] = {}
        with archive(name, version, integrity) as packed:
            file = Path(build).name.replace("index", name)
            files |= write(file, sprite(packed) if build == "icons.svg" else read(packed, build))
            files |= write(f"LICENSE-{file.partition('.')[0]}", read(packed, text))
        manifest[name] = {"version": version, "license": licence, "sha512": integrity, "files": files}
    write("manifest.json", (json.dumps(manifest, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
