# SPDX-License-Identifier: MIT
"""`store_problems` checks all rules that must hold for a store at any moment, also right after a process was
killed.

The check follows docs/models.md and uses only json, hashlib and the file system, not the store's own code.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

BLOB = re.compile(r"sha256-[0-9a-f]{64}")


def store_problems(root: Path) -> list[str]:
    """Returns the problems of a store: broken manifests, missing or damaged blobs, unknown files."""
    problems = []
    for path in manifest_files(root):
        try:
            manifest = json.loads(path.read_bytes())
            layers = [*manifest["layers"], manifest["config"]]
        except (ValueError, KeyError, TypeError) as error:
            problems.append(f"{path}: half-written? {error!r}")
            continue
        for layer in layers:
            blob = root / "blobs" / layer["digest"].replace(":", "-")
            if not blob.is_file():
                problems.append(f"{path}: {layer['mediaType']} {layer['digest']} is missing")
            elif blob.stat().st_size != layer["size"]:
                problems.append(f"{blob}: {blob.stat().st_size} bytes, the manifest says {layer['size']}")
    for blob in files(root / "blobs"):
        name = blob.name.removesuffix("-partial")
        if not BLOB.fullmatch(name):
            problems.append(f"{blob}: unexpected file")
        elif blob.name == name and f"sha256-{hashlib.sha256(blob.read_bytes()).hexdigest()}" != name:
            problems.append(f"{blob}: the content has another digest")
    return problems


def orphans(root: Path) -> list[str]:
    """Returns the blobs that no manifest names, and files that are left in the temporary folder."""
    named = set()
    for path in manifest_files(root):
        manifest = json.loads(path.read_bytes())
        named |= {layer["digest"].replace(":", "-") for layer in (*manifest["layers"], manifest["config"])}
    blobs = [path.name for path in files(root / "blobs") if BLOB.fullmatch(path.name)]
    left = [path.name for path in files(root / "tmp") if not path.name.endswith(".lock")]
    return [name for name in blobs if name not in named] + left


def manifest_files(root: Path) -> list[Path]:
    found = (root / "manifests").glob("*/*/*/*")
    return sorted(path for path in found if path.is_file() and not path.name.startswith("."))


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []
