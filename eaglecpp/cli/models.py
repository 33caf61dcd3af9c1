# SPDX-License-Identifier: MIT
"""A model and a drafter as the command line names them, fetched if they are not on this machine.

`resolve_model` and `resolve_draft` know what is here; this adds what a user at a prompt expects: a missing
model is pulled, `--draft auto` finds a drafter, a drafter checkpoint of the Hub is converted once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from eaglecpp.cli.progress import Bars
from eaglecpp.cli.terminal import note, stderr_is_terminal
from eaglecpp.errors import MismatchError, ModelNotFoundError
from eaglecpp.locate import find_path
from eaglecpp.modelfile.names import ModelName
from eaglecpp.options import TEXT
from eaglecpp.store import DownloadError, ResolvedModel, Stores, resolve_draft, resolve_model
from eaglecpp.store.packaged import find_packaged
from eaglecpp.store.resolve import parse_reference

if TYPE_CHECKING:
    from eaglecpp.store.drafters import KnownDrafter

__all__ = ["Prepared", "prepare"]


@dataclass(frozen=True)
class Prepared:
    """What to load. draft: the one that was asked for, "text" for the text itself, else the model's own, else
    None.
    """

    model: ResolvedModel
    draft: Path | Literal["text"] | None


def prepare(
    reference: str, draft: str | None = None, *, wants_draft: bool = True, insecure: bool = False
) -> Prepared:
    """Looks both up, and fetches what is missing.

    draft:       as on the command line; "auto" is the model's own, the one in its repository, or the one the
                 table knows; where none of them can be had, that is said, and the model runs without. "text"
                 is none, for drafts from the text itself
    wants_draft: False when nothing will be drafted for now, so none is fetched
    insecure:    the model may come by http, or from a server whose certificate does not check out
    Raises ModelNotFoundError, DownloadError, StoreError, MismatchError, ConvertError.
    """
    with Bars() as bars:
        stores = Stores.open()
        model = _model(stores, reference, bars, insecure)
        if draft == TEXT:
            return Prepared(model, "text")
        if draft is None or (draft == "auto" and (model.draft is not None or not wants_draft)):
            if wants_draft and model.draft is None:
                _offer(model)
            return Prepared(model, model.draft)
        try:
            return Prepared(model, _here(stores, draft))
        except ModelNotFoundError:
            return Prepared(model, _fetched(stores, model, draft, bars) if wants_draft else None)


def _model(stores: Stores, reference: str, bars: Bars, insecure: bool) -> ResolvedModel:
    path = find_path(reference, "target")
    if path is not None:
        return ResolvedModel(reference, "path", path)
    try:
        return resolve_model(reference, stores)
    except ModelNotFoundError:
        name = parse_reference(reference)
        if find_packaged(name) is not None:
            raise  # which says how to get it
        _pull(stores, name, reference, bars, insecure)
    return resolve_model(reference, stores)


def _pull(stores: Stores, name: ModelName, reference: str, bars: Bars, insecure: bool) -> None:
    from eaglecpp.store.remote.pull import pull

    try:
        pull(stores, name, insecure=insecure, report=bars)
    except DownloadError as error:
        raise ModelNotFoundError(
            f"model {reference!r} is not on this machine (no such file, no stored model), and cannot be "
            f"fetched: {error}"
        ) from error


def _here(stores: Stores, draft: str) -> Path:
    """A drafter on this machine; "auto" is a word, not the name of one."""
    if draft == "auto":
        raise ModelNotFoundError(draft)
    return find_path(draft, "drafter") or resolve_draft(draft, stores)


def _fetched(stores: Stores, model: ResolvedModel, draft: str, bars: Bars) -> Path | None:
    from eaglecpp.convert import ConvertError
    from eaglecpp.store.facts import read_facts
    from eaglecpp.store.remote.find_draft import find_draft

    if draft != "auto":
        find_path(draft, "drafter")  # what can only be a path was not found: say so, with what is beside it
        facts = read_facts([model.target])
        return find_draft(stores, draft, Path.cwd(), [model.target], facts, report=bars).file
    try:
        return _automatic(stores, model, bars)
    except (DownloadError, MismatchError, ConvertError) as error:
        note(f"running without a drafter: {error}")
        return None


def _automatic(stores: Stores, model: ResolvedModel, bars: Bars) -> Path | None:
    from eaglecpp.store.facts import read_facts
    from eaglecpp.store.remote.drafter import fetch_drafter
    from eaglecpp.store.remote.pull import offer_drafter

    facts = read_facts([model.target])
    known = _beside(stores, model) or offer_drafter(model.name, [model.target], facts)
    if known is None:
        note(f"no drafter is known for {model.reference}; running without")
        return None
    return fetch_drafter(stores, known, facts, report=bars).draft_file()


def _beside(stores: Stores, model: ResolvedModel) -> KnownDrafter | None:
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
        repository = hub.with_cached(hub.list_repository(here.repo))
        target = hub.choose_model(repository, name.tag)[0]
    except DownloadError:  # not the drafter's fault: the table may know one that is here already
        return None
    return None if hub.choose_drafter(repository, target) is None else here


def _offer(model: ResolvedModel) -> None:
    """Tells someone at a terminal of a drafter they could have; by name only, which costs nothing."""
    if model.name is None or not stderr_is_terminal():
        return
    from eaglecpp.store.drafters import find_drafter

    known = find_drafter([str(model.name)], {})
    if known is not None:
        note(f"a drafter is known for this model ({known.repo}): --draft auto fetches and uses it")
