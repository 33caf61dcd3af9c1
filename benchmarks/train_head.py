# SPDX-License-Identifier: MIT
"""A real model with a head for further tokens (MTP) that was trained until it drafts: SmolLM2 as a `mimo2`.

    python benchmarks/train_head.py SmolLM2-135M-Instruct.Q4_1.gguf OUT.gguf [--answers 500] [--epochs 2]
    python benchmarks/compare.py --target OUT.gguf --draft OUT.gguf --prompts benchmarks/data/chat.jsonl ...

No small model comes with a head, and llama.cpp runs heads of some architectures only. What SmolLM2 computes
can be written as one of them, `mimo2` without experts and with a window longer than any text: matrices keep
their bits, rows of queries and keys are sorted as that architecture rotates them. The head begins as a copy
of the last block behind a projection of [embedding; state], and learns from answers of the model itself to
questions that nobody asks in the benchmarks. Prints the share of held-out tokens whose likeliest successor it
names.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from common import note
from torch import Tensor, nn
from torch.nn import functional

import eaglecpp
from eaglecpp import lowlevel
from eaglecpp.train.capture.questions import question
from eaglecpp.train.fit.allocator import with_allocator

ARCH, N_NEGATIVES, N_HELD_OUT = "mimo2", 2048, 20
RENAMED = (
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.freq_base",
    "rope.dimension_count",
)
RENAMED += tuple(f"attention.{name}" for name in ("head_count", "head_count_kv", "layer_norm_rms_epsilon"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--answers", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with_allocator([sys.executable, *sys.argv])
    torch.manual_seed(args.seed)
    file = gguf.GGUFReader(args.source)
    texts = list(answers(args.source, args.answers, args.seed))
    rows = list(capture(args.source, texts, n_layers(file)))
    head = Head(file)
    train(head, rows[N_HELD_OUT:], args.epochs)
    shares = [accuracy(head, *one) for one in rows[:N_HELD_OUT]]
    write(file, head, args.out)
    print(f"{args.out}: {sum(len(t) for t in texts)} tokens, names {np.mean(shares):.3f} of held-out tokens")
    return 0


def n_layers(file: gguf.GGUFReader) -> int:
    return int(file.fields["llama.block_count"].contents())


def answers(source: Path, n: int, seed: int) -> Iterator[list[int]]:
    """Questions with the model's own answers, as tokens."""
    rng = random.Random(seed)
    with eaglecpp.Engine.open(source, n_ctx=512, n_sequences=8) as engine:
        while n > 0:
            asked = [question(rng) for _ in range(min(n, 32))]
            prompts = [engine.chat_prompt([{"role": "user", "content": text}])[:256] for text in asked]
            for prompt, done in zip(
                prompts, engine.generate(prompts, max_tokens=224, temperature=0.7, seed=seed + n), strict=True
            ):
                yield [*prompt, *done.tokens]
            n -= len(asked)
            note(f"{n} answers to go")


def capture(source: Path, texts: list[list[int]], layer: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Per text: tokens [n], states behind the last block [n, width], the likeliest next token of each [n]."""
    options = lowlevel.EngineOptions()
    options.target_path, options.n_ctx = str(source), 512
    target = lowlevel.Target(options, [layer])
    for text in texts:
        features, logits = target.forward(text)
        assert logits is not None
        yield torch.tensor(text), torch.from_numpy(features[0].copy()), torch.from_numpy(logits.argmax(1))
    note("the model's states are there")


class Head(nn.Module):
    """[norm(embedding of token i + 1); norm(state i)] -> projection -> a Llama block -> the state that the
    model's own output reads, and the next step of the head (ggml-org/llama.cpp: src/models/mimo2.cpp).
    """

    def __init__(self, file: gguf.GGUFReader) -> None:
        super().__init__()
        tensors = {t.name: t for t in file.tensors}

        def read(name: str) -> Tensor:
            tensor = tensors[name]
            return torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())

        def own(name: str) -> nn.Parameter:
            value = read(f"blk.{n_layers(file) - 1}.{name}.weight")
            if name in ("attn_q", "attn_k"):
                value = in_halves(value.numpy(), len(value) // self.head_dim)
            return nn.Parameter(torch.as_tensor(value))

        self.head_dim = int(file.fields["llama.rope.dimension_count"].contents())
        self.freq_base = float(file.fields["llama.rope.freq_base"].contents())
        self.embedding, self.output_norm = read("token_embd.weight"), read("output_norm.weight")
        width = self.embedding.shape[1]
        self.w = nn.ParameterDict(
            {name: own(name) for name in ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output")}
            | {name: own(name) for name in ("ffn_norm", "ffn_gate", "ffn_up", "ffn_down")}
        )
        self.w["eh_proj"] = nn.Parameter(torch.cat([0.1 * torch.eye(width), torch.eye(width)], 1))
        self.w["enorm"] = nn.Parameter(torch.ones(width))
        self.w["hnorm"] = nn.Parameter(torch.ones(width))
        self.w["shared_head_norm"] = nn.Parameter(self.output_norm.clone())

    def forward(self, tokens: Tensor, states: Tensor) -> Tensor:
        """tokens [n] behind the states [n, width] -> states [n, width]"""
        w, n = self.w, len(tokens)
        x = torch.cat([rms(self.embedding[tokens], w["enorm"]), rms(states, w["hnorm"])], 1) @ w["eh_proj"].T
        y = rms(x, w["attn_norm"])
        angles = torch.arange(1, n + 1)[:, None] * self.freq_base ** (
            -torch.arange(0, self.head_dim, 2) / self.head_dim
        )
        q, k, v = (
            (y @ w[f"attn_{name}"].T).view(n, -1, self.head_dim).transpose(0, 1) for name in ("q", "k", "v")
        )
        k, v = (part.repeat_interleave(len(q) // len(part), 0) for part in (k, v))
        q, k = rotated(q, angles), rotated(k, angles)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1).reshape(n, -1)
        x = x + y @ w["attn_output"].T
        y = rms(x, w["ffn_norm"])
        return x + (functional.silu(y @ w["ffn_gate"].T) * (y @ w["ffn_up"].T)) @ w["ffn_down"].T

    def logits(self, states: Tensor, ids: Tensor) -> Tensor:
        """of these tokens"""
        return rms(states, self.w["shared_head_norm"]) @ self.embedding[ids].T


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """[heads, n, head_dim], the first half of a head with the second"""
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


def train(head: Head, rows: list[tuple[Tensor, Tensor, Tensor]], epochs: int) -> None:
    """Two steps deep: the second reads what the first gave in place of the model's states."""
    seen = torch.unique(torch.cat([likeliest for _, _, likeliest in rows]))
    optimizer = torch.optim.AdamW(head.parameters(), lr=4e-4, betas=(0.9, 0.95), weight_decay=0.0)
    n_steps, at, started = epochs * len(rows), 0, time.monotonic()
    for _ in range(epochs):
        for one in torch.randperm(len(rows)).tolist():
            tokens, states, likeliest = rows[one]
            for group in optimizer.param_groups:
                group["lr"] = 4e-4 * min(1.0, (at + 1) / 30) * max(0.05, 1.0 - at / n_steps)
            ids = torch.unique(torch.cat([seen, torch.randint(len(head.embedding), (N_NEGATIVES,))]))
            first = head(tokens[1:], states[:-1])
            second = head(tokens[2:], first[:-1])
            loss = torch.zeros(())
            for given, wanted in ((first, likeliest[1:]), (second, likeliest[2:])):
                loss = loss + functional.cross_entropy(
                    head.logits(given, ids), torch.searchsorted(ids, wanted)
                )
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            optimizer.step()
            at += 1
            if at % 20 == 0:
                note(f"step {at} of {n_steps}: loss {loss.item():.2f}, {time.monotonic() - started:.0f} s")


@torch.no_grad()
def accuracy(head: Head, tokens: Tensor, states: Tensor, likeliest: Tensor) -> float:
    found = head.logits(head(tokens[1:], states[:-1]), torch.arange(len(head.embedding))).argmax(1)
    return float((found == likeliest[1:]).float().mean())


def in_halves(rows: np.ndarray, n_heads: int) -> np.ndarray:
    """Rows of queries or keys whose neighbours are rotated together -> those whose halves are. Whole rows
    move, so quantised ones keep their bits.
    """
    return rows.reshape(n_heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def write(file: gguf.GGUFReader, head: Head, out: Path) -> None:
    writer = gguf.GGUFWriter(out, ARCH)
    n = n_layers(file)
    for name in RENAMED:
        field = file.fields[f"llama.{name}"]
        writer.add_key_value(f"{ARCH}.{name}", field.contents(), field.types[0])
    for field in file.fields.values():
        if field.name.startswith("tokenizer.") or field.name == "general.name":
            kind, *inner = field.types
            writer.add_key_value(field.name, field.contents(), kind, inner[-1] if inner else None)
    sizes: dict[str, Any] = {
        "block_count": n + 1, "nextn_predict_layers": 1, "expert_feed_forward_length": 1,
        "attention.key_length": head.head_dim, "attention.value_length": head.head_dim,
        "attention.sliding_window": 1 << 20,
    }  # fmt: skip
    for name, value in sizes.items():
        writer.add_uint32(f"{ARCH}.{name}", value)
    writer.add_float32(f"{ARCH}.rope.freq_base_swa", head.freq_base)
    writer.add_array(f"{ARCH}.attention.sliding_window_pattern", [i % 2 == 0 for i in range(n + 1)])
    for tensor in file.tensors:
        data = np.asarray(tensor.data)
        if tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
            data = in_halves(data, len(data) // head.head_dim)
        writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
        if tensor.name == "token_embd.weight":
            writer.add_tensor("output.weight", data, raw_dtype=tensor.tensor_type)
    weights = {name: value.detach().numpy() for name, value in head.w.items()}
    qkv = np.concatenate([weights.pop(f"attn_{name}") for name in ("q", "k", "v")])
    for name, value in {**weights, "attn_qkv": qkv}.items():
        of_head = name in ("eh_proj", "enorm", "hnorm", "shared_head_norm")
        full = f"blk.{n}.{'nextn.' if of_head else ''}{name}.weight"
        if value.ndim == 1:
            writer.add_tensor(full, value)
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(full, gguf.quants.quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    raise SystemExit(main())
