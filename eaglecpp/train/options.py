# SPDX-License-Identifier: MIT
"""`TrainOptions` declares the options of a training. The command line is generated from these
declarations.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from eaglecpp.errors import InvalidValueError
from eaglecpp.options import MAX_SEQUENCES, SamplingOptions
from eaglecpp.options.checked import Checked, declare

Family = Literal["eagle31", "eagle3", "eagle1", "dspark", "dflash", "dflash2"]
BLOCK_FAMILIES = ("dspark", "dflash", "dflash2")


@dataclass(frozen=True)
class TrainOptions(Checked):
    """Options of a training. target: the target's GGUF; out: the output folder. Raises InvalidValueError and
    InvalidTypeError for invalid values, and for options that contradict each other.
    """

    target: Path
    out: Path
    data: tuple[Path, ...] = declare(
        (),
        "Training data (repeatable): files or folders of chats (JSON Lines), text or source code. "
        "Without it, the target writes conversations itself.",
        kind="paths",
    )
    generate: bool = declare(
        False, "Treat the data as prompts: the target answers them, and the drafter learns from the answers."
    )
    conversations: int | None = declare(
        None,
        "Let the target write N whole conversations.  [default: 2000 without --data, 0 with --data]",
        kind=int,
        low=1,
    )
    sequences: int | None = declare(
        None,
        "Texts that the target writes at the same time.  [default: 32, fewer if memory is short]",
        kind=int,
        low=1,
        high=MAX_SEQUENCES,
    )
    temp: float | None = declare(None, "Temperature for --generate.  [default: 0.7]", kind=float, low=0)
    predict: int | None = declare(
        None,
        "Maximum tokens per answer of --generate.  [default: 512]",
        kind=int,
        low=1,
        flags="-n --predict",
    )
    steps: int | None = declare(None, "Stop after this many steps.", kind=int, low=0)
    epochs: float | None = declare(
        None, "Stop after this many passes over the data.  [default: 2]", kind=float, low=0
    )
    minutes: float | None = declare(None, "Stop after this many minutes.", kind=float, low=0)
    resume: bool = declare(False, "Continue the training in the folder.")
    finetune: str | None = declare(
        None,
        "Start from this drafter (a folder, a GGUF or hf.co/owner/name), and keep its form and vocabulary.",
        metavar="CKPT",
    )
    family: Family | None = declare(
        None,
        "Kind of drafter: eagle31, plain eagle3, eagle1 (which uses the target's output head and whole "
        "vocabulary), or the block drafters dspark, dflash and dflash2 (which also uses both).  "
        "[default: eagle31]",
        choices=get_args(Family),
    )
    block_size: int | None = declare(
        None, "Positions of a block, for block drafters.  [default: 8]", kind=int, low=2, high=64
    )
    causal_block: bool = declare(False, "Let positions of a block attend only to earlier ones.")
    start_from: str | None = declare(
        None,
        "Copy from this drafter, of any kind, all weights that have the same role and shape in the new one. "
        "Also take its vocabulary and extracted layers, unless other options set them.",
        metavar="CKPT",
    )
    ttt_steps: int | None = declare(
        None,
        "Steps of training-time test, or positions of a block.  [default: 3 on a CPU, 4 on a GPU; all "
        "positions]",
        kind=int,
        low=1,
        high=16,
    )
    later_every: int | None = declare(
        None,
        "Use every N-th position in the later steps of training-time test; for a block drafter, start a "
        "block at one position in N.  [default: 2 on a CPU, 1 on a GPU; blocks 8]",
        kind=int,
        low=1,
    )
    loss: Literal["cross-entropy", "lk"] = declare(
        "cross-entropy",
        "Objective: the target's probabilities, or (lk) increasingly the number of accepted drafts.",
        choices=("cross-entropy", "lk"),
    )
    loss_vocab: int | None = declare(
        None,
        "Draft tokens that the loss considers; 0 = all.  [default: 4096 on a CPU, all on a GPU]",
        kind=int,
        low=0,
    )
    draft_vocab: int | None = declare(
        None,
        "Size of the draft vocabulary, the most frequent tokens.  [default: 32000 or all]",
        kind=int,
        low=1,
    )
    draft_layers: int | None = declare(
        None,
        "Layers of the drafter; with --finetune, new layers start as the identity.  "
        "[default: 1; for a block drafter, 2; with --finetune, unchanged]",
        kind=int,
        low=1,
        high=16,
    )
    share_head: bool = declare(
        False, "Use the target's output head without training it; implies the whole vocabulary."
    )
    aux_layers: tuple[int, ...] = declare(
        (),
        "Layers whose hidden states the drafter reads; id k enters block k; some targets refuse 0.  "
        "[default: 2, n/2, n-3]",
        kind="ids",
        metavar="IDS",
    )
    n_ctx: int | None = declare(
        None,
        "Maximum tokens per conversation.  [default: 2048]",
        kind=int,
        low=8,
        flags="-c --n-ctx --max-length",
    )
    held_out: float = declare(0.02, "Share of the conversations to keep for evaluation.", low=0, high=0.5)
    cache: Path | None = declare(
        None,
        "Cache the target's hidden states on disk, for several passes over the data.",
        kind="path",
        metavar="DIR",
    )
    cache_type: Literal["bf16", "int8"] | None = declare(
        None, "Type of the cached hidden states.  [default: bf16]", choices=("bf16", "int8")
    )
    lr: float | None = declare(None, "Learning rate.  [default: depends on the width]", kind=float, low=1e-12)
    batch_tokens: int | None = declare(
        None, "Minimum tokens per step.  [default: 1024 on a CPU, 8192 on a GPU]", kind=int, low=1
    )
    micro_tokens: int = declare(4096, "Maximum tokens computed at once.", low=1)
    eval_steps: int | None = declare(
        None, "Steps between evaluations.  [default: 20 per run]", kind=int, low=1
    )
    patience: int | None = declare(
        None,
        "Stop after this many evaluations without a better acceptance length.  [default: never]",
        kind=int,
        low=1,
    )
    seed: int = declare(1, "Seed for weights, order and answers.", low=0)
    type: str = declare("Q8_0", "Type of the drafter's GGUF.", metavar="TYPE")
    qat: bool = declare(
        False, "Quantisation-aware training: compute with the weights as --type will store them."
    )
    device: str = declare("auto", "Training device.", choices=("auto", "cpu", "cuda", "mps"))
    threads: int | None = declare(
        None, "Threads.  [default: physical cores]", kind=int, low=1, flags="-t --threads"
    )
    n_gpu_layers: int = declare(
        -1, "Layers of the target on the GPU.  [default: all]", low=-1, flags="-ngl --n-gpu-layers"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cache_type and not self.cache:
            raise InvalidValueError("--cache-type needs --cache")
        if self.generate and not self.data:
            raise InvalidValueError("--generate answers the prompts in --data: add --data with prompt files")
        if not self.generate and (self.temp is not None or self.predict):
            raise InvalidValueError("--temp and --predict need --generate")
        if self.share_head and self.draft_vocab:
            raise InvalidValueError("--share-head drafts from the whole vocabulary: remove --draft-vocab")
        fixed: tuple[str, ...] = ("draft_vocab", "draft_layers", "aux_layers")
        if self.family == "eagle1" and (others := self._given(*fixed)):
            raise InvalidValueError(f"--family eagle1 fixes the form of the drafter: remove {others}")
        others = self._given("block_size", "causal_block")
        if others and not self.finetune and self.family not in BLOCK_FAMILIES:
            raise InvalidValueError(f"only --family {', '.join(BLOCK_FAMILIES)} have blocks: remove {others}")
        if self.family == "dflash2" and self.draft_vocab:
            raise InvalidValueError("--family dflash2 drafts from the whole vocabulary: remove --draft-vocab")
        # An existing drafter determines these options.
        fixed = ("family", "block_size", "causal_block", "start_from", "share_head", "draft_vocab")
        if self.finetune and (others := self._given(*fixed)):
            raise InvalidValueError(f"--finetune keeps the form of the drafter: remove {others}")

    def _given(self, *names: str) -> str:
        """Returns the flags of the options in `names` that are set."""
        return ", ".join("--" + name.replace("_", "-") for name in names if getattr(self, name))

    @property
    def sampling(self) -> SamplingOptions:
        """Returns the sampling options of generated answers."""
        temperature = 0.7 if self.temp is None else self.temp
        return SamplingOptions(temperature=temperature, max_tokens=self.predict or 512, seed=self.seed)
