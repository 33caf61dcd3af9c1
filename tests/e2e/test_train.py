# SPDX-License-Identifier: MIT
"""Tests `eaglecpp train` as a process: from text files to a drafter whose drafts are accepted.

The step `training` of tests/run.py runs the tests marked `long`. tests/unit/train tests the parts of a
training.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from eaglecpp import Engine
from eaglecpp.convert import read_gguf, read_tensor
from eaglecpp.learn.records import Learning
from helpers.command import Cli, Start
from helpers.models import Models

WORDS = (
    "the", "and", "that", "with", "this", "from", "have", "not", "are", "was", "for", "you", "all", "can",
)  # fmt: skip
QUESTIONS = ("What has she for you?", "Who was that man?", "Can the boy see this?")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Writes a few short texts."""
    folder = tmp_path / "texts"
    folder.mkdir()
    rng = np.random.default_rng(1)
    for i in range(8):
        (folder / f"{i}.txt").write_text(" ".join(rng.choice(WORDS, 60)), encoding="utf-8")
    return folder


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    """Writes conversations that have only user messages."""
    path = tmp_path / "prompts.jsonl"
    turns = ([{"role": "user", "content": question}] for question in QUESTIONS)
    path.write_text("".join(json.dumps({"messages": turn}) + "\n" for turn in turns))
    return path


def train_args(models: Models, texts: Path, out: Path, *more: Any) -> list[Any]:
    same = ("--held-out", "0.5", "-c", "64", "-t", "1", "--batch-tokens", "128", "--json")
    return ["train", "--target", models.target, "--data", texts, "-o", out, *same, *more]


def result_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    while not path.exists():
        assert process.poll() is None, process.communicate()[1].decode()
        time.sleep(0.01)


def acceptance_length(cli: Cli, target: Path, draft: Path, question: str, strategy: str = "chain:3") -> float:
    """Returns the acceptance length in tokens per round that `run --verbose` prints."""
    options = ("--strategy", strategy, "--temp", 0, "-n", 40, "-t", 1, "--verbose")
    done = cli("run", target, question, "--draft", draft, *options)
    assert done.returncode == 0, done.stderr
    found = re.search(r"acceptance length:\s+([\d.]+)", done.stderr)
    assert found, done.stderr
    return float(found[1])


@pytest.mark.parametrize(
    "more",
    [
        (),
        pytest.param(("--loss", "lk"), marks=pytest.mark.long),
        pytest.param(("--family", "eagle1"), marks=pytest.mark.long),
    ],
)
def test_a_drafter_learns_the_targets_answers_until_drafts_are_accepted(
    more: tuple[str, ...], cli: Cli, models: Models, chats: Path, tmp_path: Path
) -> None:
    answering = ("--generate", "--temp", "0", "-n", 40, "--held-out", "0", "--lr", "0.01", *more)
    made = [
        result_of(cli(*train_args(models, chats, tmp_path / str(n), *answering, "--steps", n)))
        for n in (0, 80)
    ]
    assert [one["steps"] for one in made] == [0, 80]
    assert read_gguf(Path(made[1]["gguf"])).architecture == ("eagle" if "eagle1" in more else "eagle31")
    before, after = (acceptance_length(cli, models.target, one["gguf"], QUESTIONS[0]) for one in made)
    assert before < 1.6
    assert after > 2.4
    out = tmp_path / "80"
    names = {path.name for path in out.iterdir()}
    assert names >= {"config.json", "model.safetensors", "drafter-Q8_0.gguf", "training.json"}
    record = json.loads((out / "training.json").read_text())
    assert (len(record["losses"]), record["loss"]) == (80, "lk" if "lk" in more else "cross-entropy")


def test_resume_continues_after_ctrl_c(
    cli: Cli, start: Start, models: Models, texts: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = start(*train_args(models, texts, out, "--steps", 100000, "--eval-steps", 5))
    assert process.stderr is not None
    lines = b""
    while b"step 5:" not in lines:
        lines += process.stderr.read(4096) or pytest.fail(lines.decode())
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=600)
    assert process.returncode == 130
    assert b"run the same command with --resume" in stderr
    stopped = json.loads(stdout)
    assert stopped["reason"] == "stopped" and stopped["gguf"] is None and stopped["steps"] >= 5

    other = cli(*train_args(models, texts, out, "--steps", 10, "--resume", "--loss", "lk"))
    assert other.returncode == 1 and "run has 'cross-entropy', this run has 'lk'" in other.stderr
    steps = stopped["steps"] + 3
    resumed = result_of(cli(*train_args(models, texts, out, "--steps", steps, "--eval-steps", 5, "--resume")))
    assert resumed["steps"] == steps
    assert Path(resumed["gguf"]).exists()


@pytest.mark.long
def test_a_run_killed_in_its_first_steps_can_be_resumed(
    cli: Cli, start: Start, models: Models, texts: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = start(*train_args(models, texts, out, "--steps", 100000))
    wait_for(out / "state" / "last.pt", process)
    process.kill()
    process.communicate()
    # A run that is killed before it first saves its state leaves an empty folder too.
    (tmp_path / "nothing").mkdir()
    for folder, says in (
        (out, "resumed at step 0"),
        (tmp_path / "nothing", "no training was saved yet, so it starts at its first step"),
    ):
        done = cli(*train_args(models, texts, folder, "--steps", 3, "--resume"))
        assert result_of(done)["steps"] == 3 and says in done.stderr


@pytest.mark.long
def test_ctrl_c_before_the_first_step_ends_at_once_and_names_what_remains(
    start: Start, models: Models, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    own = ("--conversations", 2000, "--sequences", 2, "-c", 256, "-t", 1)
    process = start("train", "--target", models.target, "-o", out, *own)
    wait_for(out / "conversations.jsonl", process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped; the same command continues from" in err.decode().splitlines()[-1]


@pytest.mark.parametrize("what", [pytest.param("checkpoint", marks=pytest.mark.long), "gguf"])
def test_finetune_keeps_the_form(what: str, cli: Cli, models: Models, texts: Path, tmp_path: Path) -> None:
    args = train_args(models, texts, tmp_path / "a", "--steps", 2, "--family", "eagle3", "--draft-vocab", 200)
    first = result_of(cli(*args))
    tuned = result_of(
        cli(*train_args(models, texts, tmp_path / "b", "--steps", 2, "--finetune", first[what]))
    )
    before, after = (json.loads((Path(r["checkpoint"]) / "config.json").read_text()) for r in (first, tuned))
    keys = ("fc_norm", "norm_output", "draft_vocab_size", "eagle_aux_hidden_state_layer_ids")
    assert {key: after[key] for key in keys} == {key: before[key] for key in keys}
    assert before["draft_vocab_size"] == 200 and before["fc_norm"] is False
    assert after["eaglecpp"]["finetuned_from"] == first[what]


def test_a_causal_block_starts_from_an_eagle(cli: Cli, models: Models, texts: Path, tmp_path: Path) -> None:
    """The block drafter reads the features of the EAGLE drafter, and takes over its vocabulary and head."""
    still = ("--steps", 1, "--lr", 1e-12)
    first = result_of(cli(*train_args(models, texts, tmp_path / "a", *still, "--draft-vocab", 200)))
    block = ("--family", "dspark", "--causal-block", "--start-from", first["checkpoint"])
    done = cli(*train_args(models, texts, tmp_path / "b", *still, *block))
    result = result_of(done)
    assert f"from {first['checkpoint']}: fc, head, norm" in done.stderr
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    assert config["is_causal"] is True and config["eaglecpp"]["finetuned_from"] == first["checkpoint"]
    assert read_gguf(Path(result["gguf"])).get("dflash.attention.causal") is True
    rates = read_gguf(Path(result["gguf"])).get("eaglecpp.held_out_rates")
    assert rates == pytest.approx(config["eaglecpp"]["held_out"]["rates"]) and len(rates) == 8, "8 slots"
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    for name in ("lm_head.weight", "norm.weight", "d2t"):
        assert torch.allclose(before[name].float(), after[name].float(), atol=1e-6)
    result_of(cli(*train_args(models, texts, tmp_path / "tuned", *still, "--finetune", result["gguf"])))
    tuned = json.loads((tmp_path / "tuned" / "config.json").read_text())
    kept = ("is_causal", "block_size", "markov_rank", "mask_token_id", "target_layer_ids", "draft_vocab_size")
    assert [tuned[key] for key in kept] == [config[key] for key in kept]
    width = len(before["fc.weight"])
    for one, other in zip(*(file["fc.weight"].split(width, dim=1) for file in (before, after)), strict=True):
        shares = one.flatten() @ other.flatten() / one.norm() / other.norm()
        assert float(shares) == pytest.approx(1.0, abs=0.01)
    # A block drafter takes over the layers, size and mask of the given block drafter.
    for name, family, *size in (("c", "dflash", "--block-size", 5), ("d", "dspark")):
        more = ("--family", family, "--start-from", result["checkpoint"], *size)
        done = cli(*train_args(models, texts, tmp_path / name, *still, *more))
        result = result_of(done)
        assert ": fc, head, hidden_norm, layers.0, layers.1, norm" in done.stderr
    # If the new drafter reads other layers, it does not take over the weights for the given drafter's
    # features.
    size = ("--block-size", 5, "--aux-layers", ",".join(str(k + 2) for k in config["target_layer_ids"][:-1]))
    done = cli(*train_args(models, texts, tmp_path / "e", *still, *more[:4], *size))
    assert result_of(done) and ": head, hidden_norm, layers.0, layers.1, norm" in done.stderr
    after = json.loads((tmp_path / "d" / "config.json").read_text())
    assert (after["block_size"], after["mask_token_id"]) == (5, config["mask_token_id"])
    assert after["enable_confidence_head"] is True


@pytest.mark.long
def test_added_layers_are_kept(cli: Cli, models: Models, texts: Path, tmp_path: Path) -> None:
    result = result_of(cli(*train_args(models, texts, tmp_path / "one", "--steps", 2)))
    for name, start, *more in (
        ("three", result["checkpoint"], "--draft-layers", 3, "--type", "Q4_1", "--qat"),
        ("again", tmp_path / "three" / "drafter-Q4_1.gguf"),
    ):
        done = cli(*train_args(models, texts, tmp_path / name, "--steps", 2, "--finetune", start, *more))
        assert ("2 new layers" in done.stderr) is (name == "three"), done.stderr
        result = result_of(done)
        assert json.loads((tmp_path / name / "config.json").read_text())["num_hidden_layers"] == 3
        record = json.loads((tmp_path / name / "training.json").read_text())
        assert record["qat"] == ("Q4_1" if name == "three" else None)
    assert load_file(Path(result["checkpoint"]) / "model.safetensors")["layers.2.mlp.down_proj.weight"].any()
    assert acceptance_length(cli, models.target, result["gguf"], "Who was that man?") >= 1
    fewer = cli(
        *train_args(models, texts, tmp_path / "fewer", "--finetune", tmp_path / "three", "--draft-layers", 2)
    )
    assert fewer.returncode == 1 and "has 3 layers, and none can be removed" in fewer.stderr


@pytest.mark.long
def test_without_data_the_target_writes_the_training_data(cli: Cli, models: Models, tmp_path: Path) -> None:
    out = tmp_path / "out"
    args = ("train", "--target", models.target, "-o", out, "-c", 1024, "-t", 1, "--held-out", 0.2, "--json")
    done = cli(*args, "--conversations", 10, "--sequences", 4, "--steps", 2, "--batch-tokens", 64)
    result = result_of(done)
    assert (result["steps"], Path(result["gguf"]).is_file()) == (2, True)
    assert re.search(r"conversations: [1-9]\d* in conversations\.jsonl \(0 from earlier runs\)", done.stderr)
    assert len((out / "conversations.jsonl").read_text(encoding="utf-8").splitlines()) == 11
    record = json.loads((out / "config.json").read_text(encoding="utf-8"))["eaglecpp"]
    assert record["target"]["name"] == models.target.name


@pytest.mark.long
@pytest.mark.parametrize("family", ["eagle31", "dspark"])
def test_a_drafter_learns_from_conversations_and_is_used_if_it_is_better(
    family: str, cli: Cli, models: Models, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trains drafters that have much to learn: the random drafter of the tests, and a block drafter that was
    trained for two steps.
    """
    monkeypatch.setenv("EAGLECPP_HOME", str(tmp_path / "home"))
    draft = models.draft
    if family == "dspark":
        args = train_args(models, texts, tmp_path / "d", "--steps", 2, "--family", family)
        draft = Path(result_of(cli(*args))["gguf"])
    options: dict[str, Any] = {"n_ctx": 256, "learn": True, "strategy": "chain:3"}
    with Engine.open(models.target, draft, **options) as engine:
        for seed in range(40):
            engine.generate(QUESTIONS[seed % 3], max_tokens=40, ignore_eos=True, seed=seed, temperature=0.3)
    learning = Learning.of(models.target)
    assert len(learning.records()) == 40
    done = cli("learn", models.target, "--draft", draft, "--minutes", 0.5, "-t", 1, "--json")
    result = result_of(done)
    found = result["user"]
    assert found["n_texts"] >= 4 and found["least"] <= found["gain"] <= found["most"]
    is_better = found["least"] > 0 and result["general"]["gain"] >= -0.01
    assert result["is_used"] is is_better is (learning.facts(draft) is not None)
    assert not learning.work.exists() and not learning.has_news()
    if family == "dspark":
        assert is_better
        learnt = read_gguf(Path(result["drafter"]))
        before = read_gguf(draft)
        assert learnt.tensors.keys() == before.tensors.keys() and "conf_proj.weight" in learnt.tensors
        assert len(learnt.get("eaglecpp.held_out_rates")) == 8
        assert not np.array_equal(*(read_tensor(file, "conf_proj.weight") for file in (before, learnt)))
    if is_better:
        done = cli("learn", models.target, "--draft", draft, "--undo")
        assert done.returncode == 0 and learning.facts(draft) is None
