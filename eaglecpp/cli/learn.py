# SPDX-License-Identifier: MIT
"""`eaglecpp learn`: trains a model's drafter on this user's conversations, undoes that, and forgets them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from eaglecpp.cli.command import command, complete_model, json_option, option
from eaglecpp.cli.terminal import note, write, write_json
from eaglecpp.cli.train import Display, check_torch
from eaglecpp.errors import ModelNotFoundError
from eaglecpp.human import counted
from eaglecpp.learn.records import Learning
from eaglecpp.opening.find import find_here


@command(
    ("eaglecpp learn smollm2 --minutes 30", "train on what `run smollm2 --learn` has kept"),
    ("eaglecpp learn smollm2 --undo", "go back to the drafter that came with it"),
    ("eaglecpp learn smollm2 --forget", "delete what was kept"),
)
@click.argument("model", shell_complete=complete_model)
@option("--draft", metavar="D", help="The drafter that learns, if the model does not bring one.")
@option("--minutes", type=click.FloatRange(0, min_open=True), default=60.0, help="Train at most so long.")
@option("-t", "--threads", type=click.IntRange(1), help="Threads.  [default: physical cores]")
@option("--undo", "action", flag_value="undo", help="Use the drafter that came with the model again.")
@option("--forget", "action", flag_value="forget", help="Delete the conversations that were kept.")
@option("--status", "action", flag_value="status", help="Say what is kept and what came of it.")
@json_option("the result as one JSON object")
def learn(
    model: str, draft: str | None, minutes: float, threads: int | None, action: str | None, as_json: bool
) -> None:
    """Train the drafter of MODEL on your conversations, which `--learn` keeps.

    The new drafter is used only if it drafts texts of yours that it was not trained on better than the old
    one, by more than chance, and the model's general texts at most 1 % worse.
    """
    found = find_here(model, draft)
    target, stock = found.target, found.draft
    if stock is None or stock == target:
        raise ModelNotFoundError(
            f"model {model!r} has no drafter that could learn; name one with --draft, or make one with "
            "eaglecpp train"
        )
    learning = Learning.of(target)
    if action == "forget":
        n = learning.forget()
        note(f"deleted {counted(n, 'conversation')} of {model}")
    elif action == "undo":
        if not learning.undo(stock):
            raise click.ClickException(f"{model} uses its first drafter; there is nothing to undo")
        note(f"{model} uses its first drafter again")
    elif action == "status":
        if as_json:
            write_json(learning.status(stock))
        else:
            rows = [f"{name}: {text}\n" for name, text in learning.rows(stock)]
            write("".join(rows) or f"nothing is kept of {model}, and its drafter has learnt nothing\n")
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
    for name, found in (("your texts", result.user), ("general texts", result.general)):
        if found is not None:
            note(
                f"{name}: acceptance length {found.before:.2f} before, {found.after:.2f} after "
                f"({100 * found.least:+.1f} to {100 * found.most:+.1f} %, {counted(found.n_texts, 'text')})"
            )
    used = "the new drafter is used from now on" if result.is_used else "the drafter stays as it was"
    note(f"{used}: {result.reason}")
