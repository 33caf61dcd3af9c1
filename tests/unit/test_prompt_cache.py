# SPDX-License-Identifier: MIT
"""Tests prompts that are stored in files. They are used after a restart, give the same texts, and are always
verified.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eaglecpp import Engine
from eaglecpp._extension import core
from eaglecpp.engine import prompt_cache
from eaglecpp.engine.async_engine import AsyncEngine
from eaglecpp.engine.prompt_cache import LEAST, PromptCache
from eaglecpp.errors import EngineBusyError
from helpers.kills import killed_everywhere
from helpers.models import Models
from helpers.random_block import BlockShape
from helpers.tiny_arch import make_forgetful_hybrid, make_hybrid, make_latent, make_recurrent, make_windowed

MADE = {
    "windowed": make_windowed,
    "latent": make_latent,
    "hybrid": make_hybrid,
    "recurrent": make_recurrent,
    "forgetful": make_forgetful_hybrid,
}
WITH_STATE = {"hybrid", "recurrent", "forgetful"}
every_kind = pytest.mark.parametrize("pair", ["plain", *MADE], indirect=True)
N_PROMPT = 640
N_BATCH = 512
N_TAIL = 8
GREEDY: dict[str, Any] = {"max_tokens": 24, "temperature": 0.0}
SAMPLED: dict[str, Any] = {"max_tokens": 24, "temperature": 0.9, "seed": 5}


@pytest.fixture(autouse=True)
def _own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLECPP_HOME", str(tmp_path / "home"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "prompts"


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    """Returns the kind of the caches of `pair`."""
    return str(request.node.callspec.params["pair"]) if hasattr(request.node, "callspec") else "plain"


@pytest.fixture
def pair(request: pytest.FixtureRequest, models: Models, tmp_path: Path) -> Models:
    return MADE[request.param](tmp_path) if getattr(request, "param", "plain") in MADE else models


@pytest.fixture
def opened(pair: Models, folder: Path) -> Callable[..., Engine]:
    def make(draft: Path | None = pair.draft, **options: Any) -> Engine:
        given = {"n_ctx": 1024, "n_threads": 1, "exact": "off", "prompt_cache": str(folder)} | options
        return Engine.open(pair.target, draft, **given)

    return make


def prompt(n: int = N_PROMPT, start: int = 0) -> list[int]:
    return [40 + (start + i * i) % 60 for i in range(n)]


def files(folder: Path) -> list[Path]:
    return sorted(path for path, _ in prompt_cache._files(folder))


HEADER = struct.Struct("<QII12iQQ12Q")
"""Header of a blob: checksum, magic, version, n_tokens, n_past, inexact_from, n_draft_rows, n_aux, n_embd,
first, n_rows, n_replay, n_images, n_ends, ends_anywhere, n_draft, n_target; of each end n and n_bytes.
"""
N_ENDS, N_TARGET, FIRST_END = 13, 16, 17


def saved(blob: bytes, *, is_sealed: bool = True) -> core.SavedSequence:
    made = core.SavedSequence(len(blob))
    made.blob[: len(blob)] = blob
    if is_sealed:
        made.seal()
    made.check()
    return made


def state(tokens: list[int], n_bytes: int = 3000) -> core.SavedSequence:
    """Builds the contents of a file for a plausible conversation, with a valid MAC."""
    n = len(tokens)
    numbers = (0, 0x4C474145, 2, n, n, 2**31 - 1, 5, 2, 8, 3, 2, 0, 0, 1, 0, 40, n_bytes, n - 3, 24)
    header = HEADER.pack(*numbers, *[0] * 10)
    rows = bytes(i * 3 % 251 for i in range(128 + 40 + 24 + n_bytes))
    return saved(header + np.array(tokens, np.int32).tobytes() + rows)


def changed(one: core.SavedSequence, at: int, value: int) -> bytes:
    header = list(HEADER.unpack(one.blob[: HEADER.size]))
    header[at] = value
    return HEADER.pack(*header) + bytes(one.blob[HEADER.size :])


# Answers from saved prompts


@pytest.mark.parametrize(
    ("pair", "draft", "sampling"),
    [
        *(("plain", draft, how) for draft in ("eagle", "text", "none") for how in (GREEDY, SAMPLED)),
        *((kind, "eagle", SAMPLED) for kind in MADE),
        ("plain", "block", GREEDY),
    ],
    indirect=["pair"],
)
def test_a_prompt_is_not_read_again_after_a_restart(
    draft: str, sampling: dict[str, Any], kind: str, pair: Models, opened: Callable[..., Engine], folder: Path
) -> None:
    sampling = sampling | ({} if draft == "none" else {"strategy": "chain:3"})
    chosen = {"eagle": pair.draft, "text": "text"}.get(draft)
    if draft == "block":
        chosen = BlockShape(kind="dspark").gguf(folder.parent, pair.target)
    n_again = N_PROMPT - (N_TAIL if kind in WITH_STATE else 1)
    n_left = 600 if kind in ("plain", "latent") else N_BATCH
    with opened(chosen, prompt_cache="") as engine:
        plain = engine.generate(prompt(), **sampling)
    assert not folder.exists()
    with opened(chosen) as engine:
        assert engine.generate(prompt(), **sampling).tokens == plain.tokens
    (file,) = files(folder)
    assert file.stat().st_mode & 0o077 == 0 and folder.stat().st_mode & 0o077 == 0
    with opened(chosen) as engine:
        again = engine.generate(prompt(), **sampling)
        assert again.tokens == plain.tokens
        assert again.timings.reused_n == n_again
        assert again.timings.draft_n == plain.timings.draft_n
        assert again.timings.draft_n_accepted == plain.timings.draft_n_accepted
        # The first text continues from the answer. The second text differs from the answer.
        for end, n in (([*prompt(), *plain.tokens, 50], N_PROMPT), ([*prompt(600), 41, 42, 43], n_left)):
            engine.clear()
            assert engine.generate(end, **sampling).timings.reused_n >= n
    with opened(chosen, prompt_cache="") as engine:
        expected = engine.generate([*prompt(600), 41, 42, 43], **sampling)
    with opened(chosen) as engine:
        left = engine.generate([*prompt(600), 41, 42, 43], **sampling)
        assert left.timings.reused_n >= n_left and left.tokens == expected.tokens


@every_kind
def test_the_text_behind_a_kept_prompt_has_the_bits_of_plain_decoding(pair: Models, folder: Path) -> None:
    """Tests the tokens and their log-probabilities. The cells of a loaded window must keep their order,
    because attention sums over cells in this order.
    """
    options: dict[str, Any] = {"n_ctx": 1024, "n_threads": 1, "planner_cache": False}
    ends = [prompt(), [*prompt(), 50, 51, 52], [*prompt(560), 41, 42, 43]]
    sampling = SAMPLED | {"ignore_eos": True, "max_tokens": 40, "n_probs": 1}
    with Engine.open(pair.target, **options) as engine:
        expected = [engine.generate(end, **sampling, cache_prompt=False) for end in ends]
    with Engine.open(pair.target, pair.draft, **options, prompt_cache=str(folder)) as engine:
        engine.generate(prompt(), **sampling, strategy="chain:4")
    for strategy in ("off", "chain:3", "tree:k=2,depth=3,nodes=6", "auto"):
        with Engine.open(pair.target, pair.draft, **options, prompt_cache=str(folder)) as engine:
            for end, plain in zip(ends, expected, strict=True):
                if strategy != "auto":  # `auto` continues from the rows of the previous text
                    engine.clear()
                found = engine.generate(end, **sampling, strategy=strategy)
                assert found.tokens == plain.tokens and found.timings.reused_n >= N_BATCH, strategy
                assert found.logprobs == plain.logprobs, strategy


def test_rows_are_used_only_if_their_dependencies_are_unchanged(
    models: Models, base_model: Path, opened: Callable[..., Engine]
) -> None:
    with opened() as engine:
        engine.generate(prompt(), **GREEDY)
    for options in ({"draft": None}, {"type_k": "q8_0"}, {"rope_freq_scale": 0.5}, {"n_batch": 64}):
        with opened(**options) as engine:
            assert engine.generate(prompt(), **GREEDY).timings.reused_n == 0, options
    with opened(n_ctx=2048) as engine:
        assert engine.generate(prompt(), **GREEDY).timings.reused_n == N_PROMPT - 1, "n_ctx must not matter"
    os.utime(models.target)  # a file that is written again gets a new modification time
    with opened() as engine:
        assert engine.generate(prompt(), **GREEDY).timings.reused_n == 0


def test_a_continued_conversation_has_one_file(opened: Callable[..., Engine], folder: Path) -> None:
    with opened() as engine:
        assert engine.shared.prompts is not None
        # The text of the last prompt differs from the other texts.
        for text in (prompt(LEAST // 2), prompt(), prompt(900), prompt(start=7)):
            engine.generate(text, **GREEDY)
            engine.shared.prompts.flush()  # waits for the file, because only one file is written at a time
    assert len(files(folder)) == 2, "short texts must not be kept"
    with opened() as engine:
        assert engine.generate(prompt(), cache_prompt=False, **GREEDY).timings.reused_n == 0
        assert engine.generate(prompt(900), **GREEDY).timings.reused_n == 899
        assert engine.generate(prompt(start=7), **GREEDY).timings.reused_n == N_PROMPT - 1


@pytest.mark.parametrize("pair", ["plain", "windowed", "hybrid"], indirect=True)
async def test_slots_of_an_async_engine(kind: str, pair: Models, folder: Path) -> None:
    """Runs more conversations than an async engine has slots. Swapped-out conversations are stored in files
    at once, and all other conversations when the engine closes.
    """
    options: dict[str, Any] = {"n_ctx": 1024, "n_threads": 1, "exact": "off", "n_parallel": 2}
    texts = [prompt(start=5 * i) for i in range(4)]

    async def talk(**more: Any) -> list[Any]:
        async with await AsyncEngine.open(pair.target, pair.draft, **options, **more) as engine:
            return list(await asyncio.gather(*(engine.generate(text, **GREEDY) for text in texts)))

    plain = await talk()
    first = await talk(prompt_cache=str(folder))
    assert len(files(folder)) >= 2
    again = await talk(prompt_cache=str(folder))
    assert [one.tokens for one in first] == [one.tokens for one in again] == [one.tokens for one in plain]
    n_again = N_PROMPT - (N_TAIL if kind in WITH_STATE else 1)
    assert sum(one.timings.reused_n == n_again for one in again) >= 2


async def test_a_conversation_that_grew_a_little_is_saved_at_the_end(models: Models, folder: Path) -> None:
    options: dict[str, Any] = {"n_threads": 1, "exact": "off", "n_parallel": 1, "prompt_cache": str(folder)}
    whole = [*prompt(), *prompt(80, start=9)]

    async def reused(*texts: list[int]) -> int:
        async with await AsyncEngine.open(models.target, None, n_ctx=1024, **options) as engine:
            return [(await engine.generate(text, **GREEDY)).timings.reused_n for text in texts][-1]

    await reused(prompt(), whole)
    assert await reused(whole) == len(whole) - 1


async def test_a_generating_slot_is_not_saved(models: Models, folder: Path) -> None:
    options: dict[str, Any] = {"n_threads": 1, "exact": "off", "n_parallel": 1, "prompt_cache": str(folder)}

    async with await AsyncEngine.open(models.target, None, n_ctx=1024, **options) as engine:
        stream = engine.stream(prompt(40), max_tokens=500, temperature=0.0, ignore_eos=True)
        await anext(stream)
        with pytest.raises(EngineBusyError):
            await engine.erase_slot(0)
        stream.cancel()


def test_caches_of_their_own_are_kept(pair: Models, folder: Path) -> None:
    """Tests conversations with separate caches. llama.cpp cannot copy cells between separate caches, so a
    sliding window is only stored for the end of a text.
    """
    options: dict[str, Any] = {"n_ctx": 1024, "n_threads": 1, "separate_caches": True, "n_sequences": 2}
    longer = [*prompt(), *prompt(60, start=3)]
    for target in (pair.target, make_windowed(folder.parent).target):
        for n in (0, N_PROMPT):
            with Engine.open(target, **options, prompt_cache=str(folder)) as engine:
                found = engine.generate(longer if n else prompt(), temperature=0.0, max_tokens=1)
                assert found.timings.reused_n == n


def test_targets_that_cannot_be_kept_say_so(
    models: Models, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(prompt_cache, "no_cache_reason", lambda *_: "its sparse attention counts in cells")
    with Engine.open(models.target, n_ctx=256, prompt_cache=str(folder)) as engine:
        assert engine.shared.prompts is None
    assert caplog.text.count("no prompts are saved, because its sparse attention") == 1


# The files of the cache


@pytest.fixture
def cache(folder: Path) -> Iterator[PromptCache]:
    made = PromptCache(folder, 1 << 20, "this model")
    yield made
    made.close()


def written(cache: PromptCache, tokens: list[int], **options: Any) -> Path:
    before = set(files(cache.folder))
    assert cache.write(state(tokens, **options)).result() > 0
    (new,) = set(files(cache.folder)) - before
    return new


def test_no_damaged_file_is_used(cache: PromptCache) -> None:
    """Changes every byte of the file's head and many other bytes, and cuts the file at many positions."""
    file = written(cache, prompt(LEAST), n_bytes=300)
    whole = file.read_bytes()
    look = [*prompt(LEAST), 1]
    # Only a sample of the head's 2,400 bytes is changed. The head's MAC is checked before its content, so a
    # sample is enough.
    places = {*range(64), *range(64, len(whole) - 600, 97), *range(len(whole) - 600, len(whole), 3)}
    damages = [whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :] for at in sorted(places)]
    damages += [
        whole[:n] for n in {0, 1, 15, 16, 23, 24, 100, len(whole) // 2, len(whole) - 32, len(whole) - 1}
    ]
    damages += [whole + b"\0", whole + whole, os.urandom(len(whole)), b""]
    other = PromptCache(cache.folder.with_name("other"), 1 << 20, "another model")
    damages.append(written(other, prompt(LEAST), n_bytes=300).read_bytes())
    other.close()
    for damaged in damages:
        file.unlink()
        file.write_bytes(damaged)
        cache._entries.clear()
        assert cache.fetch(look, 0).result() is None
    file.write_bytes(whole)
    cache._entries.clear()
    assert cache.fetch(look, 0).result() is not None


def test_a_file_without_the_key_is_refused(
    cache: PromptCache, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLECPP_HOME", str(tmp_path / "stranger"))
    theirs = PromptCache(folder, 1 << 20, "this model")
    written(theirs, prompt())
    theirs.close()
    assert cache.fetch([*prompt(), 1], 0).result() is None


def test_the_head_of_a_file_is_verified(cache: PromptCache, folder: Path) -> None:
    other = PromptCache(folder.with_name("other"), 1 << 20, "another model")
    file = written(other, prompt())
    other.close()
    ours = file.name.replace(other._of[:16], cache._of[:16])
    (folder / ours).write_bytes(file.read_bytes().replace(other._of.encode(), cache._of.encode()))
    assert cache.fetch([*prompt(), 1], 0).result() is None


@every_kind
def test_sizes_are_checked_even_with_the_key(kind: str, opened: Callable[..., Engine]) -> None:
    """Tests file heads with sizes that exceed the file, or with values that no conversation can have."""
    good = state(prompt())
    for at, value in (
        (1, 0), (2, 3), (3, 641), (3, -1), (7, 2**31 - 1), (8, 2**31 - 1), (12, 1), (12, -1),
        (N_ENDS, 7), (N_TARGET - 1, 2**64 - 1), (N_TARGET, 1 << 62),
        (FIRST_END, N_PROMPT + 1), (FIRST_END, 0), (FIRST_END + 1, 2**64 - 24),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="expected version 2"):
            saved(changed(good, at, value))
    for end in (0, 1, HEADER.size - 1, HEADER.size, good.n_bytes - 1):
        with pytest.raises(ValueError, match="expected version 2"):
            saved(bytes(good.blob[:end]), is_sealed=False)
    with pytest.raises(ValueError, match="correct checksum"):
        saved(bytes(good.blob[:-1]) + b"\xff", is_sealed=False)
    # In another process, the token ids of an image may stand for another image.
    with pytest.raises(ValueError, match="tokens of images"):
        saved(bytes(good.blob[: HEADER.size]) + b"\xfb\xff\xff\xff" + bytes(good.blob[HEADER.size + 4 :]))
    # The engine tries to load each damaged file.
    with opened(prompt_cache="") as engine:
        engine.generate(prompt(), **GREEDY)
        sequence = engine.default_session.slot
        own = sequence.offload()
        assert own is not None
        unchecked = core.SavedSequence(own.n_bytes)
        unchecked.blob[:] = own.blob
        assert (unchecked.n_past, unchecked.tokens, core.SavedSequence(0).tokens) == (0, [], [])
        assert not sequence.restore(unchecked)
        # Wrong values of n_past, n_draft_rows, first and n_replay, and tokens outside the vocabulary.
        for at, value in [(4, 1), (4, 700), (6, 700), (6, 3), (9, 700), (11, -1), (11, 2000)]:
            with contextlib.suppress(ValueError):
                assert not sequence.restore(saved(changed(own, at, value)))
        n_tokens = HEADER.size + 4 * len(own.tokens)
        ids = np.full(len(own.tokens), 2**30, np.int32).tobytes()
        assert not sequence.restore(saved(bytes(own.blob[: HEADER.size]) + ids + bytes(own.blob[n_tokens:])))
        # Bytes that llama.cpp itself refuses to load.
        header = HEADER.unpack(own.blob[: HEADER.size])
        n_target, random = header[N_TARGET], np.random.default_rng(1)
        assert not sequence.restore(saved(bytes(own.blob[:-n_target]) + random.bytes(n_target)))
        assert engine.generate(prompt(), **GREEDY).timings.reused_n == 0
        # Checkpoints with wrong bytes or a wrong length.
        for at in range(header[N_ENDS]):
            n, n_end, *behind = header[FIRST_END + 2 * at :]
            n_behind = n_target + sum(behind[1::2])
            noise = bytes(own.blob[: -n_behind - n_end]) + random.bytes(n_end) + bytes(own.blob[-n_behind:])
            for bad in (noise, changed(own, FIRST_END + 2 * at, n - 1)):
                assert sequence.restore(saved(bad))
                assert engine.generate([*prompt(n), 41, 42], **GREEDY).timings.reused_n < n
        assert (kind in ("plain", "latent")) == (header[N_ENDS] == 0)


def test_kills_at_every_moment_leave_the_old_or_the_new(cache: PromptCache, folder: Path) -> None:
    new = state(prompt())

    def check() -> None:
        for file in files(folder):
            assert cache._read(file).blob == new.blob

    path = folder / f"{cache._of[:16]}-{'0' * 16}.eagle-prompt"
    assert killed_everywhere(folder, lambda: cache._write(path, new), check) > 3
    check()
    assert files(folder) == [path]
    PromptCache(folder, 1 << 20, "this model").close()
    assert list(folder.iterdir()) == [path], "leftovers of killed processes must be removed"


def test_a_full_disk_is_reported_once_and_leaves_no_file(
    cache: PromptCache, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("eaglecpp.convert.files.sync", full)
    assert [cache.write(state(prompt(start=i))).result() for i in range(3)] == [0, 0, 0]
    assert not list(folder.iterdir())
    assert [record.levelname for record in caplog.records].count("WARNING") == 1


def test_the_quota_holds_and_the_last_used_file_stays(folder: Path) -> None:
    a_file = 4096
    cache = PromptCache(folder, 4 * (a_file + 7000), "this model")
    for i in range(4):
        file = written(cache, prompt(start=i), n_bytes=a_file - 200)
        os.utime(file, (i, i))
    assert len(files(folder)) == 4
    assert cache.fetch([*prompt(start=0), 1], 0).result() is not None, "reading must mark the file as used"
    written(cache, prompt(start=9), n_bytes=a_file - 200)
    assert sum(file.stat().st_size for file in files(folder)) <= cache._n_bytes_max
    assert cache.fetch([*prompt(start=0), 1], 0).result() is not None
    assert cache.fetch([*prompt(start=1), 1], 0).result() is None
    assert cache.write(state(prompt(), n_bytes=1 << 20)).result() == 0, "the state is above the limit"
    assert len(files(folder)) >= 3, "a refused state must not evict other files"
    cache.close()


def test_the_key_is_private_to_the_user(folder: Path, tmp_path: Path) -> None:
    key = tmp_path / "home" / "prompt-cache.key"
    PromptCache(folder, 1 << 20, "this model").close()
    first = key.read_bytes()
    assert len(first) == 32 and (os.name == "nt" or key.stat().st_mode & 0o777 == 0o600)
    assert prompt_cache._key() == first
    key.chmod(0o644)
    second = prompt_cache._key()
    assert second != first, "a key that others could read must be replaced"
    key.write_bytes(b"short")
    assert len(prompt_cache._key()) == 32
    assert [path.name for path in key.parent.iterdir()] == [key.name]
