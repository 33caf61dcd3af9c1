# SPDX-License-Identifier: MIT
"""Tests AsyncEngine: many tasks share one engine thread, and each task gets the same text as alone."""

from __future__ import annotations

import asyncio
import copy
import itertools
import math
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eaglecpp import Engine
from eaglecpp.engine.async_engine import AsyncEngine
from eaglecpp.engine.exactness import Exactness
from eaglecpp.engine.prompt_cache import PromptCache
from eaglecpp.engine.slots import FairLock, Slots
from eaglecpp.errors import EngineBrokenError, GrammarError, InvalidStateError
from eaglecpp.results import Completion
from eaglecpp.server.shared import Metrics
from helpers.models import Models
from helpers.script import run_script
from helpers.tiny_arch import make_hybrid

PROMPTS = ("ab cd ef", "gh ij", "ab cd kl mn", "op", "ab")
# This grammar can match each "a" in two thousand ways. After each "a" comes a rule that is too wide for the
# matcher.
WIDE = '\nwide ::= "(" wide ")" | ' + '"a"? ' * 1200
TEXT = "ab cd ef gh ij"
OPTIONS: dict[str, Any] = {"max_tokens": 24, "temperature": 0.8, "seed": 3, "strategy": "chain:3"}


async def opened(models: Models, **options: Any) -> AsyncEngine:
    given = {"n_parallel": 2, "n_ctx": 256, "n_threads": 1, "exact": "off"} | options
    return await AsyncEngine.open(models.target, models.draft, **given)


async def test_a_cancelled_opening_leaves_nothing(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Engine] = []
    real = Engine.open
    monkeypatch.setattr(Engine, "open", lambda *a, **options: made.append(real(*a, **options)) or made[-1])
    others = set(threading.enumerate())

    def ours() -> list[threading.Thread]:
        threads = set(threading.enumerate()) - others
        return [thread for thread in threads if thread.name == "eaglecpp-engine"]

    opening = asyncio.create_task(opened(models))
    while not ours():
        await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    while ours():
        await asyncio.sleep(0.01)
    assert all(engine.closed for engine in made)


async def test_chats_equal_those_of_an_engine(models: Models) -> None:
    messages = [{"role": "user", "content": "hello"}]
    with Engine.open(models.target, models.draft, n_ctx=256, n_threads=1, exact="off") as engine:
        alone = engine.chat(messages, **OPTIONS)

    async with await opened(models) as engine:
        result = await engine.chat(messages, **OPTIONS)
        assert (result.tokens, result.message) == (alone.tokens, alone.message)
        async with await engine.chat(messages, stream=True, **OPTIONS) as stream:
            assert await stream.started(30) and stream.queue_ms >= 0
            chunks = [chunk async for chunk in stream]
        assert [token for chunk in chunks for token in chunk.tokens] == alone.tokens
        assert stream.completion().message == alone.message
        with pytest.raises(TypeError, match="expected a list of messages"):
            await engine.chat("hello", **OPTIONS)  # type: ignore[call-overload]
        with pytest.raises(GrammarError):
            await engine.chat(messages, grammar="root ::= (")


@pytest.mark.parametrize("stop", [[], ["zz no such text"]])
async def test_fast_rounds_share_a_chunk(models: Models, stop: list[str]) -> None:
    async with await AsyncEngine.open(models.target, models.draft) as engine:
        options: dict[str, Any] = {"max_tokens": 200, "ignore_eos": True, "stop": stop}
        streams = [engine.stream("ab cd ef", **options) for _ in range(5)]  # the last one waits for a slot
        chunks = [chunk async for chunk in streams[0]]
        timings = chunks[-1].timings
    assert timings is not None and len(chunks) < timings.rounds / 2
    assert len(chunks[0].tokens) < 20, "the first token must not wait for later rounds"


@pytest.mark.parametrize("hybrid", [False, True])
async def test_rounds_after_a_stop_string_leave_no_trace(
    hybrid: bool, models: Models, tmp_path: Path
) -> None:
    files, prompt = make_hybrid(tmp_path) if hybrid else models, "ab cd ef gh " * 30
    async with await AsyncEngine.open(files.target, files.draft) as engine:
        full = await engine.generate(prompt, max_tokens=40, ignore_eos=True, seed=1)
        stop = engine.engine.detokenize(full.tokens[9:12])
        answer = await engine.generate(prompt, stop=stop, ignore_eos=True, seed=1)
        text = [*answer.prompt_tokens, *answer.tokens, *answer.prompt_tokens[:20]]
        next_turn = await engine.generate(text, max_tokens=1)
    timings, n_accepted = answer.timings, sum(answer.accepted)
    assert answer.stopped_by == stop and len(answer.tokens) < 13
    assert timings.draft_n_accepted == n_accepted
    assert 0 <= timings.rounds + n_accepted + 1 - len(answer.tokens) <= 1
    assert next_turn.timings.prompt_n < 25


async def test_rounds_after_a_repetition_leave_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In 30 ms, a fast processor runs more rounds of the tiny model than any real model can.
    monkeypatch.setattr("eaglecpp.engine.async_engine.READ_MS", 1.0)
    files, options = make_hybrid(tmp_path), {"ignore_eos": True, "temperature": 0.0}
    async with await AsyncEngine.open(files.target, n_ctx=1024) as engine:
        answer = await engine.generate("ab", max_repeats=1.5, **options)
        text = [*answer.prompt_tokens, *answer.tokens, *answer.prompt_tokens]
        next_turn = await engine.generate(text, max_tokens=1, **options)
    assert answer.timings.loops and 512 <= len(answer.tokens) < 900
    assert next_turn.timings.prompt_n < 10


LEFT_OPEN = """
import asyncio, sys, threading
from eaglecpp import AsyncEngine, Engine
from eaglecpp.engine import async_engine, exactness

what, target = sys.argv[1:]
options = dict(n_ctx=2048, n_threads=1, planner_cache=False, exact="off")
long = dict(max_tokens=1900, ignore_eos=True)

async def opens(runs):
    global engine, stream
    engine = await AsyncEngine.open(target, **options)
    stream = engine.stream("ab", **(long if runs else {"max_tokens": 1}))
    await anext(stream)

def tokenizes():
    begun.set()
    while True:
        engine.tokenize("ab cd " * 20000)

def generates():
    stream = engine.stream("ab", **long)
    next(stream)
    begun.set()
    for _ in stream:
        pass

if what == "stuck":
    async_engine._EXIT_S = 0.5
    engine = AsyncEngine(lambda: threading.Event().wait(3600))
elif what == "pause":
    async_engine._PAUSE_S, begun = 0.0, threading.Event()
    Engine.exactness = exactness.Exactness(is_complete=False)
    Engine.measure_exactness = lambda engine, go_on: begun.set() or all(iter(go_on, False))
    asyncio.run(opens(False))
    begun.wait()
elif what == "async":
    asyncio.run(opens(False))
elif what == "async stream":
    asyncio.run(opens(True))
else:
    engine = Engine.open(target, **options)
    if what == "session":
        session = engine.session()
        session.generate("ab", max_tokens=3)
    elif what == "stream":
        stream = engine.stream("ab", **long)
        next(stream)
    elif what in ("thread", "threads"):
        begun = threading.Event()
        for target in [generates] if what == "thread" else 2 * [tokenizes]:
            threading.Thread(target=target, daemon=True).start()
        begun.wait()
    elif what == "error":
        raise RuntimeError("of the script")
"""


@pytest.mark.parametrize(
    "what", ["engine", "session", "stream", "async", "async stream", "pause", "thread", "threads", "error"]
)
def test_an_open_engine_ends_quietly_with_the_process(what: str, models: Models) -> None:
    for _ in range(3 if what.startswith("thread") else 1):
        done = run_script(LEFT_OPEN, what, models.target)
        lines = done.stderr.splitlines()
        if what == "error":
            assert lines.pop() == "RuntimeError: of the script" and lines.pop(0).startswith("Traceback")
            lines = [line for line in lines if not line.startswith("  ")]
        assert (done.returncode, done.stdout, lines) == (what == "error", "", [])


def test_a_stuck_engine_does_not_keep_the_process() -> None:
    """Tests that the process can end although the engine is stuck, for example in a call to another
    machine.
    """
    assert run_script(LEFT_OPEN, "stuck", "").returncode == 0


async def test_a_slow_disk_does_not_delay_an_engine(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, look, goes_on, threads = PromptCache._fetch, PromptCache._look, threading.Event(), set[str]()

    def slow_fetch(self: PromptCache, *given: Any) -> Any:
        assert goes_on.wait(60)
        return fetch(self, *given)

    def noted_look(self: PromptCache) -> Any:
        threads.add(threading.current_thread().name)
        return look(self)

    monkeypatch.setattr(PromptCache, "_fetch", slow_fetch)
    monkeypatch.setattr(PromptCache, "_look", noted_look)

    options: dict[str, Any] = {"n_ctx": 2048, "n_threads": 1, "prompt_cache": str(tmp_path)}
    async with await AsyncEngine.open(models.target, n_parallel=1, **options) as engine:
        answer = asyncio.ensure_future(engine.generate("ab cd " * 200, max_tokens=4))
        await asyncio.sleep(0.2)
        assert await asyncio.wait_for(engine.call(lambda one: one.n_vocab), 30)
        goes_on.set()
        assert len((await answer).tokens) == 4
        assert len((await engine.generate("ef gh " * 200, max_tokens=4)).tokens) == 4
    assert threads and "eaglecpp-engine" not in threads, threads


async def test_calls_of_an_engine_that_fails_to_open_end() -> None:
    goes_on = threading.Event()

    def opener() -> Engine:
        goes_on.wait(60)
        raise OSError("gone")

    engine = AsyncEngine(opener)
    call = asyncio.ensure_future(engine.call(lambda one: one))
    await asyncio.sleep(0.05)
    goes_on.set()
    with pytest.raises(InvalidStateError, match="closed"):
        await asyncio.wait_for(call, 60)


@pytest.mark.parametrize("n_parallel", [3, 2])
async def test_a_common_beginning_of_prompts_is_read_once(n_parallel: int, models: Models) -> None:
    """Tests that a common beginning of prompts is read once, also if the prompts arrive at the same time, and
    if a prompt has to wait for a slot.
    """
    prompts = ["ab cd ef gh " * 6 + end for end in ("ij", "kl mn", "op")]
    with Engine.open(models.target, models.draft, n_ctx=256, n_threads=1, exact="off") as engine:
        n_shared = len(engine.tokenize(prompts[0][:-2]))
        alone = []
        for prompt in prompts:
            engine.clear()
            alone.append(engine.generate(prompt, **OPTIONS))

    async with await opened(models, n_parallel=n_parallel) as engine:
        results = await asyncio.gather(*(engine.generate(prompt, **OPTIONS) for prompt in prompts))
    assert [one.tokens for one in results] == [one.tokens for one in alone]
    assert [one.timings.draft_n for one in results] == [one.timings.draft_n for one in alone]
    assert results[0].timings.reused_n == 0
    for one in results[1:]:
        assert n_shared - 2 <= one.timings.reused_n < len(one.prompt_tokens)
        assert one.timings.prompt_n == len(one.prompt_tokens) - one.timings.reused_n


@pytest.mark.parametrize("draft", [True, False])
async def test_a_swapped_out_conversation_continues_unchanged(draft: bool, models: Models) -> None:
    """Tests swapping out: three conversations share one slot in turns. Each conversation gets the same texts
    and drafts as in its own slot.
    """
    greedy = OPTIONS | {"temperature": 0.0} if draft else {"max_tokens": 24, "temperature": 0.0}
    chosen = models.draft if draft else None
    beginnings = ["ab cd ef gh " * 8 + end for end in ("ij", "kl mn", "op")]

    async def talk(n_parallel: int, host_cache_bytes: int) -> tuple[list[Completion], tuple[int, int]]:
        options = {"n_ctx": 512, "n_threads": 1, "exact": "off", "host_cache_bytes": host_cache_bytes}
        async with await AsyncEngine.open(models.target, chosen, n_parallel=n_parallel, **options) as engine:
            made: list[Completion] = []
            texts: list[list[int]] = [engine.engine.tokenize(text) for text in beginnings]
            texts = [[*tokens[:1], 40 + 7 * i, *tokens[1:]] for i, tokens in enumerate(texts)]
            for _ in range(2):
                for i, text in enumerate(texts):
                    one = await engine.generate(text, **greedy)
                    made.append(one)
                    texts[i] = [*text, *one.tokens, 50, 51]
            return made, engine.host_cached

    own, _ = await talk(3, 0)
    parked, (host_cached, n_bytes) = await talk(1, 1 << 30)
    assert [one.tokens for one in parked] == [one.tokens for one in own]
    assert [one.timings.draft_n for one in parked] == [one.timings.draft_n for one in own]
    assert [one.timings.reused_n for one in parked][3:] == [one.timings.reused_n for one in own][3:]
    assert own[3].timings.reused_n > len(own[0].prompt_tokens)
    assert host_cached == 2 and n_bytes > 0
    read_again, (host_cached, _) = await talk(1, 0)
    assert host_cached == 0 and read_again[-1].timings.reused_n < 8
    assert [one.tokens for one in read_again] == [one.tokens for one in own]
    only_one, (host_cached, n_taken) = await talk(1, n_bytes * 2 // 3)
    assert host_cached == 1 and n_taken <= n_bytes * 2 // 3, "only one conversation fits into the cache"
    assert only_one[3].timings.reused_n < 8, "the oldest conversation must be evicted"
    assert [one.tokens for one in only_one] == [one.tokens for one in own]


async def test_former_names_of_arguments_and_metrics_are_accepted(models: Models) -> None:
    former: dict[str, Any] = {"place_s": 7.0, "n_park_bytes": 5}
    async with await AsyncEngine.open(models.target, n_ctx=256, n_threads=1, **former) as engine:
        assert (engine._worker.slot_time_s, engine._worker.cache.n_max) == (7.0, 5)
        one = SimpleNamespace(engine=engine, n_bytes=1, name="m")
        text = Metrics().text([one])
        for name in ("host_cache_bytes", "parked_bytes", "parked_conversations"):
            assert f'eaglecpp_{name}{{model="m"}} 0\n' in text


async def test_a_request_ends_a_pause_and_finds_its_prompt(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests that an idle engine measures exact sizes, and stops after the running step when a request comes.
    The request gets the same answer as without a pause, and reuses its prompt.
    """
    monkeypatch.setattr("eaglecpp.engine.loading._MEASURE_S", 0.0)
    monkeypatch.setattr("eaglecpp.engine.async_engine._PAUSE_S", 1e6)
    measure, in_fifth_step, failed = Engine.measure_exactness, threading.Event(), threading.Event()
    steps, n_decodes = itertools.count(), list[int]()

    def slow(engine: Engine, go_on: Callable[[], bool]) -> Exactness:
        def goes_on() -> bool:
            is_fifth = next(steps) == 4
            while is_fifth and go_on():  # the fifth step lasts until the request comes
                in_fifth_step.set()
            return go_on()

        found = measure(engine, goes_on)
        n_decodes.append(found.decodes)
        return found

    async with await opened(models, n_parallel=1) as serving:
        first = await serving.generate(TEXT, **OPTIONS)
        n_before = serving.engine.exactness.decodes
        monkeypatch.setattr("eaglecpp.engine.async_engine._PAUSE_S", 0.01)
        monkeypatch.setattr(Engine, "measure_exactness", lambda *_: [failed.set()] * 2**61)
        await serving.call(lambda engine: None)
        await asyncio.to_thread(failed.wait)  # a measurement without enough memory
        monkeypatch.setattr(Engine, "measure_exactness", slow)
        await serving.call(lambda engine: None)
        await asyncio.to_thread(in_fifth_step.wait)
        prompt = [*first.prompt_tokens, *first.tokens, 7]
        second = await serving.generate(prompt, **OPTIONS)
        assert n_decodes[0] == n_before + 4 and second.timings.reused_n == len(prompt) - 2
        while not serving.engine.exactness.is_complete:
            await asyncio.sleep(0.01)
    with Engine.open(models.target, models.draft, n_ctx=256, n_threads=1, exact="off") as engine:
        assert engine.generate(prompt, **OPTIONS).tokens == second.tokens


@pytest.mark.parametrize("strategy", ["off", "chain:3"])
async def test_a_request_whose_sampler_fails_ends_alone(strategy: str, models: Models) -> None:
    """Tests that a request whose sampler or callback fails ends alone, although it fails in the middle of a
    round that is shared with another conversation.
    """
    options = OPTIONS | {"max_tokens": 200, "ignore_eos": True, "strategy": strategy}

    async with await opened(models) as engine:
        every = dict.fromkeys(range(engine.engine.native.n_vocab), -math.inf)
        alone = await engine.generate(PROMPTS[0], **options)
        for bad, error, text in (
            ({"grammar": f"root ::= [a-c]{{3}} wide{WIDE}"}, GrammarError, "items; max is 1000"),
            ({"grammar": f"root ::= wide{WIDE}"}, GrammarError, "items; max is 1000"),
            ({"grammar": "root ::= ("}, GrammarError, "grammar"),
            ({"logit_bias": every}, ValueError, "removed all tokens"),
            ({"stop_when": lambda tokens: sys.exit("enough")}, SystemExit, "enough"),
        ):
            victim = engine.stream(PROMPTS[0], **options)
            await anext(victim)
            with pytest.raises(TypeError, match="cannot be copied"):
                copy.copy(victim)  # the end of a copy would end the generation
            with pytest.raises(error, match=text):
                async for _ in engine.stream(PROMPTS[1], **options | bad):
                    pass
            async for _ in victim:
                pass
            assert victim.completion().tokens == alone.tokens
        # Both slots can be used again.
        again = await asyncio.gather(*(engine.generate(PROMPTS[0], **options) for _ in range(2)))
        assert [one.tokens for one in again] == [alone.tokens] * 2


def test_text_before_the_failure_of_a_grammar_does_not_depend_on_drafts(models: Models) -> None:
    """Tests the text before a grammar fails. This text depends neither on drafts nor on the number of tokens
    in the round that detects the failure.
    """

    def said(strategy: str) -> str:
        with Engine.open(models.target, models.draft, n_ctx=256, n_threads=1, exact="off") as engine:
            stream = engine.stream(
                "ab cd ef", **OPTIONS | {"strategy": strategy, "grammar": f"root ::= .{{17}} wide{WIDE}"}
            )
            text = ""
            with pytest.raises(GrammarError, match="items; max is 1000"):
                for chunk in stream:
                    text += chunk.text
            return text

    assert len(said("off")) >= 16
    assert said("chain:3") == said("off")


async def test_exactness_can_be_chosen_for_each_generation(models: Models) -> None:
    """Tests an engine that was opened without exact batches. It plans exact batches if a request asks for
    exact batches.
    """

    async with await opened(models, exact="auto") as engine:
        result = await engine.generate(PROMPTS[0], **OPTIONS, exact="on")
        assert result.timings.exact
        with pytest.raises(ValueError, match="exact: expected one of auto, on, off"):
            engine.stream("ab", exact="sometimes")
    async with await opened(models, exact="off") as engine:
        again = await engine.generate(PROMPTS[0], **OPTIONS, exact="on")
        assert again.timings.exact and again.tokens == result.tokens
        drafted = await engine.generate(PROMPTS[1], **OPTIONS, exact="off")
        assert drafted.timings.draft_n > 0


async def test_leaving_frees_the_slot_for_a_waiting_request(models: Models) -> None:
    async with await opened(models, n_parallel=1, n_ctx=8192) as engine:
        first = engine.stream("ab", max_tokens=-1, ignore_eos=True)
        await anext(first)
        waiting = engine.stream("cd", max_tokens=4)
        assert not await waiting.started(0.01)
        assert (engine.n_running, engine.n_waiting) == (1, 1)
        first.cancel()
        async for _ in waiting:
            pass
        assert len(waiting.completion().tokens) == 4
        assert first.completion().finish_reason == "cancelled"
        task = asyncio.create_task(engine.generate("ab", max_tokens=-1, ignore_eos=True))
        while not engine.n_running:
            await asyncio.sleep(0.005)
        task.cancel()
        assert len((await engine.generate("cd", max_tokens=4)).tokens) == 4


async def test_a_broken_engine_fails_every_request(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    async with await opened(models) as engine:

        def fail(*arguments: object) -> None:
            raise EngineBrokenError("llama.cpp failed")

        monkeypatch.setattr("eaglecpp.engine.scheduler.next_chunks", fail)
        with pytest.raises(EngineBrokenError):
            await engine.generate("ab", max_tokens=4)
        assert engine.broken is not None
        with pytest.raises(EngineBrokenError, match="reopen the engine"):
            engine.stream("ab")


async def test_a_fault_after_a_round_loses_no_answer(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(slots: Slots, *_: object) -> None:
        assert not any(slot.is_new for slot in slots._slots), "a fault"

    async with await opened(models, prompt_cache=str(tmp_path)) as engine:
        monkeypatch.setattr(Slots, "keep", fail)
        assert len((await engine.generate("ab", max_tokens=4)).tokens) == 4


async def test_tasks_get_the_text_they_get_alone_while_another_thread_embeds(models: Models) -> None:
    """Tests that tasks get the same text while another thread embeds. Embedding and rounds wait for each
    other; a synchronous engine would raise EngineBusyError instead.
    """
    with Engine.open(models.target, models.draft, n_ctx=256, n_threads=1, exact="off") as engine:
        alone = [engine.generate(prompt, **OPTIONS).tokens for prompt in PROMPTS]
        vector = engine.embed(TEXT).vector

    async with await opened(models) as engine:
        results, embedded = await asyncio.gather(
            asyncio.gather(*(engine.generate(prompt, **OPTIONS) for prompt in PROMPTS)),
            asyncio.gather(*(asyncio.to_thread(engine.engine.embed, TEXT) for _ in range(20))),
        )
        assert [one.tokens for one in results] == alone and engine._worker.is_idle
        assert all(one.vector == pytest.approx(vector, abs=1e-5) for one in embedded)


async def test_calls_run_between_rounds_and_closing_ends_everything(models: Models) -> None:
    engine = await opened(models, n_ctx=8192, n_parallel=1)
    assert await engine.call(lambda one: one.n_ctx) == 8192
    stream, cancelled, waiting = (engine.stream("ab", max_tokens=-1, ignore_eos=True) for _ in range(3))
    await stream.started()
    cancelled.cancel()
    await engine.close()
    rest = [chunk async for chunk in stream]
    assert all(chunk.finish_reason is None for chunk in rest)
    for unstarted, why in ((cancelled, "it was cancelled"), (waiting, "the engine was closed")):
        with pytest.raises(InvalidStateError, match=f"ended before it began: {why}"):
            await unstarted.finish()
    with pytest.raises(ValueError, match="closed"):
        engine.stream("ab")
    with pytest.raises(ValueError, match="closed"):
        await engine.call(lambda one: one.n_ctx)


async def test_a_dropped_engine_warns_and_is_freed(models: Models) -> None:
    stream = (await opened(models)).stream("ab cd ef", max_tokens=24, ignore_eos=True)
    assert len((await stream.finish()).tokens) == 24, "a stream must keep its engine open"
    engine = await opened(models)
    inner = engine.engine
    with pytest.warns(ResourceWarning, match="unclosed <.*AsyncEngine.*>; await its close()"):
        del stream, engine
        while not inner.closed:  # a thread may hold the last reference for a moment
            await asyncio.sleep(0.01)


def test_turns_are_taken_in_order_of_arrival() -> None:
    lock, order, threads = FairLock(), [], []
    with lock:
        for number in range(5):

            def wait(number: int = number) -> None:
                with lock:
                    order.append(number)

            threads.append(threading.Thread(target=wait))
            threads[-1].start()
            while lock._next < number + 2:
                pass
        assert not order, "only one thread may hold the lock"
    for thread in threads:
        thread.join()
    assert order == list(range(5))
