# SPDX-License-Identifier: MIT
"""Repositories of the Hugging Face Hub: what is in them, which GGUF is meant, and copies in local caches.

`huggingface_hub` knows the token, the address and the cache (HF_TOKEN, HF_ENDPOINT, HF_HOME ...). Lists and
files come through `download`: it cannot resume after a killed process (huggingface/huggingface_hub#4196), and
its HTTP library is another one in every major version. Rules for choosing a file are llama.cpp's (`-hf`:
common/download.cpp).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

import requests

from eaglecpp.references.reference import all_parts
from eaglecpp.store.errors import DigestError, DownloadError
from eaglecpp.store.remote.download import MAX_SMALL, Remote, Token, get, new_session

__all__ = [
    "HubFile",
    "Repository",
    "cached_models",
    "choose_drafter",
    "choose_model",
    "list_cached",
    "list_repository",
    "read_small",
]

_NEVER_MAIN = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
_PREFERRED = ("Q4_K_M", "Q8_0")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_QUANT = re.compile(
    r"(?i)(?<![A-Za-z0-9])(?:I?Q([1-8])(?:_[A-Z0-9]+)*|BF16|F16|F32|MXFP4|TQ[12]_0)(?![A-Za-z0-9])"
)


@dataclass(frozen=True)
class HubFile:
    """A file of a repository.

    path:   inside the repository; size: bytes
    digest: "sha256:..." of a large file, "" of a small one
    git:    git's hash of a small file, "" when not known
    cached: where a local cache has it
    """

    path: str
    size: int
    digest: str = ""
    git: str = ""
    cached: Path | None = None

    @property
    def name(self) -> str:
        """The last part of the path."""
        return PurePosixPath(self.path).name


@dataclass(frozen=True)
class Repository:
    """A repository at one commit. id: "user/name"."""

    id: str
    commit: str
    files: tuple[HubFile, ...]

    def file(self, path: str) -> HubFile | None:
        """The file at a path, or None."""
        return next((file for file in self.files if file.path == path), None)

    def url(self, file: HubFile) -> str:
        """Its address."""
        return f"{_endpoint()}/{self.id}/resolve/{quote(self.commit, safe='')}/{quote(file.path)}"

    def remote(self, file: HubFile) -> Remote:
        """Where to download a large file."""
        return Remote(
            self.url(file), file.digest, file.size, file.name, self.id, _token(), _access_help(self.id)
        )


def list_repository(repo_id: str, revision: str | None = None) -> Repository:
    """What a repository holds. Raises OfflineError without a connection, DownloadError for the rest."""
    at = f"/revision/{quote(revision, safe='')}" if revision else ""
    help = _access_help(repo_id)
    missing = f"no such repository on the Hub, or private. {help}"
    said = {401: missing, 403: f"gated on the Hub. {help}", 404: missing}
    with new_session() as session:
        url = f"{_endpoint()}/api/models/{repo_id}{at}?blobs=true"
        data = get(session, url, repo_id, _token(), help, said=said)
    try:
        info = json.loads(data)
        files = tuple(map(_file, info["siblings"]))
        return Repository(repo_id, str(info["sha"]), files)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DownloadError(f"{repo_id}: expected the Hub's list of files, found {data[:80]!r}") from error


def _file(entry: Mapping[str, Any]) -> HubFile:
    digest = f"sha256:{entry['lfs']['sha256']}" if entry.get("lfs") else ""
    git = "" if digest else str(entry.get("blobId") or "")
    return HubFile(str(entry["rfilename"]), int(entry.get("size") or 0), digest, git)


def list_cached(repo_id: str) -> Repository | None:
    """What local caches (huggingface_hub's, and llama.cpp's in the same layout) have of a repository."""
    folder = "models--" + repo_id.replace("/", "--")
    for root in _cache_roots():
        try:
            commit = (root / folder / "refs" / "main").read_text(encoding="utf-8").strip()
        except OSError:
            continue
        snapshot = root / folder / "snapshots" / commit
        files = []
        for path in sorted(snapshot.glob("**/*")):
            if path.is_file():
                blob = Path(os.path.realpath(path)).name
                digest = f"sha256:{blob}" if _SHA256.fullmatch(blob) else ""
                relative = path.relative_to(snapshot).as_posix()
                files.append(HubFile(relative, path.stat().st_size, digest, cached=path))
        if files:
            return Repository(repo_id, commit, tuple(files))
    return None


def cached_models() -> list[tuple[str, int]]:
    """Repositories of GGUF models in the local caches, and the bytes of what is there."""
    found = {}
    for root in _cache_roots():
        for folder in sorted(root.glob("models--*--*")):
            repo = folder.name.removeprefix("models--").replace("--", "/", 1)
            cached = list_cached(repo)
            files = [] if cached is None else _gguf_files(cached)
            if files:
                found[repo] = sum(file.size for file in files)
    return list(found.items())


def with_cached(repository: Repository) -> Repository:
    """The repository with its files pointing at local copies of the same content."""
    cached = list_cached(repository.id)
    have = {file.digest: file.cached for file in cached.files if file.digest} if cached is not None else {}
    files = tuple(
        HubFile(file.path, file.size, file.digest, file.git, have.get(file.digest))
        for file in repository.files
    )
    return Repository(repository.id, repository.commit, files)


def choose_model(repository: Repository, quant: str) -> tuple[HubFile, ...]:
    """The GGUF that `user/repo:quant` means, all parts of a split one in order.

    quant: a quantisation, a file name, or "" / "latest" for the usual one. Raises DownloadError listing what
    there is.
    """
    models = [file for file in _gguf_files(repository) if not file.name.lower().startswith(_NEVER_MAIN)]
    chosen = _pick(models, quant)
    if chosen is None:
        raise DownloadError(_no_model(repository, quant, models))
    return _with_parts(repository, chosen)


def choose_drafter(repository: Repository, target: HubFile | None = None, quant: str = "") -> HubFile | None:
    """The drafter GGUF in a repository, None without any.

    target: the target's file in it: the drafter nearest to its folder counts, then the one of the same
            quantisation, then the one with the nearest number of bits. Only `eagle3-*.gguf` is taken for a
            drafter beside a target, as in llama.cpp
    quant:  without a target: the quantisation asked for, "" for the usual one
    """
    files = _gguf_files(repository)
    drafters = [file for file in files if file.name.lower().startswith("eagle3")]
    if target is None:
        drafters = drafters or [file for file in files if "eagle" in file.name.lower()]
        if not drafters and not any(
            file.name.endswith((".safetensors", ".bin")) for file in repository.files
        ):
            drafters = files
        return _pick(drafters, quant) if quant else _pick(drafters, "Q8_0") or _pick(drafters, "")
    wanted = quant_of(target.name)

    def rank(file: HubFile) -> tuple[int, bool, float]:
        ours, theirs = PurePosixPath(file.path).parent.parts, PurePosixPath(target.path).parent.parts
        common = sum(1 for a, b in zip(ours, theirs, strict=False) if a == b)
        mine = quant_of(file.name)
        return -common, mine != wanted, abs(_bits(mine) - _bits(wanted))

    return min(drafters, key=rank, default=None)


def read_small(session: requests.Session, repository: Repository, file: HubFile) -> bytes:
    """The content of a small file (config, template), checked. Raises DownloadError, DigestError."""
    if file.size > MAX_SMALL:
        raise DownloadError(f"{repository.id}: {file.path}: {file.size} bytes; at most {MAX_SMALL} are read")
    if file.cached is not None:
        return file.cached.read_bytes()
    url = repository.url(file)
    data = get(session, url, f"{repository.id}: {file.path}", _token(), _access_help(repository.id))
    if file.digest:
        found, expected = f"sha256:{hashlib.sha256(data).hexdigest()}", file.digest
    else:
        found, expected = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(), file.git
    if expected and found != expected:
        raise DigestError(f"{repository.id}: {file.path}: expected {expected}, the server sent {found}")
    return data


def _gguf_files(repository: Repository) -> list[HubFile]:
    return [file for file in repository.files if file.name.lower().endswith(".gguf")]


def _pick(files: Sequence[HubFile], quant: str) -> HubFile | None:
    """The first file of a quantisation; one whose name has it as a word beats one that merely contains it."""
    if quant in ("", "latest"):
        for preferred in _PREFERRED:
            found = _pick(files, preferred)
            if found is not None:
                return found
        return files[0] if files else None
    lowered = quant.lower()
    for file in files:
        if lowered in (file.path.lower(), file.name.lower(), file.name.lower().removesuffix(".gguf")):
            return file
    for before in (r"(?:^|[^a-z0-9])", ""):  # F16 is not BF16, but UD-Q4_K_XL is one of Q4_K_XL
        pattern = re.compile(before + re.escape(lowered) + r"[.-]")
        for file in files:
            if pattern.search(file.name.lower()):
                return file
    return None


def _with_parts(repository: Repository, chosen: HubFile) -> tuple[HubFile, ...]:
    folder = chosen.path.removesuffix(chosen.name)
    parts = [repository.file(folder + name) for name in all_parts(chosen.name)]
    if None in parts:
        missing = [name for name, part in zip(all_parts(chosen.name), parts, strict=True) if part is None]
        raise DownloadError(
            f"{repository.id}: {chosen.path} is split, but these parts are missing: {', '.join(missing)}"
        )
    return tuple(part for part in parts if part is not None)


def _no_model(repository: Repository, quant: str, models: Sequence[HubFile]) -> str:
    if models:
        quants = sorted({quant_of(file.name) or file.name for file in models})
        return f"{repository.id}: no GGUF for {quant!r}; available: {', '.join(quants)}"
    if _gguf_files(repository) or any(f.name == "config.json" for f in repository.files):
        return (
            f"{repository.id}: it contains no GGUF model. If it is a drafter, name it with its target: "
            f"eaglecpp pull TARGET --draft hf.co/{repository.id}"
        )
    return f"{repository.id}: it contains no GGUF file"


def quant_of(name: str) -> str:
    """The quantisation in a file's name, in capitals; "" when there is none."""
    matches = list(_QUANT.finditer(name))
    return matches[-1][0].upper() if matches else ""


def _bits(quant: str) -> float:
    match = _QUANT.fullmatch(quant)
    if match is not None and match[1]:
        return float(match[1])
    return {"F32": 32.0, "F16": 16.0, "BF16": 16.0, "MXFP4": 4.0}.get(quant, 8.0)


def _cache_roots() -> list[Path]:
    from huggingface_hub import constants

    places = [os.environ.get("LLAMA_CACHE"), constants.HF_HUB_CACHE]
    return [Path(place).expanduser() for place in dict.fromkeys(places) if place]


def _endpoint() -> str:
    """llama.cpp's variable, or huggingface_hub's (HF_ENDPOINT)."""
    from huggingface_hub import constants

    return (os.environ.get("MODEL_ENDPOINT") or constants.ENDPOINT).rstrip("/")


def _token() -> Token:
    from huggingface_hub import get_token

    return Token(get_token())


def _access_help(repo_id: str) -> str:
    return (
        f"If it needs permission: accept its terms at https://huggingface.co/{repo_id}, and set HF_TOKEN or "
        "run `hf auth login`"
    )
