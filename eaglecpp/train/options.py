# SPDX-License-Identifier: MIT
"""`TrainOptions`: what a training is asked for, declared once; the command's options are made from it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from eaglecpp.errors import InvalidValueError
from eaglecpp.options import MAX_SEQUENCES, SamplingOptions
from eaglecpp.options.checked import Option, checked

Family = Literal["eagle31", "eagle3", "eagle1", "dspark", "dflash", "dflash2"]
BLOCK_FAMILIES = ("dspark", "dflash", "dflash2")


def _option(
    kind: type | str,
    text: str,
    default: Any = None,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    flags: tuple[str, ...] = (),
) -> Any:
    """kind: as in `Option`, or "paths", "path", "ids". A default of None is chosen, as the text says."""
    option = Option("", kind, default, text, minimum, maximum, choices, flags, "")
    return dataclasses.field(default=default, metadata={"option": option})


@dataclass(frozen=True)
class TrainOptions:
    """Raises InvalidValueError, InvalidTypeError for values that are none, and for options that contradict
    each other. target: the GGUF; out: the folder.
    """

    target: Path
    out: Path
    data: tuple[Path, ...] = _option(
        "paths",
        "What to learn from (repeatable): files or folders of chats (JSON Lines), text or source code. "
        "Without it the target writes conversations itself.",
        (),
    )
    generate: bool = _option(
        bool,
        "The data are prompts: the target first answers them, and the drafter learns from its answers.",
        False,
    )
    conversations: int | None = _option(
        int,
        "Let the target write N whole conversations.  [default: 2000 without --data, else none]",
        minimum=1,
    )
    sequences: int | None = _option(
        int,
        "Texts that the target writes side by side.  [default: 32, fewer if memory is short]",
        minimum=1,
        maximum=MAX_SEQUENCES,
    )
    temp: float | None = _option(float, "Temperature for --generate.  [default: 0.7]", minimum=0)
    predict: int | None = _option(
        int, "Maximum tokens per answer of --generate.  [default: 512]", minimum=1, flags=("-n", "--predict")
    )
    steps: int | None = _option(int, "Stop after this many steps.", minimum=0)
    epochs: float | None = _option(
        float, "Stop after this many passes over the data.  [default: 2]", minimum=0
    )
    minutes: float | None = _option(float, "Stop after this many minutes.", minimum=0)
    resume: bool = _option(bool, "Continue the training in the folder.", False)
    finetune: str | None = _option(
        str,
        "Start from this drafter: a checkpoint folder, a GGUF or hf.co/owner/name. Its form and "
        "vocabulary are kept.",
    )
    family: Family | None = _option(  # noqa: RUF009 # a text is immutable
        str,
        "Kind of drafter: eagle31, plain eagle3, eagle1 (which uses the target's output head and whole "
        "vocabulary), or the block drafters dspark, dflash and dflash2 (which uses them, too).  "
        "[default: eagle31]",
        choices=get_args(Family),
    )
    block_size: int | None = _option(
        int, "Rows of a block, of block drafters.  [default: 8]", minimum=2, maximum=64
    )
    causal_block: bool = _option(bool, "Rows of a block see only those before them.", False)
    start_from: str | None = _option(
        str,
        "Take from this drafter, of whatever kind, all weights that have the same place and shape in the new "
        "one, and unless told otherwise its vocabulary and the layers whose states it reads.",
    )
    ttt_steps: int | None = _option(
        int,
        "Steps of training-time test, or slots of a block.  [default: 3 on a CPU, 4 on a GPU, all slots]",
        minimum=1,
        maximum=16,
    )
    later_every: int | None = _option(
        int,
        "Run every N-th row in the later steps of training-time test; a block drafter begins a block at one "
        "row in N.  [default: 2 on a CPU, 1 on a GPU; 8]",
        minimum=1,
    )
    loss: Literal["cross-entropy", "lk"] = _option(
        str,
        "What to learn: the target's probabilities, or increasingly how many drafts it accepts (LK).",
        "cross-entropy",
        choices=("cross-entropy", "lk"),
    )
    loss_vocab: int | None = _option(
        int,
        "Tokens of the draft vocabulary in the loss; 0 = all.  [default: 4096 on a CPU, all on a GPU]",
        minimum=0,
    )
    draft_vocab: int | None = _option(
        int, "Size of the draft vocabulary, the most frequent tokens.  [default: 32000 or all]", minimum=1
    )
    draft_layers: int | None = _option(
        int,
        "Layers of the drafter; with --finetune, layers are added that change nothing at first.  "
        "[default: 1, of a block drafter 2, or as many as it has]",
        minimum=1,
        maximum=16,
    )
    share_head: bool = _option(
        bool, "Use the target's output head without training it; the whole vocabulary.", False
    )
    aux_layers: tuple[int, ...] = _option(
        "ids",
        "Layers whose states are read; id k is the state that enters block k.  [default: 2, n/2, n-3]",
        (),
    )
    n_ctx: int | None = _option(
        int,
        "Maximum tokens per conversation.  [default: 2048]",
        minimum=8,
        flags=("-c", "--n-ctx", "--max-length"),
    )
    held_out: float = _option(
        float, "Share of the conversations to keep for evaluation.", 0.02, minimum=0, maximum=0.5
    )
    cache: Path | None = _option(  # noqa: RUF009 # a path is immutable
        "path", "Keep the target's states on disk, for several passes over the data."
    )
    cache_type: Literal["bf16", "int8"] | None = _option(
        str, "Type of the states on disk.  [default: bf16]", choices=("bf16", "int8")
    )
    lr: float | None = _option(float, "Learning rate.  [default: depends on the width]", minimum=1e-12)
    batch_tokens: int | None = _option(
        int, "Minimum tokens per step.  [default: 1024 on a CPU, 8192 on a GPU]", minimum=1
    )
    micro_tokens: int = _option(int, "Maximum tokens computed at once.", 4096, minimum=1)
    eval_steps: int | None = _option(int, "Steps between evaluations.  [default: 20 per run]", minimum=1)
    patience: int | None = _option(
        int,
        "Stop after this many evaluations without a better acceptance length.  [default: never]",
        minimum=1,
    )
    seed: int = _option(int, "Seed for weights, order and answers.", 1, minimum=0)
    type: str = _option(str, "Type of the drafter's GGUF.", "Q8_0")
    qat: bool = _option(
        bool, "Quantisation-aware training: compute with the weights as --type will store them.", False
    )
    device: str = _option(str, "Where to train.", "auto", choices=("auto", "cpu", "cuda", "mps"))
    threads: int | None = _option(
        int, "Threads.  [default: physical cores]", minimum=1, flags=("-t", "--threads")
    )
    n_gpu_layers: int = _option(
        int,
        "Layers of the target on the GPU.  [default: all]",
        -1,
        minimum=-1,
        flags=("-ngl", "--n-gpu-layers"),
    )

    def __post_init__(self) -> None:
        for option in describe():
            if option.kind in (int, float, str, bool):
                object.__setattr__(self, option.name, checked(option, getattr(self, option.name)))
        if self.cache_type and not self.cache:
            raise InvalidValueError("--cache-type needs --cache")
        if self.generate and not self.data:
            raise InvalidValueError("--generate answers the prompts in --data: give files of prompts")
        if not self.generate and (self.temp is not None or self.predict):
            raise InvalidValueError("--temp and --predict are for --generate")
        if self.share_head and self.draft_vocab:
            raise InvalidValueError("--share-head drafts from the whole vocabulary: leave out --draft-vocab")
        fixed: tuple[str, ...] = ("draft_vocab", "draft_layers", "aux_layers")
        if self.family == "eagle1" and (others := self._given(*fixed)):
            raise InvalidValueError(f"--family eagle1 fixes the form of the drafter: leave out {others}")
        others = self._given("block_size", "causal_block")
        if others and not self.finetune and self.family not in BLOCK_FAMILIES:
            raise InvalidValueError(
                f"only --family {', '.join(BLOCK_FAMILIES)} have blocks: leave out {others}"
            )
        if self.family == "dflash2" and self.draft_vocab:
            raise InvalidValueError(
                "--family dflash2 drafts from the whole vocabulary: leave out --draft-vocab"
            )
        # a drafter that exists has these already
        fixed = ("family", "block_size", "causal_block", "start_from", "share_head", "draft_vocab")
        if self.finetune and (others := self._given(*fixed)):
            raise InvalidValueError(f"--finetune keeps the form of the drafter: leave out {others}")

    def _given(self, *names: str) -> str:
        """Those that are set, as on the command line."""
        return ", ".join("--" + name.replace("_", "-") for name in names if getattr(self, name))

    @property
    def sampling(self) -> SamplingOptions:
        """Of answers."""
        temperature = 0.7 if self.temp is None else self.temp
        return SamplingOptions(temperature=temperature, max_tokens=self.predict or 512, seed=self.seed)


def describe() -> list[Option]:
    """The declared options, in order."""
    fields = dataclasses.fields(TrainOptions)
    return [dataclasses.replace(f.metadata["option"], name=f.name) for f in fields if "option" in f.metadata]
