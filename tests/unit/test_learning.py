# SPDX-License-Identifier: MIT
"""What `--learn` keeps and where it goes, and the drafter that learnt: found, undone, forgotten."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest
from click.testing import CliRunner

from eaglecpp import Engine
from eaglecpp.cli.learn import learn as learn_command
from eaglecpp.learning import LEAST_TEXTS, Learning
from eaglecpp.opening.plan import plan_opening
from eaglecpp.rounds import Rounds
from helpers.http_server import DRAFT, FAST, MODEL, TARGET, TestServer

if TYPE_CHECKING:
    from conftest import Models


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EAGLECPP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def a_record(seed: int, n_tokens: int = 40) -> Rounds:
    rng = np.random.default_rng(seed)
    return Rounds.of(
        rng.integers(0, 200, n_tokens),
        8,
        {
            "root": np.array([8], np.int32),
            "n_drafts": np.array([1], np.int32),
            "token": np.array([3], np.int32),
            "parent": np.array([0], np.int32),
            "accepted": np.array([0], np.uint8),
            "ids": rng.integers(0, 200, (1, 64)).astype(np.int32),
            "logp": np.log(np.full((1, 64), 1 / 64, np.float32)),
        },
    )


def facts() -> dict[str, Any]:
    found = {"before": 2.0, "after": 2.5, "gain": 0.25, "least": 0.1, "most": 0.4, "n_texts": 9}
    return {"made": "2026-11-26", "n_texts": 40, "user": found, "general": found}


def test_what_is_said_is_kept_only_where_it_is_asked_for(models: Models) -> None:
    texts = []
    for learns in (False, True):
        with Engine.open(models.target, models.draft, learn=learns, n_ctx=256, strategy="chain:4") as engine:
            texts.append(engine.generate("What is", max_tokens=20, ignore_eos=True, temperature=0.0))
            learning = Learning.of(models.target)
            assert (engine.learning is None) is not learns and bool(learning.records()) is learns
    assert texts[0].tokens == texts[1].tokens
    (path,) = learning.records()
    kept = Rounds.read(path)
    assert kept.tokens.tolist() == [*texts[1].prompt_tokens, *texts[1].tokens]
    assert kept.n_prompt == len(texts[1].prompt_tokens) and 0 < len(kept.root) <= texts[1].timings.rounds
    if os.name == "posix":
        assert path.stat().st_mode & 0o077 == 0 and path.parent.stat().st_mode & 0o077 == 0


def test_the_oldest_records_go_and_all_can_be_forgotten(tmp_path: Path) -> None:
    learning = Learning(tmp_path / "one")
    for seed in range(3):
        learning.keep(a_record(seed))
        os.utime(learning.records()[-1], (seed, seed))
    oldest, *_ = learning.records()
    learning.keep(a_record(4), n_most=learning.n_bytes())
    assert oldest not in learning.records() and len(learning.records()) == 3
    learning.work.mkdir()
    assert learning.forget() == 3 and learning.records() == [] and not learning.work.exists()
    learning.folder.joinpath("rounds").write_text("in the way")
    learning.keep(a_record(5))  # nothing is raised


def test_news_are_what_came_after_the_last_training(tmp_path: Path) -> None:
    learning = Learning(tmp_path / "one")
    for seed in range(LEAST_TEXTS):
        assert not learning.has_news()
        learning.keep(a_record(seed))
    assert learning.has_news()
    learning.note_tried()
    os.utime(tmp_path / "one" / "tried", (time.time() + 1,) * 2)
    assert not learning.has_news()


def test_the_drafter_that_learnt_is_used_until_it_is_undone(models: Models, tmp_path: Path) -> None:
    """In place of the one that comes with the model, not of a file that was asked for."""
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
    told = runner.invoke(learn_command, [*command, "--status"]).stdout
    assert "2.00 -> 2.50 on your texts" in told
    for n_texts in (40, None):
        assert runner.invoke(learn_command, [*command, "--undo"]).exit_code == 0
        found = learning.facts(models.draft)
        assert (found and found["n_texts"]) == n_texts
    assert drafter(learn=True) == models.draft
    again = runner.invoke(learn_command, [*command, "--undo"])
    assert again.exit_code == 1 and "nothing to undo" in again.output
    learning.keep(a_record(1))
    assert runner.invoke(learn_command, [*command, "--forget"]).exit_code == 0 and not learning.records()


def test_a_model_without_a_drafter_cannot_learn(models: Models) -> None:
    result = CliRunner().invoke(learn_command, [str(models.target)])
    assert result.exit_code == 1 and "has no drafter that could learn" in str(result.exception)


def test_too_few_texts_are_refused(models: Models) -> None:
    Learning.of(models.target).keep(a_record(1))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "eaglecpp", "learn", models.target, "--draft", models.draft],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and f"expected at least {LEAST_TEXTS} answers" in done.stderr


def test_an_idle_server_learns_and_stands_still_for_a_request(home: Path) -> None:
    """Within a round: the process is stopped before the model is asked."""
    learning = Learning.of(TARGET)
    for seed in range(LEAST_TEXTS):
        learning.keep(a_record(seed))
    body = {"model": MODEL, "messages": [{"role": "user", "content": "What is len?"}], "stream": True}
    with TestServer(preload=MODEL, engine=FAST | {"learn": True}, learn_idle_s=0.3) as server:
        learner = server.server._shared.pool.learner
        assert wait_for(lambda: learner._training is not None)
        process = learner._training.process  # type: ignore[union-attr]
        learner._idle_s = 1e9  # so that it does not go on before we look
        assert list(server.events("/v1/chat/completions", body | {"max_tokens": 4}))[-1] == "[DONE]"
        assert wait_for(lambda: process.status() == psutil.STATUS_STOPPED)
        learner._idle_s = 0.3
        assert wait_for(lambda: process.status() != psutil.STATUS_STOPPED)
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    assert learning.facts(DRAFT) is None


def test_a_training_that_fails_is_not_begun_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What trains is this package, not one of its name in the folder where the server was started."""
    stranger = tmp_path / "eaglecpp" / "__init__.py"
    stranger.parent.mkdir()
    stranger.write_text(f"open({str(tmp_path / 'was here')!r}, 'w'); raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    learning = Learning.of(TARGET)
    for seed in range(LEAST_TEXTS):
        learning.keep(a_record(seed))
    learning.records()[3].write_bytes(b"damaged")
    with TestServer(preload=MODEL, engine=FAST | {"learn": True}, learn_idle_s=0.1) as server:
        learner = server.server._shared.pool.learner
        assert wait_for(lambda: learner._failed == {MODEL})
        assert learner._training is None and "eaglecpp learn" in caplog.text
        time.sleep(0.5)
        assert learner._training is None
    assert not (tmp_path / "was here").exists()


def wait_for(holds: Any) -> bool:
    deadline = time.monotonic() + 300  # a process of the lowest priority
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(holds())
