# SPDX-License-Identifier: MIT
"""Repositories of the Hugging Face Hub: their files, the choice of a GGUF, and copies in local caches.

`huggingface_hub` provides the token, the address and the cache (HF_TOKEN, HF_ENDPOINT, HF_HOME ...);
`download` fetches lists of files and the files. The rules for choosing a file are llama.cpp's (`-hf`:
common/download.cpp).

Large files of a checkpoint are downloaded into our store's blobs, where they stay for two weeks (see
`transaction`), so that the next conversion needs no download.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from huggingface_hub import constants, get_token

from eaglecpp.data_dir import expanded, folder_named
from eaglecpp.files import link, make_folder, replace_bytes
from eaglecpp.references import all_parts
from eaglecpp.store.drafters import QUANT
from eaglecpp.store.errors import DigestError, DownloadError, OfflineError, Report, Status, silent
from eaglecpp.store.layout import child
from eaglecpp.store.remote.download import MAX_SMALL, Remote, fetch, get
from eaglecpp.store.remote.reach import HttpSession, hub_endpoint

_ALWAYS = ("config.json", "README.md")
_WEIGHTS = (".safetensors", ".bin")
_NOT_WEIGHTS = ("training_args.bin", "optimizer.bin", "scheduler.bin")
_DRAFTERS = ("eagle3", "dflash", "dspark")
_NEVER_MAIN = re.compile(r"(?i)^(mmproj|imatrix|mtp-)|(?<![a-z0-9])(eagle3|dflash2?|dspark)(?![a-z0-9])")
_PREFERRED = ("Q4_K_M", "Q8_0")
_DRAFT_QUANT = "Q8_0"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_QUANT = re.compile(rf"(?i)(?<![A-Za-z0-9]){QUANT}(?![A-Za-z0-9])")


@dataclass(frozen=True)
class Repository:
    """A repository at one commit. id: "user/name"."""

    id: str
    files: tuple[Remote, ...]

    def file(self, path: str) -> Remote | None:
        """Returns the file at a path, or None."""
        return next((file for file in self.files if file.path == path), None)


def find_repository(repo_id: str, report: Report = silent) -> Repository:
    """Returns a repository's files, with their copies in local caches. If the Hub is unreachable, returns the
    cached files. Raises OfflineError if no file is cached, DownloadError for other failures.
    """
    cached = list_cached(repo_id)
    try:
        repository = _listed(repo_id)
    except OfflineError as error:
        if cached is None:
            raise
        report(Status(f"{error}; using the copy in the local cache"))
        return cached
    have = {file.digest: file.cached for file in cached.files if file.digest} if cached else {}
    files = tuple(replace(file, cached=have.get(file.digest)) for file in repository.files)
    return replace(repository, files=files)


def _listed(repo_id: str) -> Repository:
    terms = f"if it is private or gated, accept its terms at https://huggingface.co/{repo_id}"
    help = f"Check the name; {terms}, and set HF_TOKEN or run `hf auth login`"
    token = get_token() or ""
    with HttpSession() as session:
        data = get(session, f"{hub_endpoint()}/api/models/{repo_id}?blobs=true", repo_id, help, token)
    try:
        info = json.loads(data)
        folder = f"{hub_endpoint()}/{repo_id}/resolve/{quote(str(info['sha']), safe='')}"
        files = [_file(entry, folder, owner=repo_id, token=token, help=help) for entry in info["siblings"]]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DownloadError(f"{repo_id}: expected the Hub's list of files, found {data[:80]!r}") from error
    return Repository(repo_id, tuple(files))


def _file(entry: Mapping[str, Any], folder: str, **common: Any) -> Remote:
    digest = f"sha256:{entry['lfs']['sha256']}" if entry.get("lfs") else ""
    git = "" if digest else str(entry.get("blobId") or "")
    path = str(entry["rfilename"])
    return Remote(path, int(entry.get("size") or 0), digest, url=f"{folder}/{quote(path)}", git=git, **common)


def list_cached(repo_id: str) -> Repository | None:
    """Returns a repository's files in the local caches (huggingface_hub's, and llama.cpp's in the same
    layout).
    """
    folders = (folder_named("LLAMA_CACHE"), expanded(constants.HF_HUB_CACHE))
    for root in (folder / f"models--{repo_id.replace('/', '--')}" for folder in folders if folder):
        try:
            snapshot = root / "snapshots" / (root / "refs" / "main").read_text(encoding="utf-8").strip()
        except OSError:
            continue
        files = []
        for path in (path for path in sorted(snapshot.glob("**/*")) if path.is_file()):
            blob, name = Path(os.path.realpath(path)).name, path.relative_to(snapshot).as_posix()
            digest = f"sha256:{blob}" if _SHA256.fullmatch(blob) else ""
            files.append(Remote(name, path.stat().st_size, digest, repo_id, cached=path))
        if files:
            return Repository(repo_id, tuple(files))
    return None


def choose_model(repository: Repository, quant: str) -> tuple[Remote, ...]:
    """Returns the GGUF that `user/repo:quant` means, or all parts of a split GGUF in order.

    quant: a quantisation, a file name, or "" / "latest" for the default. Raises DownloadError, which lists
    the available quantisations.
    """
    models = [file for file in _gguf_files(repository) if not _NEVER_MAIN.search(file.name)]
    chosen = _pick(models, quant)
    if chosen is None:
        raise DownloadError(_no_model(repository, quant, models))
    return _with_parts(repository, chosen)


def choose_drafter(repository: Repository, target: Remote | None = None, quant: str = "") -> Remote | None:
    """Returns the drafter GGUF in a repository, or None.

    target: the target's file in the same repository. Only `eagle3-*.gguf`, `dflash-*.gguf` and
    `dspark-*.gguf` count as drafters next to a target, as in llama.cpp. A drafter in the target's folder is
    preferred, then a drafter with the target's quantisation, then a drafter with the default quantisation
    quant: without a target: the requested quantisation, "" for the default
    """
    files = _gguf_files(repository)
    drafters = [file for file in files if file.name.lower().startswith(_DRAFTERS)]
    if target is not None:
        near = [file for file in drafters if file.folder == target.folder] or drafters
        return _pick(near, quant_of(target.name) or _DRAFT_QUANT) or _pick(near, _DRAFT_QUANT) or _pick(near)
    named = [file for file in files if any(kind in file.name.lower() for kind in ("eagle", *_DRAFTERS))]
    has_checkpoint = any(file.name.endswith(_WEIGHTS) for file in repository.files)
    drafters = drafters or named or ([] if has_checkpoint else files)
    return _pick(drafters, quant) if quant else _pick(drafters, _DRAFT_QUANT) or _pick(drafters)


def read_small(session: HttpSession, file: Remote) -> bytes:
    """Returns the verified content of a small file, such as a config or a template. Raises DownloadError,
    DigestError.
    """
    label = f"{file.owner}: {file.path}"
    if file.size > MAX_SMALL:
        raise DownloadError(f"{label}: expected at most {MAX_SMALL} bytes, found {file.size}")
    if file.cached is not None:
        return file.cached.read_bytes()
    data = get(session, file.url, label, file.help, file.token)
    if file.digest:
        found, expected = f"sha256:{hashlib.sha256(data).hexdigest()}", file.digest
    else:
        found, expected = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(), file.git
    if expected and found != expected:
        raise DigestError(f"{label}: expected {expected}, the server sent {found}")
    return data


def fetch_checkpoint(root: Path, repository: Repository, folder: str, into: Path, report: Report) -> Path:
    """Downloads the drafter checkpoint in a folder of a repository to a folder below `into`, which has the
    repository's name. Returns this folder. root: folder of our store. Raises DownloadError (also if there is
    no checkpoint), DigestError, StoreError.
    """
    files = _checkpoint_files(repository, folder)
    out = child(into, PurePosixPath(repository.id).name)
    make_folder(out)
    with HttpSession() as session:
        for file in files:
            path = child(out, file.name)
            if file.cached is not None or file.digest:
                _link_or_copy(file.cached or fetch(session, root, file, report), path)
            else:
                replace_bytes(path, read_small(session, file))
    return out


def _checkpoint_files(repository: Repository, folder: str) -> list[Remote]:
    inside = [file for file in repository.files if file.folder == PurePosixPath(folder)]
    inside = [file for file in inside if file.name not in _NOT_WEIGHTS]
    for suffix in _WEIGHTS:
        weights = [file for file in inside if file.name.endswith((suffix, f"{suffix}.index.json"))]
        if weights:
            return [*(file for file in inside if file.name in _ALWAYS), *weights]
    where = f"{repository.id}/{folder}".rstrip("/")
    expected = "an eagle3-, dflash- or dspark-*.gguf, or a checkpoint (.safetensors or .bin)"
    raise DownloadError(f"no drafter in {where}: expected {expected}")


def _link_or_copy(file: Path, path: Path) -> None:
    try:
        link(file, path)
    except OSError:
        shutil.copyfile(file, path)


def _gguf_files(repository: Repository) -> list[Remote]:
    return [file for file in repository.files if file.name.lower().endswith(".gguf")]


def _pick(files: Sequence[Remote], quant: str = "") -> Remote | None:
    """Returns the first file of a quantisation. File names that contain the quantisation as a whole word are
    preferred.
    """
    if quant in ("", "latest"):
        preferences = (_pick(files, quant) for quant in _PREFERRED)
        return next((file for file in (*preferences, *files) if file is not None), None)
    lowered = quant.lower()
    for file in files:
        if lowered in (file.path.lower(), file.name.lower(), file.name.lower().removesuffix(".gguf")):
            return file
    # The first pattern matches whole words, so F16 does not match BF16. The second pattern also matches parts
    # of words, so UD-Q4_K_XL counts as Q4_K_XL.
    for before in (r"(?:^|[^a-z0-9])", ""):
        pattern = re.compile(before + re.escape(lowered) + r"[.-]")
        for file in files:
            if pattern.search(file.name.lower()):
                return file
    return None


def _with_parts(repository: Repository, chosen: Remote) -> tuple[Remote, ...]:
    folder = chosen.path.removesuffix(chosen.name)
    parts = {name: repository.file(folder + name) for name in all_parts(chosen.name)}
    if missing := [name for name, part in parts.items() if part is None]:
        what = f"{repository.id}: {chosen.path} is split, but these parts are missing"
        raise DownloadError(f"{what}: {', '.join(missing)}")
    return tuple(part for part in parts.values() if part is not None)


def _no_model(repository: Repository, quant: str, models: Sequence[Remote]) -> str:
    if models:
        quants = sorted({quant_of(file.name) or file.name for file in models})
        return f"{repository.id}: no GGUF for {quant!r}; available: {', '.join(quants)}"
    how = f"eaglecpp pull TARGET --draft hf.co/{repository.id}"
    return f"{repository.id} contains no GGUF model. If it is a drafter, pull it with its target: {how}"


def quant_of(name: str) -> str:
    """Returns the quantisation that a file's name contains, in capitals, or ""."""
    return next(reversed(_QUANT.findall(name)), "").upper()
