# SPDX-License-Identifier: MIT
"""`eaglecpp train`: trains a drafter for a GGUF from text and the target's own hidden states.

This module shows progress. `eaglecpp.train` does the work. It is only imported when the command runs, because
it needs the `train` extra. The options are declared in `eaglecpp.train.options`.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eaglecpp.cli.command import added, command, complete_model, json_option, option
from eaglecpp.cli.open_engine import look_up
from eaglecpp.cli.options import click_option, given
from eaglecpp.cli.terminal import Watch, laid_out, note, write, write_json
from eaglecpp.errors import InvalidValueError
from eaglecpp.options import describe
from eaglecpp.store.progress import bars_are_shown, new_bar
from eaglecpp.train.options import TrainOptions

if TYPE_CHECKING:
    from eaglecpp.train.fit.evaluate import Acceptance
    from eaglecpp.train.fit.loop import TrainProgress
    from eaglecpp.train.run import Result


@command(
    ("eaglecpp train --target model.gguf -o drafter", "the target writes its own data"),
    ("eaglecpp train --target smollm2 --data chats.jsonl -o drafter --minutes 60", "from your chats"),
    usual="target out data conversations minutes resume finetune family device as_json",
)
@option("--target", "-m", required=True, metavar="T", shell_complete=complete_model,
        help="The target: a GGUF file or a stored name.")  # fmt: skip
@option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder for the drafter and the training state.",
)
@added(*map(click_option, describe(TrainOptions)))
@json_option("the result as one JSON object")
def train(as_json: bool, **options: Any) -> None:
    """Train a drafter for a target, on hidden states of the GGUF that it will draft for."""
    check_torch()
    target = look_up(options.pop("target"), wants_draft=False).target
    try:
        asked = TrainOptions(target, **given(options))
    except InvalidValueError as error:
        raise click.UsageError(str(error)) from None
    with Display() as display:
        # The display starts before PyTorch is imported, because the import takes seconds.
        display.on_work("starting", 0, 1)
        from eaglecpp.train.run import train as run

        try:
            result = run(asked, display)
        except KeyboardInterrupt:
            display.close()
            resumed = " with --resume" if (asked.out / "state" / "last.pt").exists() else ""
            note(f"stopped; the same command{resumed} continues from the data in {asked.out}")
            raise click.exceptions.Exit(130) from None
    _print_result(result, as_json)
    if result.gguf is None and result.outcome.reason == "stopped":
        note(
            f"stopped at step {result.outcome.progress.step} and saved; to continue, run the same command "
            "with --resume"
        )
        raise click.exceptions.Exit(130)


class Display:
    """Displays the progress of a training on stderr: a bar on a terminal, and a line per evaluation. Handles
    Ctrl+C.
    """

    def __init__(self) -> None:
        self._watch = Watch(on_request=self._stopping)
        self._listening = self._watch.listening()
        self._is_training = False
        self._bar: Any = None
        self._what = ""
        self._tokens: tuple[int, float] | None = None
        self._held_out = ""

    def __enter__(self) -> Display:
        self._listening.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._listening.__exit__(*error)
        self.close()

    def stop(self) -> bool:
        """Returns True after Ctrl+C was pressed."""
        return self._watch.requested

    def _stopping(self) -> None:
        then = "saving the training" if self._is_training else "stopping"
        self.note(f"Ctrl+C: {then} ... (press it again to stop at once; only saved data is kept)")
        if not self._is_training:
            raise KeyboardInterrupt

    def note(self, text: str) -> None:
        """Prints a line above the progress bar."""
        if self._bar is None:
            note(text)
        else:
            self._bar.write(laid_out(text), file=sys.stderr)

    def on_work(self, what: str, n_done: int, n_all: int, detail: str = "") -> None:
        """Draws a bar for each activity. During training, the loop calls `stop` to learn of Ctrl+C. In all
        other activities, Ctrl+C raises an exception.
        """
        self._is_training = what == "training"
        if self.stop() and not self._is_training:
            raise KeyboardInterrupt
        self._draw(what, n_done, n_all, detail)
        if n_done >= n_all:
            self.close()

    def on_step(self, progress: TrainProgress, share: float, loss: float) -> None:
        """Shows the used share of the budget, the loss, the tokens per second, and the result of the last
        evaluation.
        """
        if self._tokens is None:
            self._tokens = progress.tokens, progress.seconds
        n, seconds = progress.tokens - self._tokens[0], progress.seconds - self._tokens[1]
        rate = f"{n / seconds:.0f} tokens/s" if n and seconds > 0 else ""
        detail = f"step {progress.step}, loss {loss:.3f}, {rate}{self._held_out}"
        self._draw("training", int(1000 * min(share, 1.0)), 1000, detail)

    def on_evaluation(self, step: int, acceptance: Acceptance, best: bool) -> None:
        """Prints the result of an evaluation."""
        rates = " ".join(f"{rate:.3f}" for rate in acceptance.rates)
        self._held_out = f", length {acceptance.length:.2f}"
        self.note(
            f"step {step}: held-out acceptance per depth: {rates}; expected acceptance length "
            f"{acceptance.length:.2f}{' (best)' if best else ''}"
        )

    def _draw(self, what: str, n_done: int, n_all: int, detail: str) -> None:
        if not bars_are_shown():
            return
        if what != self._what:
            self.close()
            layout = "{desc} {percentage:3.0f}%|{bar}| [{elapsed}<{remaining}]{postfix}"
            self._bar = new_bar(what, n_all, bar_format=layout, leave=False)
            self._what = what
        self._bar.set_postfix_str(detail, refresh=False)
        self._bar.update(n_done - self._bar.n)

    def close(self) -> None:
        """Removes the progress bar."""
        if self._bar is not None:
            self._bar.close()
        self._bar, self._what = None, ""


def check_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise click.ClickException("training needs PyTorch, which is not installed: pip install torch")


def _print_result(result: Result, as_json: bool) -> None:
    progress, best = result.outcome.progress, result.outcome.best
    if as_json:
        write_json(
            {
                "checkpoint": str(result.checkpoint),
                "gguf": None if result.gguf is None else str(result.gguf),
                "reason": result.outcome.reason,
                "steps": progress.step,
                "tokens": progress.tokens,
                "seconds": round(progress.seconds, 1),
                "loss": progress.losses[-1][3] if progress.losses else None,
                "acceptance_length": None if best is None else best.length,
                "accepted_per_depth": None if best is None else list(best.rates),
                "skipped_steps": result.outcome.n_skipped,
            }
        )
    elif result.gguf is not None:
        write(f"{result.gguf}\n")
