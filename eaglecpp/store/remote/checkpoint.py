# SPDX-License-Identifier: MIT
"""A checkpoint from the Hub as a folder on this machine: what `convert` is handed, and what `pull` converts.

Large files are downloaded once, into our store's unfinished blobs, where a killed download can be continued
and where they are kept for the next conversion (for two weeks, see `collect`). The folder holds links to
them (copies where a system makes no links), and the small files.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import requests

from eaglecpp.files import link
from eaglecpp.store.errors import DownloadError, OfflineError, Report
from eaglecpp.store.layout import child
from eaglecpp.store.remote import hub
from eaglecpp.store.remote.download import fetch, need_space

__all__ = ["checkpoint_files", "fetch_folder", "find_repository", "target_files"]

_ALWAYS = ("config.json", "params.json", "README.md")
_WEIGHTS = (
    ("model.safetensors.index.json", ".safetensors"),
    ("pytorch_model.bin.index.json", ".bin"),
)
_NOT_WEIGHTS = ("training_args.bin", "optimizer.bin", "scheduler.bin")
_TARGET = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "merges.txt",
)


def find_repository(repo: str, revision: str = "") -> hub.Repository:
    """What the Hub has of a repository; where it cannot be reached, a local cache. Raises DownloadError."""
    try:
        return hub.with_cached(hub.list_repository(repo, revision or None))
    except OfflineError:
        cached = None if revision else hub.list_cached(repo)
        if cached is None:
            raise
        return cached


def checkpoint_files(repository: hub.Repository, folder: str = "") -> list[hub.HubFile]:
    """The files of the drafter checkpoint in a folder of a repository. Raises DownloadError without one."""
    inside = [file for file in _inside(repository, folder) if file.name not in _NOT_WEIGHTS]
    for index, suffix in _WEIGHTS:
        weights = [file for file in inside if file.name.endswith(suffix) or file.name == index]
        if weights:
            return [*(file for file in inside if file.name in _ALWAYS), *weights]
    raise DownloadError(
        f"{f'{repository.id}/{folder}'.rstrip('/')}: it contains no drafter: expected an eagle3-*.gguf, or a "
        "checkpoint (.safetensors or .bin)"
    )


def target_files(repository: hub.Repository) -> list[hub.HubFile]:
    """Config and tokenizer of a target, without its weights. Raises DownloadError without a config."""
    files = [file for file in _inside(repository, "") if file.name in _TARGET]
    if not any(file.name == "config.json" for file in files):
        raise DownloadError(f"{repository.id}: it contains no config.json, so it is not a Hugging Face model")
    return files


def fetch_folder(
    session: requests.Session,
    root: Path,
    repository: hub.Repository,
    files: Sequence[hub.HubFile],
    into: Path,
    report: Report,
) -> Path:
    """A folder below `into`, named as the repository is, with these files. root: of our store.

    Raises DownloadError, DigestError, StoreError.
    """
    folder = child(into, PurePosixPath(repository.id).name)
    folder.mkdir(parents=True)
    large = [file for file in files if file.digest and file.cached is None]
    need_space(root, [repository.remote(file) for file in large])
    for file in files:
        path = child(folder, file.name)
        if file.cached is not None:
            _link_or_copy(file.cached, path)
        elif file.digest:
            _link_or_copy(fetch(session, root, repository.remote(file), report), path)
        else:
            path.write_bytes(hub.read_small(session, repository, file))
    return folder


def _link_or_copy(file: Path, path: Path) -> None:
    try:
        link(file, path)
    except OSError:
        shutil.copyfile(file, path)


def _inside(repository: hub.Repository, folder: str) -> list[hub.HubFile]:
    return [file for file in repository.files if str(PurePosixPath(file.path).parent) == (folder or ".")]
