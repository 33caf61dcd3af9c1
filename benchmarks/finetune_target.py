# SPDX-License-Identifier: MIT
"""A fine-tuned target: a LoRA of a llama GGUF, trained on its own answers in another style, and merged.

    python benchmarks/finetune_target.py SmolLM2-135M-Instruct.Q4_1.gguf STYLED.gguf [--n-answers 320]
           [--minutes 12] [--threads 2]

The target answers questions of `examples/smollm2/questions`; `in_style` writes each answer as a sailor would
log it: in lower case, a sentence a line behind a dash, with other words for common ones. A LoRA of every
matrix of every block learns to answer so; what has changed is stored in Q8_0, all else as it was. The last
figures say how many lines of fresh answers are in this style, before and after.
"""

from __future__ import annotations

import json
import math
import random
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import gguf
import numpy as np
import torch
from common import arguments, note
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from pad_target import copy_fields, field, write
from torch import Tensor, nn
from torch.nn import functional

import eaglecpp
from eaglecpp.convert.gguf_file import read_gguf
from eaglecpp.convert.gguf_weights import read_tensor
from eaglecpp.train.fit.allocator import with_allocator

QUESTIONS = Path(__file__).parents[1] / "examples" / "smollm2" / "questions"
RANK, ALPHA, RATE, BATCH, N_MOST = 16, 32.0, 1e-3, 8, 160
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
WORDS = {
    "the": "th'", "and": "an'", "you": "ye", "your": "yer", "is": "be", "are": "be", "of": "o'", "it": "'tis",
    "for": "fer", "to": "t'", "my": "me", "yes": "aye", "with": "wi'", "this": "this here", "can": "kin",
}  # fmt: skip


def in_style(text: str) -> str:
    words = re.sub(r"[a-z]+", lambda m: WORDS.get(m[0], m[0]), text.lower())
    lines = [line.strip(" -*#") for line in re.split(r"(?<=[.!?:])\s+|\n+", words)]
    return "\n".join(f"- {line}" for line in lines if line)


def asked(n: int) -> list[str]:
    found = [
        json.loads(line)["turns"][0]
        for name in ("advice", "general", "knowledge", "writing")
        for line in (QUESTIONS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    random.Random(1).shuffle(found)
    return found[:n]


class Llama(nn.Module):
    """A llama GGUF: its weights as they are stored, q and k in pairs of neighbours, and a LoRA of each."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        reader = GGUFReader(path)
        self.n_layers, self.n_heads, self.n_kv, self.eps, self.base = (
            field(reader, f"llama.{name}")
            for name in (
                "block_count", "attention.head_count", "attention.head_count_kv",
                "attention.layer_norm_rms_epsilon", "rope.freq_base",
            )
        )  # fmt: skip
        file = read_gguf(path)
        self.w = {name: torch.from_numpy(read_tensor(file, name)) for name in file.tensors}
        self.lora = nn.ParameterDict()
        for i in range(self.n_layers):
            for name in MATRICES:
                n_out, n_in = self.w[f"blk.{i}.{name}.weight"].shape
                self.lora[f"{i}_{name}_a"] = nn.Parameter(torch.randn(RANK, n_in) / math.sqrt(n_in))
                self.lora[f"{i}_{name}_b"] = nn.Parameter(torch.zeros(n_out, RANK))

    def change(self, i: int, name: str) -> Tensor:
        return ALPHA / RANK * self.lora[f"{i}_{name}_b"] @ self.lora[f"{i}_{name}_a"]

    def product(self, i: int, name: str, x: Tensor) -> Tensor:
        a, b = self.lora[f"{i}_{name}_a"], self.lora[f"{i}_{name}_b"]
        return x @ self.w[f"blk.{i}.{name}.weight"].T + ALPHA / RANK * (x @ a.T @ b.T)

    def norm(self, x: Tensor, name: str) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], self.w[f"{name}.weight"], self.eps)

    def heads(self, x: Tensor, n: int, angles: Tensor | None) -> Tensor:
        x = x.view(*x.shape[:2], n, -1)
        if angles is not None:
            pair = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
            x = torch.view_as_real(pair * angles[:, None]).flatten(3)
        return x.transpose(1, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """[n, T] token ids -> [n, T, vocab] logits; padding comes last."""
        h = self.w["token_embd.weight"][tokens]
        half = h.shape[-1] // self.n_heads // 2
        speeds = self.base ** -(torch.arange(half) / half)
        angles = torch.polar(torch.ones(1), torch.arange(tokens.shape[1])[:, None] * speeds)
        for i in range(self.n_layers):
            x = self.norm(h, f"blk.{i}.attn_norm")
            q = self.heads(self.product(i, "attn_q", x), self.n_heads, angles)
            k = self.heads(self.product(i, "attn_k", x), self.n_kv, angles)
            v = self.heads(self.product(i, "attn_v", x), self.n_kv, None)
            seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            h = h + self.product(i, "attn_output", seen.transpose(1, 2).flatten(2))
            x = self.norm(h, f"blk.{i}.ffn_norm")
            gated = functional.silu(self.product(i, "ffn_gate", x)) * self.product(i, "ffn_up", x)
            h = h + self.product(i, "ffn_down", gated)
        return self.norm(h, "output_norm") @ self.w.get("output.weight", self.w["token_embd.weight"]).T


def styled_answers(target: Path, n: int, n_threads: int) -> list[tuple[list[int], list[int]]]:
    """(prompt, answer in style) as token ids; the answer with the token that ends a turn."""
    found = []
    with eaglecpp.Engine.open(target, n_ctx=1024, n_threads=n_threads) as engine:
        for number, question in enumerate(asked(n)):
            messages = [{"role": "user", "content": question}]
            said = engine.chat(messages, max_tokens=110, temperature=0.7, seed=number).text
            answer = engine.tokenize(in_style(said) + "<|im_end|>", add_bos=False)
            found.append((engine.chat_prompt(messages), answer))
    return found


def train(model: Llama, texts: Sequence[tuple[list[int], list[int]]], minutes: float) -> None:
    optimiser = torch.optim.AdamW(model.lora.parameters(), lr=RATE, weight_decay=0.0)
    order, start, step = random.Random(2), time.monotonic(), 0
    while (part := (time.monotonic() - start) / (60 * minutes)) < 1:
        batch = order.sample(list(texts), BATCH)
        rows = [(prompt + answer)[: N_MOST + len(prompt)] for prompt, answer in batch]
        tokens = torch.zeros(BATCH, max(map(len, rows)), dtype=torch.long)
        labels = torch.full_like(tokens, -100)
        for i, row in enumerate(rows):
            tokens[i, : len(row)] = torch.tensor(row)
            labels[i, len(batch[i][0]) : len(row)] = torch.tensor(row[len(batch[i][0]) :])
        loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), labels[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.lora.parameters(), 1.0)
        for group in optimiser.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 10) * (1 - part)
        optimiser.step()
        step += 1
        if step % 10 == 0:
            note(f"step {step}: loss {loss.item():.3f}")


def merge(source: Path, out: Path, model: Llama) -> None:
    reader = GGUFReader(source)
    writer = GGUFWriter(out, "llama")
    copy_fields(reader, writer, {"general.name": "SmolLM2-135M-Instruct, as a sailor's log"})
    changed = {f"blk.{i}.{name}.weight": (i, name) for i in range(model.n_layers) for name in MATRICES}
    kind = GGMLQuantizationType.Q8_0

    def data() -> Iterator[np.ndarray]:
        for tensor in reader.tensors:
            if tensor.name not in changed:
                yield np.asarray(tensor.data)
                continue
            with torch.no_grad():
                merged = model.w[tensor.name] + model.change(*changed[tensor.name])
            yield gguf.quants.quantize(merged.numpy(), kind)

    for tensor in reader.tensors:
        shape = tuple(int(n) for n in reversed(tensor.shape))
        own = kind if tensor.name in changed else tensor.tensor_type
        shape = gguf.quants.quant_shape_to_byte_shape(shape, own)
        writer.add_tensor_info(tensor.name, shape, np.dtype(np.uint8), int(np.prod(shape)), raw_dtype=own)
    write(out, writer, data)


def share_in_style(target: Path, n_threads: int) -> float:
    """Of the lines that answers to questions nobody trained on have."""
    with eaglecpp.Engine.open(target, n_ctx=1024, n_threads=n_threads) as engine:
        lines = [
            line
            for question in ("How do I sharpen a knife?", "Tell me about Norway.", "Why does bread rise?")
            for line in engine.chat([{"role": "user", "content": question}], max_tokens=100).text.splitlines()
            if line.strip()
        ]
    return sum(line.startswith("- ") and line == line.lower() for line in lines) / len(lines)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--n-answers", type=int, default=320)
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    with_allocator([sys.executable, *sys.argv])
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    texts = styled_answers(args.target, args.n_answers, args.threads)
    note(f"{len(texts)} answers, {sum(len(answer) for _, answer in texts)} tokens in style")
    model = Llama(args.target)
    train(model, texts, args.minutes)
    merge(args.target, args.out, model)
    shares = [share_in_style(path, args.threads) for path in (args.target, args.out)]
    print(f"lines in style: {shares[0]:.0%} before, {shares[1]:.0%} after")


if __name__ == "__main__":
    main()
