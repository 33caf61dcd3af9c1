# SPDX-License-Identifier: MIT
"""`eaglecpp train`: a drafter for a GGUF, from text and the target's own hidden states.

Parses options, sets up the process, shows progress. The work is in `eaglecpp.train`, which is imported only
here and only when the command runs, because it needs the `train` extra.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eaglecpp.cli.command import Command, complete_model, option
from eaglecpp.cli.interrupts import Interrupts
from eaglecpp.cli.options import given
from eaglecpp.cli.progress import bars_are_shown, new_bar
from eaglecpp.cli.terminal import laid_out, note, write, write_json
from eaglecpp.options import MAX_SEQUENCES

if TYPE_CHECKING:
    from eaglecpp.train.fit.evaluate import Acceptance
    from eaglecpp.train.fit.loop import StepReport
    from eaglecpp.train.prepare import TrainOptions
    from eaglecpp.train.run import Result

__all__ = ["Display", "check_torch", "set_allocator", "train"]

_PATH = click.Path(path_type=Path)
_EXISTING = click.Path(exists=True, path_type=Path)


class LayerList(click.ParamType[tuple[int, ...]]):
    """Layer ids, such as 2,16,29."""

    name = "layers"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        try:
            return tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers such as 2,16,29", param, ctx)


@click.command(
    cls=Command,
    examples=[
        ("eaglecpp train --target model.gguf -o drafter", "the target writes its own data"),
        (
            "eaglecpp train --target smollm2 --data chats.jsonl -o drafter --minutes 60",
            "an hour, from your chats",
        ),
    ],
)
@option(
    "--target",
    "-m",
    required=True,
    metavar="T",
    shell_complete=complete_model,
    help="The target: a GGUF file or a stored name.",
)
@option(
    "--data",
    type=_EXISTING,
    multiple=True,
    help="What to learn from (repeatable): files or folders of chats (JSON Lines), text or source code. "
    "Without it the target writes conversations itself.",
)
@option("-o", "--out", type=_PATH, required=True, help="Folder for the drafter and the training state.")
@option(
    "--generate",
    is_flag=True,
    help="The data are prompts: the target first answers them, and the drafter learns from its answers.",
)
@option(
    "--on-policy",
    is_flag=True,
    help="With --generate and --finetune: the drafter drafts the answers, and also learns from what the "
    "target said behind its rejected drafts.",
)
@option(
    "--conversations",
    type=click.IntRange(1),
    metavar="N",
    help="Let the target write N whole conversations.  [default: 2000 without --data, else none]",
)
@option(
    "--sequences",
    type=click.IntRange(1, MAX_SEQUENCES),
    metavar="N",
    help="Texts that the target writes side by side.  [default: 32, fewer if memory is short]",
)
@option("--temp", type=click.FloatRange(0), help="Temperature for --generate.  [default: 0.7]")
@option(
    "-n", "--predict", type=click.IntRange(1), help="Maximum tokens per answer of --generate.  [default: 512]"
)
@option("--steps", type=click.IntRange(0), help="Stop after this many steps.")
@option("--epochs", type=click.FloatRange(0), help="Stop after this many passes over the data.  [default: 2]")
@option("--minutes", type=click.FloatRange(0), help="Stop after this many minutes.")
@option("--resume", is_flag=True, heading="Training", help="Continue the training in the folder.")
@option(
    "--finetune",
    metavar="CKPT",
    help="Start from this drafter: a checkpoint folder, a GGUF or hf.co/owner/name. Its form is kept, and "
    "its vocabulary too, unless --draft-vocab or --draft-layers say otherwise.",
)
@option("--eagle3", is_flag=True, help="Plain EAGLE-3 instead of EAGLE 3.1 (no fc_norm, no norm_output).")
@option("--mla", is_flag=True, help="Latent attention, as in Kimi's drafters: a much smaller cache.")
@option(
    "--eagle1",
    is_flag=True,
    help="EAGLE-1: reads the target's last state and uses its output head, the whole vocabulary.",
)
@option(
    "--ttt-steps",
    type=click.IntRange(1, 16),
    help="Steps of training-time test.  [default: 3 on a CPU, 4 on a GPU]",
)
@option(
    "--later-every",
    type=click.IntRange(1),
    metavar="N",
    help="Run every N-th row in the later steps of training-time test.  [default: 2 on a CPU, 1 on a GPU]",
)
@option(
    "--loss",
    type=click.Choice(["cross-entropy", "lk"]),
    default="cross-entropy",
    show_default=True,
    help="What to learn: the target's probabilities, or increasingly how many drafts it accepts (LK).",
)
@option(
    "--loss-vocab",
    type=click.IntRange(0),
    metavar="N",
    help="Tokens of the draft vocabulary in the loss; 0 = all.  [default: 4096 on a CPU, all on a GPU]",
)
@option(
    "--draft-vocab",
    type=click.IntRange(1),
    metavar="N",
    help="Size of the draft vocabulary, the most frequent tokens; with --finetune, a larger one keeps the "
    "drafter's tokens.  [default: 32000 or all]",
)
@option(
    "--draft-layers",
    type=click.IntRange(1, 16),
    metavar="N",
    help="Layers of the drafter; with --finetune, layers are added that change nothing at first.  "
    "[default: 1, or as many as it has]",
)
@option(
    "--share-head",
    is_flag=True,
    help="Use the target's output head without training it; the whole vocabulary.",
)
@option(
    "--random-start",
    is_flag=True,
    help="Start the layer with random weights, not with the target's last block.",
)
@option(
    "--aux-layers",
    type=LayerList(),
    metavar="IDS",
    help="Layers whose states are read; id k is the state that enters block k.  [default: 2, n/2, n-3]",
)
@option(
    "-c",
    "--n-ctx",
    "--max-length",
    "n_ctx",
    type=click.IntRange(8),
    help="Maximum tokens per conversation.  [default: 2048]",
)
@option(
    "--train-on",
    type=click.Choice(["assistant", "all"]),
    help="Which tokens of chats to learn.  [default: assistant]",
)
@option(
    "--held-out",
    type=click.FloatRange(0, 0.5),
    help="Share of the conversations to keep for evaluation.  [default: 0.02]",
)
@option(
    "--cache",
    type=_PATH,
    metavar="DIR",
    help="Keep the target's states on disk, for several passes over the data.",
)
@option(
    "--cache-type", type=click.Choice(["bf16", "int8"]), help="Type of the states on disk.  [default: bf16]"
)
@option(
    "--lr", type=click.FloatRange(0, min_open=True), help="Learning rate.  [default: depends on the width]"
)
@option(
    "--batch-tokens",
    type=click.IntRange(1),
    help="Minimum tokens per step.  [default: 1024 on a CPU, 8192 on a GPU]",
)
@option("--micro-tokens", type=click.IntRange(1), help="Maximum tokens computed at once.  [default: 4096]")
@option("--weight-decay", type=click.FloatRange(0), help="Weight decay of AdamW.  [default: 0.01]")
@option("--clip", type=click.FloatRange(0, min_open=True), help="Maximum gradient norm.  [default: 1]")
@option("--eval-steps", type=click.IntRange(1), help="Steps between evaluations.  [default: 20 per run]")
@option(
    "--patience",
    type=click.IntRange(1),
    help="Stop after this many evaluations without a better acceptance length.  [default: never]",
)
@option(
    "--seed",
    type=click.IntRange(0),
    heading="Training",
    help="Seed for weights, order and answers.  [default: 1]",
)
@option("--type", "type", metavar="TYPE", help="Type of the drafter's GGUF.  [default: Q8_0]")
@option(
    "--qat",
    is_flag=True,
    help="Quantisation-aware training: compute with the weights as --type will store them.",
)
@option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda", "mps"]),
    help="Where to train.  [default: auto]",
)
@option(
    "--dtype",
    type=click.Choice(["auto", "bf16", "fp32"]),
    help="Type to compute in; weights are fp32.  [default: bf16 where it is fast]",
)
@option("-t", "--threads", type=click.IntRange(1), help="Threads.  [default: physical cores]")
@option(
    "-ngl", "--n-gpu-layers", type=click.IntRange(-1), help="Layers of the target on the GPU.  [default: all]"
)
@option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def train(as_json: bool, **options: Any) -> None:
    """Train an EAGLE 3.1 drafter for a target, on the hidden states of the very GGUF that it will serve."""
    check_torch()
    _check(options)
    set_allocator()
    with Display() as display:
        display.on_work("starting", 0, 1)  # importing PyTorch takes seconds
        from eaglecpp.train.run import train as run

        try:
            result = run(_options(given(options)), display)
        except KeyboardInterrupt:
            display.close()
            if _is_first_process():
                note(_left_by(options["out"]))
            raise click.exceptions.Exit(130) from None
    if not _is_first_process():
        return
    _tell(result, as_json)
    if result.gguf is None and result.outcome.reason == "stopped":
        note(
            f"stopped at step {result.outcome.progress.step} and saved; to continue, run the same command "
            "with --resume"
        )
        raise click.exceptions.Exit(130)


class Display:
    """Progress on stderr: a bar on a terminal, whose clock goes on in the longest of steps; a line per
    evaluation everywhere; and what Ctrl+C does.
    """

    def __init__(self) -> None:
        self._interrupts = Interrupts(self.note)
        self._lock = threading.RLock()  # of the bar: its clock has a thread of its own
        self._ended = threading.Event()
        self._bar: Any = None
        self._what = ""
        self._tokens: tuple[int, float] | None = None
        self._held_out = ""

    def __enter__(self) -> Display:
        self._interrupts.__enter__()
        threading.Thread(target=self._tick, daemon=True).start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._ended.set()
        self._interrupts.__exit__(*error)
        self.close()

    def _tick(self) -> None:
        while not self._ended.wait(1.0):
            with self._lock:
                if self._bar is not None:
                    self._bar.refresh()

    def stop(self) -> bool:
        """Whether Ctrl+C was pressed."""
        return self._interrupts.requested

    def note(self, text: str) -> None:
        """A line above the bar."""
        with self._lock:
            if self._bar is None:
                note(text)
            else:
                self._bar.write(laid_out(text), file=sys.stderr)

    def on_work(self, what: str, n_done: int, n_all: int, detail: str = "") -> None:
        """A bar per activity. While steps are trained, `stop` tells of Ctrl+C, and the loop saves."""
        is_training = what == "training"
        if self._interrupts.requested and not is_training:
            raise KeyboardInterrupt
        self._interrupts.waits = is_training
        with self._lock:
            bar = self._shown(what, n_all)
            if bar is not None:
                bar.set_postfix_str(detail, refresh=False)
                bar.update(n_done - bar.n)
            if n_done >= n_all:
                self.close()

    def on_step(self, report: StepReport) -> None:
        """Shows the share of the budget, loss, tokens/s, and the result of the last evaluation."""
        if self._tokens is None:
            self._tokens = report.n_tokens, report.seconds
        with self._lock:
            bar = self._shown("training", 1000)
            if bar is None:
                return
            n, seconds = report.n_tokens - self._tokens[0], report.seconds - self._tokens[1]
            rate = f"{n / seconds:.0f} tokens/s" if n and seconds > 0 else ""
            bar.set_postfix_str(
                f"step {report.step}, loss {report.loss:.3f}, {rate}{self._held_out}", refresh=False
            )
            bar.update(int(1000 * min(report.progress, 1.0)) - bar.n)

    def on_evaluation(self, step: int, found: Acceptance, best: bool) -> None:
        """One line."""
        rates = " ".join(f"{rate:.3f}" for rate in found.rates)
        self._held_out = f", length {found.length:.2f}"
        self.note(
            f"step {step}: held-out acceptance per depth {rates}; expected acceptance length "
            f"{found.length:.2f}{' (best)' if best else ''}"
        )

    def _shown(self, what: str, total: int) -> Any:
        if not bars_are_shown():
            return None
        if what != self._what:
            self.close()
            layout = "{desc} {percentage:3.0f}%|{bar}| [{elapsed}<{remaining}]{postfix}"
            self._bar = new_bar(what, total, bar_format=layout, leave=False)
            self._what = what
        return self._bar

    def close(self) -> None:
        """Takes the bar away."""
        with self._lock:
            if self._bar is not None:
                self._bar.close()
            self._bar, self._what = None, ""


def _is_first_process() -> bool:
    """Whether this is the one of torchrun's processes that prints."""
    return os.environ.get("RANK", "0") == "0"


def _left_by(out: Path) -> str:
    """What a run that was stopped outside of its steps has left."""
    if (out / "state" / "last.pt").exists():
        return (
            f"stopped; {out} has the training up to its last saved step: run the same command with --resume"
        )
    if not out.is_dir() or not any(out.iterdir()):
        return "stopped before anything was made"
    return (
        f"stopped before the first step; what is in {out} so far is used again by the same command, with or "
        "without --resume"
    )


def set_allocator() -> None:
    """Restarts this command with glibc's allocator set for training, see `allocator`."""
    from eaglecpp.train.fit.allocator import with_allocator

    program = Path(sys.argv[0])
    if program.parts[-2:] == ("eaglecpp", "__main__.py"):
        with_allocator([sys.executable, "-P", "-m", "eaglecpp", *sys.argv[1:]])
    elif program.name.startswith("eaglecpp") and program.is_file():
        with_allocator([sys.executable, *sys.argv])


def check_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise click.ClickException(
            "training needs PyTorch, which is not installed; to get it: pip install torch matplotlib"
        )


def _options(options: dict[str, Any]) -> TrainOptions:
    """The options of the run; what was not given keeps the run's own default."""
    from eaglecpp.opening.find import find_target
    from eaglecpp.options import SamplingOptions
    from eaglecpp.train.capture.cache import CacheOptions
    from eaglecpp.train.fit.loop import Budget, Limits
    from eaglecpp.train.prepare import TrainOptions

    def take(*names: str) -> dict[str, Any]:
        return {name: options.pop(name) for name in names if name in options}

    budget, limits = take("steps", "epochs", "minutes"), take("micro_tokens", "eval_steps", "patience")
    cache, sampling = take("cache", "cache_type"), take("temp", "predict")
    if budget:
        options["budget"] = Budget(**budget)
    if cache:
        options["cache"] = CacheOptions(cache["cache"], cache.get("cache_type", "bf16"))
    if options["generate"]:
        options["sampling"] = SamplingOptions(
            temperature=sampling.get("temp", 0.7),
            max_tokens=sampling.get("predict", 512),
            seed=options.get("seed", 1),
        )
    options["target"] = find_target(options["target"]).target
    return TrainOptions(**options, limits=Limits(**limits))


def _check(options: dict[str, Any]) -> None:
    """Options that contradict each other."""
    if options["cache_type"] and not options["cache"]:
        raise click.UsageError("--cache-type needs --cache")
    if options["generate"] and not options["data"]:
        raise click.UsageError("--generate answers the prompts in --data: give files of prompts")
    if options["on_policy"] and not (options["generate"] and options["finetune"]):
        raise click.UsageError(
            "--on-policy is for a drafter that exists and answers that the target writes: give --finetune "
            "CKPT and --generate"
        )
    if (options["temp"] is not None or options["predict"]) and not options["generate"]:
        raise click.UsageError("--temp and --predict are for --generate")
    if options["share_head"] and options["draft_vocab"]:
        raise click.UsageError("--share-head drafts from the whole vocabulary: leave out --draft-vocab")
    if options["eagle1"]:
        others = [
            name
            for name in ("eagle3", "mla", "draft_vocab", "draft_layers", "aux_layers")
            if options.get(name)
        ]
        if others:
            names = ", ".join("--" + name.replace("_", "-") for name in others)
            raise click.UsageError(f"--eagle1 fixes the form of the drafter: leave out {names}")
    fixed = [name for name in ("eagle1", "eagle3", "mla", "share_head", "random_start") if options.get(name)]
    if options["finetune"] and fixed:  # a drafter that exists has these already
        names = ", ".join("--" + name.replace("_", "-") for name in fixed)
        raise click.UsageError(f"--finetune keeps the form of the drafter: leave out {names}")


def _tell(result: Result, as_json: bool) -> None:
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
