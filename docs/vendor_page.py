# SPDX-License-Identifier: MIT
"""Downloads the libraries of the server's page from npm: `python docs/vendor_page.py`.

Writes the browser build and the licence of each pinned version into `eaglecpp/server/static/vendor`, after
checking the archive against the SHA-512 below, which npm publishes (`npm view NAME@VERSION dist.integrity`),
and `manifest.json`, which says what each file is. `tests/unit/server/test_page.py` checks the files.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

VENDOR = Path(__file__).parents[1] / "eaglecpp" / "server" / "static" / "vendor"

# package, version, licence, SHA-512 of the archive, browser build, licence file
LIBRARIES = (
    ("markdown-it", "15.0.3", "MIT",
     "+Az7Ojz3iRGu8KYMvJ6xVhvrxP3eE+vEtJX75Ow88XBpcQNV/0lGX5ZynIIBftREo4DC2jsveAMDaeltmm8QvQ==",
     "dist/browser/markdown-it.umd.min.js", "LICENSE"),
    ("dompurify", "3.4.18", "Apache-2.0",  # or MPL-2.0
     "ofe3wI/uNm68HInABYFJYqQxRw1EaKAjNdrFVKqjUY+UZurvNd2L/HuQe097s/4RivWiZyP6tT7aoT8atjfhwg==",
     "dist/purify.min.js", "LICENSE"),
    ("@highlightjs/cdn-assets", "11.12.0", "BSD-3-Clause",
     "KvOKXODaiFmId9xaq3xc5xCL66wVLUuOngDbO9B/kewbFTqdGbn2nJxNhN3H5R1cgDTVj6R8vH0zgiNDEGjpDw==",
     "highlight.min.js", "LICENSE"),
    ("katex", "0.19.1", "MIT",
     "jG8uKntjSEcm2EpQOh0XturpPuuC9r3Sq5HLHdsFdWZT27E672SF19QEi+of0/YeOy15lDgRhKvr5614uRrEfA==",
     "dist/katex.min.js", "LICENSE"),
)  # fmt: skip


def archive(name: str, version: str, integrity: str) -> tarfile.TarFile:
    """The package as npm has it. Raises SystemExit where its bytes are not those that were pinned."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", "--silent", f"{name}@{version}"], cwd=folder, check=True)
        data = next(Path(folder).iterdir()).read_bytes()
    found = base64.b64encode(hashlib.sha512(data).digest()).decode()
    if found != integrity:
        raise SystemExit(f"{name}@{version}: expected the SHA-512 {integrity}, found {found}")
    return tarfile.open(fileobj=io.BytesIO(data))


def write(name: str, data: bytes) -> dict[str, str]:
    """Writes a file of the folder; the manifest's line for it."""
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
            for path in (build, text):
                member = packed.extractfile(f"package/{path}")
                if member is None:
                    raise SystemExit(f"{name}@{version} has no {path}")
                own = Path(path).name if path == build else f"LICENSE-{Path(build).name.partition('.')[0]}"
                files |= write(own, member.read())
        manifest[name] = {"version": version, "license": licence, "sha512": integrity, "files": files}
    write("manifest.json", (json.dumps(manifest, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
