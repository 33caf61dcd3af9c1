# SPDX-License-Identifier: MIT
"""Finds the files of a reference as `find` does, but may use the network: pulls a missing model, resolves the
drafter `auto`, and converts a drafter checkpoint from the Hub once.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from eaglecpp.errors import EagleError, GgufError, ModelNotFoundError, UnsupportedError
from eaglecpp.opening.find import ModelFiles, find_path, find_target, with_draft
from eaglecpp.options import HEAD, TEXT
from eaglecpp.references import read_reference
from eaglecpp.store import DownloadError, Stores
from eaglecpp.store.errors import Report, silent

if TYPE_CHECKING:
    from eaglecpp.store.drafters import KnownDrafter


def fetch(
    reference: str | os.PathLike[str],
    draft: str | os.PathLike[str] | None = None,
    *,
    wants_draft: bool = True,
    insecure: bool = False,
    report: Report = silent,
) -> ModelFiles:
    """Finds model and drafter, and downloads missing files.

    draft:       a reference. "auto" selects the model's own drafter, else a drafter in the model's
        repository, else a drafter from the table of known drafters. If no drafter is available, the model
        runs without a drafter, and a notice gives the reason. "text" selects drafts from the text itself
    wants_draft: False if drafting is off, so that no drafter is fetched
    insecure:    allow http and invalid TLS certificates for the model
    Raises ModelNotFoundError, DownloadError, StoreError, MismatchError, ConvertError.
    """
    stores = Stores.open()
    model = _model(stores, os.fspath(reference), report, insecure)
    if draft == "auto" and wants_draft and model.draft is None:
        return _automatic(stores, model, report)
    try:
        files = with_draft(model, draft, stores)
    except ModelNotFoundError:
        if not wants_draft or draft is None:
            return model.using()
        find_path(draft, "drafter")  # for a missing path, this call raises an error that lists nearby files
        from eaglecpp.store.facts import read_facts
        from eaglecpp.store.remote.pull import find_draft

        facts, here = read_facts([model.target]), Path.cwd()
        file = find_draft(stores, os.fspath(draft), here, facts, report=report)
        return model.using(file, "requested, from the Hub", names_draft=True)
    offers = draft is None and wants_draft and files.draft is None
    return replace(files, offer=_offer(stores, model)) if offers else files


def _model(stores: Stores, reference: str, report: Report, insecure: bool) -> ModelFiles:
    find_path(reference, "target")  # `find_path` raises an error for a text that can only be a path
    try:
        return find_target(reference, stores)
    except ModelNotFoundError:
        pass
    from eaglecpp.store.remote.pull import pull  # the import is here, because it is slow

    try:
        pull(reference, insecure=insecure, report=report, stores=stores)
    except DownloadError as error:
        why = f"is not on this machine and cannot be downloaded: {error}{stores.near(reference)}"
        raise ModelNotFoundError(f"model {reference!r} {why}") from error
    return find_target(reference, stores)


def _automatic(stores: Stores, model: ModelFiles, report: Report) -> ModelFiles:
    """Adds a drafter to a model. Tries in order: the drafter of a stored model with the same content, a
    drafter in the model's repository, a drafter from the table of known drafters, the model's own prediction
    head, drafts from the text itself. A notice gives the reason for a fallback.
    """
    from eaglecpp.store.drafters import known_for
    from eaglecpp.store.facts import read_facts
    from eaglecpp.store.remote.pull import fetch_first

    if (original := stores.original_of(model.target)) is not None:
        why = f"auto: the drafter of {original.short_name}, since this is a copy of it"
        return model.using(original.draft_file(), why, names_draft=True)
    try:
        facts = read_facts([model.target])
    except (GgufError, UnsupportedError) as error:
        return model.using(notices=(f"running without a drafter: {error}",))
    known, why = known_for(str(model.name or ""), model.target.name, facts)
    if (sibling := _drafter_of_repository(stores, model)) is not None:
        known.insert(0, sibling)
    first, failed = fetch_first(stores, known, facts, report=report)
    if first is not None:
        match, file = first
        notices = (f"{failed}; using {match.repo} instead",) if failed else ()
        return model.using(file, f"auto: {match.why}", names_draft=True, notices=notices)
    if facts.has_head:
        origin = f"auto: its own head, because {failed or why}"
        return with_draft(model, HEAD).using(model.target, origin)
    return replace(with_draft(model, TEXT), notices=(f"{failed or why}; drafting from the text itself",))


def _drafter_of_repository(stores: Stores, model: ModelFiles) -> KnownDrafter | None:
    """Returns the drafter in the target's own repository, or None. Queries the Hub only if no earlier run has
    fetched this drafter.
    """
    from eaglecpp.store.drafters import KnownDrafter
    from eaglecpp.store.remote import hub

    name = model.name
    if name is None or not name.is_hub:
        return None
    here = KnownDrafter(name.repository, matched="the same repository")
    if any(stored.is_drafter and stored.name.with_tag(name.tag).same_as(name) for stored in stores.models()):
        return here
    try:
        repository = hub.find_repository(here.repo)
        target = hub.choose_model(repository, name.tag)[0]
    except DownloadError:  # the known drafter may already be on this machine
        return None
    return None if hub.choose_drafter(repository, target) is None else here


def _offer(stores: Stores, model: ModelFiles) -> str:
    """Returns advice for the user: a drafter that fits the model, or where to search for a drafter. Models
    are recognised by content, name and metadata. So a copy under another name or in Ollama's store is
    recognised too.
    """
    from eaglecpp.store.drafters import known_for
    from eaglecpp.store.facts import read_facts

    if (original := stores.original_of(model.target)) is not None:
        return f"this is a copy of {original.short_name}: --draft {original.short_name} uses its drafter"
    known: list[KnownDrafter] = []
    with contextlib.suppress(EagleError):  # an invalid file is reported later, when the model is opened
        known, _ = known_for(str(model.name or ""), model.target.name, read_facts([model.target]))
    if not known:
        return f"`eaglecpp drafters {shlex.quote(model.reference)}` lists drafters that could fit"
    how = "uses it" if known[0].file else "downloads and uses it"
    return f"a drafter is known for this model ({known[0].why}): --draft auto {how}"


@contextlib.contextmanager
def local_checkpoint(text: str, report: Report = silent) -> Iterator[tuple[Path, str | None]]:
    """Yields a drafter checkpoint's file or folder, and the OWNER/NAME of its repository, or None for a local
    checkpoint. The file or folder may be deleted after the `with` block. Raises ModelNotFoundError,
    DownloadError.
    """
    try:
        reference = read_reference(text)
    except (OSError, EagleError) as error:
        raise ModelNotFoundError(f"checkpoint {text!r}: {error}") from None
    if isinstance(reference, Path):
        yield reference, None
        return
    if not reference.is_hub:
        hint = f"; for a repository on the Hub write hf.co/{text}" if text.count("/") == 1 else ""
        raise ModelNotFoundError(f"checkpoint {text!r}: no such file or folder{hint}")
    from eaglecpp.store.remote import hub

    repository = hub.find_repository(reference.repository)
    with tempfile.TemporaryDirectory(prefix="eaglecpp-") as folder:
        root = Stores.open().own.root
        yield hub.fetch_checkpoint(root, repository, "", Path(folder), report), repository.id
