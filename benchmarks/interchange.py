# SPDX-License-Identifier: MIT
"""Does one drafter file draft the same in eaglecpp and in llama.cpp?

    python benchmarks/interchange.py --target T.gguf --draft ours.gguf [--draft llama-cpp.gguf]
        --llama-server PATH --prompts FILE [--n-max 3] [--json OUT]

For every file and prompt, greedy with a chain of `n-max`, three things are compared: the generated tokens;
per round, how many drafts were made and how many accepted; and the drafts themselves, rejected ones
included. llama.cpp's are read from the server's debug log (`-lv 5`, best candidate per position). Ours are
recomputed round by round from the same committed tokens with the low-level target and drafter, which is the
code the engine runs. Rounds near the end, where both shorten the draft to the tokens left, are compared as
far as they go.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from common import Prompt, arguments, facts, note, read_prompts, table, write_json
from llama_server import Draft, LlamaServer, drafts_in_log

import eaglecpp
from eaglecpp.lowlevel import Drafter, EngineOptions, Target

# lead of llama.cpp's best candidate below which another order of summation, or activations rounded to 8 bits
# for a quantised drafter, may swap the two
NEAR_TIE = 0.01


@dataclass(frozen=True)
class Run:
    """One prompt through one engine: tokens, and the drafts of each round."""

    tokens: list[int]
    drafts: list[list[Draft]]
    draft_n: int
    draft_n_accepted: int


@dataclass(frozen=True)
class Verdict:
    """What was equal for one file and prompt.

    `leads`: for each round that differs, llama.cpp's lead of its best candidate over the second at the first
    draft that differs.
    """

    file: str
    prompt: int
    tokens_equal: bool
    draft_n: tuple[int, int]
    draft_n_accepted: tuple[int, int]
    n_rounds: int
    n_rounds_same_drafts: int
    leads: list[float]

    @property
    def same(self) -> bool:
        """All equal, but for rejected drafts that were near-ties."""
        counts = self.draft_n[0] == self.draft_n[1] and self.draft_n_accepted[0] == self.draft_n_accepted[1]
        n_explained = self.n_rounds_same_drafts + sum(lead <= NEAR_TIE for lead in self.leads)
        return self.tokens_equal and counts and self.n_rounds == n_explained


class Replay:
    """Drafts of the low-level drafter after any committed prefix."""

    def __init__(self, target: Path, draft: Path, n_threads: int) -> None:
        options = EngineOptions()
        options.target_path, options.n_threads, options.n_ctx = str(target), n_threads, 2048
        reader = gguf.GGUFReader(draft)
        names = {t.name: t for t in reader.tensors}
        architecture = reader.get_field("general.architecture").contents()
        layers = reader.get_field(f"{architecture}.target_layers").contents()
        self.target_ids = names["d2t"].data if "d2t" in names else None
        self.target = Target(options, layers)
        tables = {t.name: t for t in gguf.GGUFReader(target).tensors}
        embedding = None if "token_embd.weight" in names else dequantised(tables["token_embd.weight"])
        head = None if "output.weight" in names else dequantised(tables["output.weight"])
        self.drafter = Drafter(str(draft), options, embedding, head)

    def drafts(self, tokens: list[int], starts: list[int], depth: int) -> list[list[Draft]]:
        """`starts`: numbers of committed tokens at the begin of each round (the last one not yet run)."""
        features, _ = self.target.forward(tokens, want_logits=False)
        self.drafter.reset()
        found: list[list[Draft]] = []
        done = 0
        for start in starts:
            rows = slice(done, start - 1)
            part = np.ascontiguousarray(features[:, rows])
            logits, state = self.drafter.commit(part, tokens[done + 1 : start])
            done = start - 1
            chain = [self._best(logits)]
            for step in range(1, depth):
                out, states = self.drafter.extend(state[None], [chain[-1].token], [step - 2], step)
                state = states[0]
                chain.append(self._best(out[0]))
            found.append(chain)
        return found

    def _best(self, logits: np.ndarray) -> Draft:
        best = int(logits.argmax())
        p = np.sort(np.exp(logits - logits.max()))[::-1]
        return Draft(
            best if self.target_ids is None else int(self.target_ids[best]), float((p[0] - p[1]) / p.sum())
        )


def dequantised(tensor: Any) -> np.ndarray:
    return np.asarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)


def our_run(engine: eaglecpp.Engine, replay: Replay, prompt: Prompt, n_max: int, n_tokens: int) -> Run:
    tokens: list[int] = []
    starts: list[int] = []
    with (
        engine.session() as session,
        session.stream(
            prompt.ids, max_tokens=n_tokens, temperature=0.0, strategy=f"chain:{n_max}", ignore_eos=True
        ) as stream,
    ):
        for chunk in stream:
            if chunk.tokens and tokens:
                starts.append(len(prompt.ids) + len(tokens))
            tokens += chunk.tokens
        stats = stream.completion().timings
    drafts = replay.drafts([*prompt.ids, *tokens], starts, n_max)
    return Run(tokens, drafts, stats.draft_n, stats.draft_n_accepted)


def their_run(server: LlamaServer, prompt: Prompt, n_tokens: int) -> Run:
    before = server.log.stat().st_size
    answer = server.complete(prompt.ids, n_tokens)
    drafts = drafts_in_log(server.log_since(before))
    if not drafts:
        raise SystemExit("llama-server's log shows no drafts: is this the version the project pins?")
    timings = answer.timings
    return Run(answer.tokens, drafts, timings.get("draft_n", 0), timings.get("draft_n_accepted", 0))


def compare(file: str, index: int, one: Run, other: Run) -> Verdict:
    """Round by round; a draft shortened at the end is the same when it is the beginning of the other."""
    same, leads = 0, []
    for ours, theirs in zip(one.drafts, other.drafts, strict=False):
        differing = [b.lead for a, b in zip(ours, theirs, strict=False) if a.token != b.token]
        same += not differing
        leads += differing[:1]
    return Verdict(
        file,
        index,
        one.tokens == other.tokens,
        (one.draft_n, other.draft_n),
        (one.draft_n_accepted, other.draft_n_accepted),
        len(other.drafts),  # a last round for one token drafts nothing and logs nothing
        same,
        leads,
    )


def compare_file(args: argparse.Namespace, draft: Path) -> list[Verdict]:
    replay = Replay(args.target, draft, args.threads)
    verdicts = []
    with (
        eaglecpp.Engine.open(
            args.target, draft=draft, n_ctx=2048, n_threads=args.threads, strategy=f"chain:{args.n_max}"
        ) as engine,
        LlamaServer(
            args.llama_server,
            args.target,
            draft=draft,
            n_max=args.n_max,
            n_ctx=2048,
            n_threads=args.threads,
            extra=["-lv", "5"],
        ) as server,
    ):
        for i, prompt in enumerate(read_prompts(args.prompts, engine, args.n_prompts)):
            ours = our_run(engine, replay, prompt, args.n_max, args.n_tokens)
            verdicts.append(compare(draft.name, i, ours, their_run(server, prompt, args.n_tokens)))
            note(f"{verdicts[-1]}")
    return verdicts


def parse() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, action="append", required=True, help="eagle3 GGUF; repeatable")
    parser.add_argument("--llama-server", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--n-max", type=int, default=3)
    parser.add_argument("--n-prompts", type=int, default=12)
    parser.add_argument("--n-tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, default=None)
    return parser.parse_args()


def main() -> int:
    args = parse()
    verdicts = [verdict for draft in args.draft for verdict in compare_file(args, draft)]
    head = [
        "file",
        "prompt",
        "tokens equal",
        "drafted (ours, theirs)",
        "accepted (ours, theirs)",
        "rounds with the same drafts",
        "lead where not",
    ]
    rows = [
        [
            v.file,
            v.prompt,
            v.tokens_equal,
            v.draft_n,
            v.draft_n_accepted,
            f"{v.n_rounds_same_drafts} of {v.n_rounds}",
            ", ".join(f"{lead:.3f}" for lead in v.leads),
        ]
        for v in verdicts
    ]
    print(table(head, rows))
    models = {"target": args.target} | {f"draft {i}": path for i, path in enumerate(args.draft)}
    result = facts(models, seed=None, n_max=args.n_max, n_tokens=args.n_tokens)
    result["verdicts"] = [asdict(v) | {"same": v.same} for v in verdicts]
    write_json(args.json, result)
    passed = all(v.same for v in verdicts)
    print("PASS: same tokens, counts and drafts" if passed else "FAIL", f"(near-ties below {NEAR_TIE} apart)")
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
