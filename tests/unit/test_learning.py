# SPDX-License-Identifier: MIT
"""Tests `--learn`: the records, the files of the records, and how trained drafters are found, undone and
deleted.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from eaglecpp import Engine
from eaglecpp.cli.learn import learn as learn_command
from eaglecpp.conversations.saved import ChatFolder, new_chat
from eaglecpp.learn.records import LEAST_TEXTS, Learning
from eaglecpp.opening.plan import plan_opening
from eaglecpp.server.announced import announced
from eaglecpp.store import Stores
from helpers.http_server import DRAFT, FAST, MODEL, TARGET, TestServer, until
from helpers.kills import killed_everywhere
from helpers.models import Models
from helpers.stores import make_model

PATIENCE_S = 300.0
"""Maximum time for a process of the lowest priority."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EAGLECPP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def answer(seed: int) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, 200, 40).astype(np.int32)


def keep(learning: Learning, *seeds: int) -> None:
    for seed in seeds:
        learning.keep(answer(seed), 8)


def kept(learning: Learning) -> list[list[int]]:
    """Returns the tokens of each record, oldest first."""
    return [tokens.tolist() for tokens, _ in learning.records().values()]


def facts() -> dict[str, Any]:
    found = {"before": 2.0, "after": 2.5, "gain": 0.25, "least": 0.1, "most": 0.4, "n_texts": 9}
    return {"made": "2026-11-26", "n_texts": 40, "user": found, "general": found}


def test_conversations_are_recorded_only_on_request(models: Models) -> None:
    texts = []
    for learns in (False, True):
        with Engine.open(models.target, models.draft, learn=learns, n_ctx=256, strategy="chain:4") as engine:
            texts.append(engine.generate("What is", max_tokens=20, ignore_eos=True, temperature=0.0))
            learning = Learning.of(models.target)
            assert (engine.shared.on_answer is not None) is learns
        assert bool(learning.records()) is learns
    assert texts[0].tokens == texts[1].tokens
    ((tokens, n_prompt),) = learning.records().values()
    assert tokens.tolist() == [*texts[1].prompt_tokens, *texts[1].tokens]
    assert n_prompt == len(texts[1].prompt_tokens)


@pytest.mark.parametrize("limit", ["MAX_ANSWERS", "MAX_BYTES"])
def test_deleted_records_are_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """Tests that the oldest records are deleted at a limit, and that `forget` deletes all of them."""
    learning = Learning(tmp_path / "one")
    monkeypatch.setattr(f"eaglecpp.learn.records.{limit}", {"MAX_ANSWERS": 30, "MAX_BYTES": 4 * 4096}[limit])
    keep(learning, *range(60), 58)
    n_left = len(learning.records())
    assert 10 < n_left < 60
    newest = [answer(seed).tolist() for seed in (*range(58), 59, 58)]
    assert kept(learning) == newest[-n_left:], "a repeated answer is one record, and the newest"
    learning.keep(np.arange(9, dtype=np.int32), 8)  # this answer is too short
    assert len(learning.records()) == n_left and learning.answers.stat().st_size <= 8 * 4096
    readable = lambda: sum(answer(i).tobytes()[-64:] in learning.answers.read_bytes() for i in range(60))  # noqa: E731
    assert readable() == n_left, "deleted answers must be overwritten"
    learning.work.mkdir()
    assert learning.forget() == n_left and not learning.work.exists()
    assert not learning.records() and readable() == 0


def test_a_damaged_file_loses_no_new_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    learning = Learning(tmp_path / "one")
    keep(learning, *range(200))
    data = learning.answers.read_bytes()
    for damage in (data[:4096] + os.urandom(9999), b"no database" * 999, data[:5000]):
        learning.answers.write_bytes(damage)
        keep(learning, 7, 8)
        assert kept(learning) == [answer(7).tolist(), answer(8).tolist()]
    assert caplog.text.count("new answers are recorded in a new file") == 3
    learning.forget()
    assert [path.name for path in learning.folder.iterdir()] == ["answers.sqlite"]


def test_processes_record_answers_at_the_same_time(tmp_path: Path) -> None:
    learning = Learning(tmp_path / "one")
    with ProcessPoolExecutor(3, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(learning.keep, map(answer, range(90)), [8] * 90))
    assert len(learning.records()) == 90


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_records_are_private_and_not_writable_for_others(home: Path) -> None:
    """Tests that records are private and that other users cannot write them, even under the most permissive
    umask and in folders of earlier versions.
    """
    before = os.umask(0)
    try:
        learning = Learning.of(TARGET)
        learning.folder.mkdir(parents=True)
        keep(Learning.of(TARGET), 1)
        for folder in (home, learning.folder.parent):
            folder.chmod(0o755)
        learning.work.mkdir()
        (learning.work / "states").write_text("states")
        assert learning.answers.stat().st_mode & 0o777 == 0o600
        ChatFolder(home / "chats").save(new_chat("m"))
        make_model(Stores.open(), f"FROM {TARGET}")
        with announced("http://127.0.0.1:1"):
            pass
    finally:
        os.umask(before)
    for path in [home, *home.rglob("*")]:
        if path.is_symlink():
            continue
        inside = [one for one in (path, *path.parents) if one.is_relative_to(home)]
        is_private = any(one.stat().st_mode & 0o077 == 0 for one in inside)
        assert is_private or (not path.is_symlink() and path.stat().st_mode & 0o022 == 0), path
        is_of_people = {"learning", "chats"} & {*path.relative_to(home).parts[:-1]}
        assert is_private or not is_of_people, path


def test_a_file_that_cannot_be_written_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests that answers are recorded again after an error, such as a full disk or a lock by a suspended
    process, and that only the first answer waits for a lock.
    """
    learning, waits, connect = Learning(tmp_path / "one"), [], sqlite3.connect
    monkeypatch.setattr("eaglecpp.learn.records._WAIT_S", 0.5)
    monkeypatch.setattr(
        sqlite3, "connect", lambda file, s, **more: waits.append(s) or connect(file, s, **more)
    )
    for n_reported in (1, 2):
        keep(learning, 0)
        with contextlib.closing(connect(learning.answers)) as other:
            other.execute("BEGIN EXCLUSIVE")
            keep(learning, 1, 2)  # this call must not raise an error
        assert caplog.text.count("cannot be recorded for learning") == n_reported
        keep(learning, 3)
    assert waits == [0.5, 0.5, 0.1, 0.1] * 2 and len(learning.records()) == 2


def test_no_engine_waits_for_the_disk(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that no engine waits for the disk while records are written. Readers of the records wait for the
    writer.
    """
    real, writers, may_write = Learning.keep, [], threading.Event()

    def keep_slowly(self: Learning, *args: Any) -> None:
        writers.append(threading.current_thread().name)
        assert may_write.wait(60)
        real(self, *args)

    monkeypatch.setattr(Learning, "keep", keep_slowly)
    with Engine.open(models.target, models.draft, learn=True, n_ctx=256, strategy="chain:4") as engine:
        for text in ("What is", "Where is"):
            engine.generate(text, max_tokens=20, ignore_eos=True, temperature=0.0)
    may_write.set()
    assert len(Learning.of(models.target).records()) == 2
    assert threading.current_thread().name not in writers


def test_new_records_are_those_after_the_last_training(tmp_path: Path) -> None:
    learning = Learning(tmp_path / "one")
    for seed in range(LEAST_TEXTS):
        assert not learning.has_news()
        keep(learning, seed)
    assert learning.has_news()
    learning.note_tried()
    os.utime(tmp_path / "one" / "tried", (time.time() + 1,) * 2)
    assert not learning.has_news()


def test_a_trained_drafter_is_used_until_it_is_undone(models: Models, tmp_path: Path) -> None:
    """Tests that a trained drafter is used until it is undone. It replaces the drafter that comes with the
    model, but not a drafter that the user named.
    """
    learning = Learning.of(models.target)
    made = tmp_path / "made.gguf"
    shutil.copyfile(models.draft, made)

    def drafter(**options: Any) -> Path | None:
        return plan_opening(models.target, models.draft, options=options).draft

    assert drafter(learn=True) == models.draft
    learning.use(made, models.draft, facts())
    assert drafter() == models.draft and drafter(learn=True) == learning.drafter(models.draft)
    learning.use(made, models.draft, facts() | {"n_texts": 80})
    runner = CliRunner()
    command = [str(models.target), "--draft", str(models.draft)]
    status = json.loads(runner.invoke(learn_command, [*command, "--status", "--json"]).stdout)
    assert status["drafter"]["n_texts"] == 80 and status["records"] == 0
    assert "2.00 -> 2.50 on your texts" in runner.invoke(learn_command, [*command, "--status"]).stdout
    assert runner.invoke(learn_command, [*command, "--undo"]).exit_code == 0
    assert learning.facts(models.draft) is None
    assert drafter(learn=True) == models.draft
    again = runner.invoke(learn_command, [*command, "--undo"])
    assert again.exit_code == 1 and "nothing to undo" in again.output
    keep(learning, 1)
    assert runner.invoke(learn_command, [*command, "--forget"]).exit_code == 0 and not learning.records()


class Replacing:
    """A state in which the trained drafter "old" is in use, and the drafter "new" is about to replace it."""

    def __init__(self, folder: Path) -> None:
        self.learning, self.stock = Learning(folder / "one"), folder / "stock.gguf"
        self.files = {name: folder / f"{name}.gguf" for name in ("old", "new")}
        for file in (self.stock, *self.files.values()):
            file.write_text(file.stem * 1000)
        self.use("old")

    def use(self, name: str, **more: str) -> None:
        self.learning.use(self.files[name], self.stock, {"name": name} | more)

    def in_use(self) -> str:
        found, reply = self.learning.drafter(self.stock), self.learning.facts(self.stock)
        if found is None or reply is None:
            return "stock"
        name: str = reply["name"]
        assert found.read_text() == name * 1000, f"expected the complete drafter {name}"
        return name


def test_a_kill_leaves_the_old_drafter_or_the_new_one(tmp_path: Path) -> None:
    replacing = Replacing(tmp_path)
    folder, states = replacing.learning.folder, set()

    def check(other: str) -> None:
        states.add(replacing.in_use())
        replacing.use(other)

    assert killed_everywhere(folder, lambda: replacing.use("new"), lambda: check("old")) > 6
    assert states == {"old", "new"} and replacing.in_use() in states
    assert sum(path.suffix != ".json" for path in (folder / "drafters").iterdir()) == 1, "leftovers"
    states.clear()
    undo = lambda: replacing.learning.undo(replacing.stock)  # noqa: E731
    assert killed_everywhere(folder, undo, lambda: check("new")) > 2
    assert states == {"stock", "new"}


def test_a_model_without_a_drafter_cannot_learn(models: Models) -> None:
    result = CliRunner().invoke(learn_command, [str(models.target)])
    assert result.exit_code == 1 and "has no drafter to train" in str(result.exception)


def test_too_few_texts_are_refused(models: Models) -> None:
    pytest.importorskip("torch")
    keep(Learning.of(models.target), 1)
    done = CliRunner().invoke(learn_command, [str(models.target), "--draft", str(models.draft)])
    assert done.exit_code == 1 and f"expected at least {LEAST_TEXTS} answers" in str(done.exception)


def test_a_damaged_record_is_skipped(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from eaglecpp.learn.training import _user_texts

    learning = Learning(tmp_path / "one")
    keep(learning, *range(LEAST_TEXTS + 2))
    for at, damage in (("max", "x'010203'"), ("min", "CAST(x'ffffffff' || tokens AS BLOB)")):
        learning._query(f"UPDATE answers SET tokens = {damage} WHERE at = (SELECT {at}(at) FROM answers)")
    assert len(_user_texts(learning, 64, 200)) == LEAST_TEXTS


SERVER = """
import pathlib, sys, time, unittest.mock
from eaglecpp.learn import idle
learner = idle.Learner(list, float, None, 1.0, None)
stub = "import runpy, time; runpy.run_module = lambda *_, **__: time.sleep(600);"
real = idle.psutil.Popen
idle.psutil.Popen = lambda command, **more: real([*command[:3], stub + command[3]], **more)
learner._begin("m", pathlib.Path("m"), pathlib.Path("d"), unittest.mock.Mock())
if "stopped" in sys.argv:
    learner.stop_for_request()
time.sleep(2)
print(learner._training.process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("state", ["stopped", "running"])
def test_a_training_ends_with_a_killed_server(state: str) -> None:
    with subprocess.Popen([sys.executable, "-P", "-c", SERVER, state], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        training = psutil.Process(int(server.stdout.readline()))
        assert (training.status() == psutil.STATUS_STOPPED) is (state == "stopped")
        server.kill()
    until(lambda: not training.is_running() or training.status() == psutil.STATUS_ZOMBIE, PATIENCE_S)


def test_an_idle_server_learns_and_pauses_for_a_request(home: Path) -> None:
    """Tests that an idle server trains. If a request arrives, even during a training step, the server pauses
    the training process before the model answers.
    """
    learning = Learning.of(TARGET)
    keep(learning, *range(LEAST_TEXTS))
    body = {"model": MODEL, "messages": [{"role": "user", "content": "What is len?"}], "stream": True}
    with TestServer(preload=MODEL, engine=FAST | {"learn": True}, learn_idle_s=0.3) as server:
        learner = server.server._shared.learner
        until(lambda: learner._training is not None, PATIENCE_S)
        process = learner._training.process  # type: ignore[union-attr]
        learner._idle_s = 1e9  # the training does not resume before the check
        assert list(server.events("/v1/chat/completions", body | {"max_tokens": 4}))[-1] == "[DONE]"
        until(lambda: process.status() == psutil.STATUS_STOPPED, PATIENCE_S)
        learner._idle_s = 0.3
        until(lambda: process.status() != psutil.STATUS_STOPPED, PATIENCE_S)
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    assert learning.facts(DRAFT) is None


def test_a_failed_training_is_retried_after_enough_new_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests that a failed training is retried after enough new records. The training must import the
    installed package, not a folder with the same name in the server's working directory.
    """
    intruder = tmp_path / "eaglecpp" / "__init__.py"
    intruder.parent.mkdir()
    intruder.write_text(f"open({str(tmp_path / 'was here')!r}, 'w'); raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    learning = Learning.of(TARGET)
    keep(learning, *range(LEAST_TEXTS))
    learning._query("UPDATE answers SET n_prompt = -1")
    with TestServer(preload=MODEL, engine=FAST | {"learn": True}, learn_idle_s=0.1) as server:
        learner = server.server._shared.learner
        until(lambda: set(learner._failed) == {MODEL}, PATIENCE_S)
        assert learner._training is None and "eaglecpp learn" in caplog.text
        time.sleep(0.5)
        assert learner._training is None
        keep(learning, *range(100, 100 + LEAST_TEXTS))
        until(lambda: learner._training is not None, PATIENCE_S)
    assert not (tmp_path / "was here").exists()


def test_a_training_gives_its_memory_to_a_model_that_needs_it(tmp_path: Path) -> None:
    """Tests that a training ends if a model needs its memory. Pausing the training, as during requests, would
    not free memory.
    """
    second = tmp_path / "second.gguf"
    shutil.copyfile(TARGET, second)
    learning = Learning.of(TARGET)
    keep(learning, *range(LEAST_TEXTS))
    with TestServer(
        {MODEL: TARGET, "second": second}, preload=MODEL, engine=FAST | {"learn": True}, learn_idle_s=0.1
    ) as server:
        shared = server.server._shared
        (size,) = (one["size"] for one in server.get("/api/ps").json()["models"])
        until(lambda: shared.learner.n_bytes > 1 << 22, PATIENCE_S)
        shared.learner._idle_s = 1e9  # the training does not restart before the check
        shared.n_bytes = 2 * size + (1 << 20)
        body = {"model": "second", "prompt": "What is", "stream": False, "options": {"num_predict": 2}}
        assert server.post("/api/generate", body).status_code == 200
        assert shared.learner._training is None
        assert len(server.get("/api/ps").json()["models"]) == 2
