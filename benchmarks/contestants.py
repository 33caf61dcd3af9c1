# SPDX-License-Identifier: MIT
"""What `compare.py` compares on one target: our engines and llama.cpp's servers.

All are loaded at once and stay loaded; one generates while the others wait. Ours run in this process, each
planner in an engine of its own, because fixed strategies would teach it what they cost, and plain decoding in
one without a drafter. llama.cpp needs a server per setting: its `/completion` ignores `speculative.n_max`.
Nothing is read from or written to the planner's files on disk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import note
from compare_stats import LLAMA_PLAIN, OUR_PLAIN, Contestant
from compare_targets import BenchmarkTarget, block_size
from llama_server import LlamaServer

import eaglecpp
from eaglecpp.options import Strategy

# llama.cpp's name for a kind; "": not read
THEIRS = {"eagle": "", "eagle3": "draft-eagle3", "eagle31": "", "mtp": "draft-mtp"}
THEIRS |= {"dflash": "draft-dflash", "dspark": "draft-dspark", "dflash_ex": ""}


def their_kind(draft: str) -> str:
    """How llama.cpp drafts with a file of this architecture; what is no drafter is a small model."""
    return THEIRS.get(draft, "draft-simple")


@dataclass(frozen=True)
class Request:
    """One generation, the same for all: no end of text, nothing reused."""

    prompt: Sequence[int]
    n_tokens: int
    temperature: float
    seed: int

    def sampling(self) -> dict[str, Any]:
        """Options both know under the same name."""
        own = {"temperature": self.temperature, "seed": self.seed, "ignore_eos": True}
        return own | {"top_k": 40, "top_p": 0.95, "min_p": 0.05}


Generate = Callable[[Request], tuple[list[int], dict[str, Any]]]  # tokens, timings


@dataclass(frozen=True)
class Field:
    """The contestants, ready to run; `engine` is the one that decodes plainly."""

    generate: Mapping[Contestant, Generate]
    engine: eaglecpp.Engine

    @property
    def contestants(self) -> list[Contestant]:
        return list(self.generate)


@dataclass(frozen=True)
class Settings:
    """What runs besides plain decoding and the planner, and with what."""

    fixed: Sequence[str]
    n_max: Sequence[int]
    server: Path | None
    n_ctx: int
    n_threads: int
    with_ngram: bool = True
    text_drafts: bool = False
    options: Sequence[tuple[str, str]] = ()  # of our engines, as in eaglecpp.options


def line_up(drafts: Mapping[str, Path], settings: Settings) -> list[Contestant]:
    """Everybody, for these drafters by their kinds. llama.cpp's n_max of a block drafter: its default, 7, and
    the rows of a block, which are the most that it drafts.
    """
    found = [OUR_PLAIN]
    for draft in drafts:
        found.append(Contestant("eaglecpp", "planner", draft))
        found += [Contestant("eaglecpp", "fixed", draft, strategy) for strategy in settings.fixed]
    if settings.text_drafts:
        found.append(Contestant("eaglecpp", "planner", "text"))
    if settings.server is not None:
        found.append(LLAMA_PLAIN)
        for draft in filter(their_kind, drafts):
            is_block = draft in ("dflash", "dspark")
            depths = sorted({3, 7, block_size(drafts[draft])}) if is_block else settings.n_max
            found += [Contestant("llama.cpp", their_kind(draft), draft, str(n)) for n in depths]
        if settings.with_ngram:
            found.append(Contestant("llama.cpp", "ngram-mod"))
    return found


@contextlib.contextmanager
def open_field(target: BenchmarkTarget, settings: Settings) -> Iterator[Field]:
    """Loads everybody; all is released at the end."""
    generate: dict[Contestant, Generate] = {}
    engines: dict[tuple[str, str], eaglecpp.Engine] = {}
    contestants = line_up(target.drafts, settings)
    with contextlib.ExitStack() as stack:
        note(f"{target.name}: loading {len(contestants)} contestants")
        for one in contestants:
            if one.system == "llama.cpp":
                generate[one] = _theirs(stack.enter_context(_server(one, target, settings)))
                continue
            key = one.kind, one.draft
            if key not in engines:
                engines[key] = stack.enter_context(_engine(one, target, settings))
            generate[one] = _ours(engines[key], _strategy(one))
        yield Field(generate, engines[OUR_PLAIN.kind, OUR_PLAIN.draft])


def _strategy(one: Contestant) -> str:
    return {"plain": "off", "planner": "auto"}.get(one.kind, one.setting)


def _engine(one: Contestant, target: BenchmarkTarget, settings: Settings) -> eaglecpp.Engine:
    """The planner's is opened as a user would; the one for all fixed strategies has room for the largest."""
    limits: dict[str, Any] = {}
    if one.kind == "fixed":
        strategies = [Strategy.parse(text) for text in settings.fixed]
        limits = {"n_draft_max": max(s.nodes for s in strategies)}
        limits |= {"n_leaves_max": max(s.n_leaves for s in strategies)}
    return eaglecpp.Engine.open(
        target.path,
        draft=target.drafts.get(one.draft, one.draft or None),
        strategy=_strategy(one),
        n_ctx=settings.n_ctx,
        n_threads=settings.n_threads,
        planner_cache=False,
        **limits,
        **dict(settings.options),
    )


def _server(one: Contestant, target: BenchmarkTarget, settings: Settings) -> LlamaServer:
    assert settings.server is not None
    return LlamaServer(
        settings.server,
        target.path,
        draft=target.drafts[one.draft] if one.draft else None,
        kind=one.kind if one.draft else "draft-eagle3",
        n_max=int(one.setting) if one.draft else 0,
        n_ctx=settings.n_ctx,
        n_threads=settings.n_threads,
        extra=["--spec-type", "ngram-mod"] if one.kind == "ngram-mod" else [],
    )


def _ours(engine: eaglecpp.Engine, strategy: str) -> Generate:
    """Runs in a conversation of its own, so that no prefix is reused."""

    def generate(request: Request) -> tuple[list[int], dict[str, Any]]:
        with engine.session() as session:
            done = session.generate(
                request.prompt, max_tokens=request.n_tokens, strategy=strategy, **request.sampling()
            )
        return done.tokens, done.timings.as_dict()

    return generate


def _theirs(server: LlamaServer) -> Generate:
    def generate(request: Request) -> tuple[list[int], dict[str, Any]]:
        answer = server.complete_and_rest(request.prompt, request.n_tokens, **request.sampling())
        return answer.tokens, answer.timings

    return generate
