# SPDX-License-Identifier: MIT
"""`eaglecpp learn`: trains a model's drafter on recorded conversations, undoes a training, and deletes the
records.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from eaglecpp.cli.command import command, complete_model, json_option, option
from eaglecpp.cli.options import Number
from eaglecpp.cli.terminal import note, write, write_json
from eaglecpp.cli.train import Display, check_torch
from eaglecpp.errors import ModelNotFoundError
from eaglecpp.human import counted
from eaglecpp.learn.records import Learning
from eaglecpp.opening.find import find_here


@command(
    ("eaglecpp learn smollm2 --minutes 30", "train on what `run smollm2 --learn` recorded"),
    ("eaglecpp learn smollm2 --undo", "return to the drafter that came with it"),
    ("eaglecpp learn smollm2 --forget", "delete the recorded conversations"),
)
@click.argument("model", shell_complete=complete_model)
@option("--draft", metavar="D", help="The drafter to train, if the model has none of its own.")
@option("--minutes", type=Number(0, min_open=True), default=60.0, help="Maximum training time.")
@option("-t", "--threads", type=click.IntRange(1), help="Threads.  [default: physical cores]")
@option("--undo", "action", flag_value="undo", help="Use the drafter that came with the model again.")
@option("--forget", "action", flag_value="forget", help="Delete the recorded conversations.")
@option(
    "--status", "action", flag_value="status", help="Show the recorded conversations and the last result."
)
@json_option("the result as one JSON object")
def learn(
    model: str, draft: str | None, minutes: float, threads: int | None, action: str | None, as_json: bool
) -> None:
    """Train the drafter of MODEL on your conversations, which `--learn` records.

    The new drafter is used only if it passes two tests on texts outside its training data: your texts are
    drafted better than before, by more than chance, and general texts no more than 1 % worse.
    """
    files = find_here(model, draft)
    target, stock = files.target, files.draft
    if stock is None or stock == target:
        raise ModelNotFoundError(
            f"model {model!r} has no drafter to train; use --draft, or make a drafter with eaglecpp train"
        )
    learning = Learning.of(target)
    if action == "forget":
        n = learning.forget()
        note(f"deleted {counted(n, 'recorded conversation')} with {model}")
    elif action == "undo":
        if not learning.undo(stock):
            raise click.ClickException(f"{model} uses its original drafter; there is nothing to undo")
        note(f"{model} uses its original drafter again")
    elif action == "status":
        if as_json:
            write_json(learning.status(stock))
        else:
            rows = [f"{name}: {text}\n" for name, text in learning.rows(stock)]
            write(
                "".join(rows) or f"no conversations of {model} are recorded, and its drafter is unchanged\n"
            )
    else:
        _train(target, stock, minutes, threads or 0, as_json)


def _train(target: Path, stock: Path, minutes: float, threads: int, as_json: bool) -> None:
    check_torch()
    from eaglecpp.learn.training import learn as train_on

    with Display() as display:
        result = train_on(target, stock, display, minutes=minutes, threads=threads)
    if as_json:
        write_json(asdict(result) | {"drafter": str(result.drafter)})
        return
    for name, result_on in (("your texts", result.user), ("general texts", result.general)):
        if result_on is not None:
            gain = f"{100 * result_on.least:+.1f} to {100 * result_on.most:+.1f} %"
            note(
                f"{name}: acceptance length {result_on.before:.2f} before, {result_on.after:.2f} after "
                f"({gain}, {counted(result_on.n_texts, 'text')})"
            )
    used = "the new drafter is used from now on" if result.is_used else "the drafter is unchanged"
    note(f"{used}: {result.reason}")
