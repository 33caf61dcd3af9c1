# SPDX-License-Identifier: MIT
"""As `find`, but may use the network: a missing model is pulled, `auto` finds a drafter, and a drafter
checkpoint on the Hub is converted once.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from eaglecpp.errors import GgufError, MismatchError, ModelNotFoundError, UnsupportedError
from eaglecpp.opening.find import (
    Found,
    ResolvedModel,
    find_drafter,
    find_path,
    find_target,
    with_own_draft,
    with_own_head,
)
from eaglecpp.options import HEAD, TEXT
from eaglecpp.references.reference import model_name
from eaglecpp.store import DownloadError, Report, Stores
from eaglecpp.store.errors import silent
from eaglecpp.store.packaged import find_packaged

if TYPE_CHECKING:
    from eaglecpp.store.drafters import KnownDrafter

__all__ = ["fetch"]


def fetch(
    reference: str | os.PathLike[str],
    draft: str | os.PathLike[str] | None = None,
    *,
    wants_draft: bool = True,
    insecure: bool = False,
    report: Report = silent,
) -> Found:
    """Looks model and drafter up, and fetches what is missing.

    draft:       a reference; "auto" is the model's own, the one in its repository, or the one the table
                 knows; where none of them can be had, a notice says so, and the model runs without. "text" is
                 none, for drafts from the text itself
    wants_draft: False when nothing will be drafted for now, so none is fetched
    insecure:    the model may come by http, or from a server whose certificate does not check out
    Raises ModelNotFoundError, DownloadError, StoreError, MismatchError, ConvertError.
    """
    stores = Stores.open()
    model = _model(stores, os.fspath(reference), report, insecure)
    if draft is None:
        found = with_own_draft(model)
        return replace(found, offer=_offer(model)) if wants_draft and model.draft is None else found
    text = os.fspath(draft)
    if text == TEXT:
        return Found(model, drafts_text=True)
    if text == HEAD:
        return with_own_head(model)
    if text != "auto":
        return Found(model, *_named(stores, model, text, wants_draft, report))
    if model.draft is not None or not wants_draft:
        return replace(with_own_draft(model), draft_asked=model.draft is not None)
    return _automatic(stores, model, report)


def _model(stores: Stores, reference: str, report: Report, insecure: bool) -> ResolvedModel:
    find_path(reference, "target")  # what can only be a path and is none
    try:
        return find_target(reference, stores)
    except ModelNotFoundError:
        if find_packaged(model_name(reference)) is not None:
            raise  # which says how to get it
    from eaglecpp.store.remote.pull import pull  # slow to load, as is all that fetches

    try:
        pull(reference, insecure=insecure, report=report, stores=stores)
    except DownloadError as error:
        raise ModelNotFoundError(
            f"model {reference!r} is not on this machine (no such file, no stored model), and cannot be "
            f"downloaded: {error}"
        ) from error
    return find_target(reference, stores)


def _named(
    stores: Stores, model: ResolvedModel, draft: str, wants_draft: bool, report: Report
) -> tuple[Path | None, str, bool, bool]:
    """The fields of `Found` for a drafter by reference: from this machine, else fetched."""
    try:
        return find_drafter(draft, stores), "asked for", False, True
    except ModelNotFoundError:
        if not wants_draft:
            return None, "", False, False
    find_path(draft, "drafter")  # what can only be a path was not found: say so, with what is next to it
    from eaglecpp.store.facts import read_facts
    from eaglecpp.store.remote.drafter import find_draft

    facts = read_facts([model.target])
    file = find_draft(stores, draft, Path.cwd(), facts, report=report).file
    return file, "requested, from the Hub", False, True


def _automatic(stores: Stores, model: ResolvedModel, report: Report) -> Found:
    """The drafter of the model's repository, or of the table."""
    from eaglecpp.convert import errors
    from eaglecpp.store.drafters import why_none
    from eaglecpp.store.facts import read_facts
    from eaglecpp.store.remote.drafter import fetch_drafter
    from eaglecpp.store.remote.pull import known_matches, offer_drafter

    try:
        facts = read_facts([model.target])
        sibling = _drafter_of_repository(stores, model)
        match = None if sibling else offer_drafter(model.name, [model.target], facts)
        known = sibling or (match.drafter if match else None)
        if known is None and facts.has_head:
            return with_own_head(model, "auto: no EAGLE drafter is known, ")
        if known is None:
            why = why_none(model.reference, known_matches(model.name, [model.target], facts))
            return Found(model, notices=(f"{why}; running without",))
        file = fetch_drafter(stores, known, facts, report=report).draft_file()
        why = match.why if match else f"{known.repo}, {known.source}"
        notices = (match.warning,) if match and match.warning else ()
        return Found(model, file, f"auto: {why}", draft_asked=True, notices=notices)
    except (DownloadError, MismatchError, errors.ConvertError, GgufError, UnsupportedError) as error:
        return Found(model, notices=(f"running without a drafter: {error}",))


def _drafter_of_repository(stores: Stores, model: ResolvedModel) -> KnownDrafter | None:
    """The drafter in the repository that the target is from, if there is one. Asks the Hub only where no
    earlier run has fetched it.
    """
    from eaglecpp.store.drafters import KnownDrafter
    from eaglecpp.store.remote import hub

    name = model.name
    if name is None or not name.is_hub:
        return None
    here = KnownDrafter.unlisted(f"{name.namespace}/{name.model}", "the same repository")
    if any(one.is_drafter and replace(one.name, tag=name.tag).same_as(name) for one in stores.models()):
        return here
    try:
        repository = hub.find_repository(here.repo)
        target = hub.choose_model(repository, name.tag)[0]
    except DownloadError:  # not the drafter's fault: the table may know one that is here already
        return None
    return None if hub.choose_drafter(repository, target) is None else here


def _offer(model: ResolvedModel) -> str:
    """A drafter that someone could have, in words; by name only, which costs nothing."""
    from eaglecpp.store.drafters import find_drafter

    known = None if model.name is None else find_drafter([str(model.name)], {})
    if known is None:
        return ""
    return f"a drafter is known for this model ({known.repo}): --draft auto downloads and uses it"
