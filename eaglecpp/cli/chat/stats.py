# SPDX-License-Identifier: MIT
"""`/stats`: statistics of the chat so far, as lines."""

from __future__ import annotations

from eaglecpp.cli.chat.chat import Chat

__all__ = ["stats_lines"]


def stats_lines(chat: Chat) -> list[str]:
    """One fact per line, without those that were not measured."""
    totals, model, conversation = chat.totals, chat.model, chat.conversation
    resolved, why = model.engine.resolve(model.strategy)
    left_out = conversation.n_left_out
    speedup = chat.plain.overall
    rows = [
        ("answers", str(chat.n_answers)),
        ("generated", f"{totals.predicted_n} tokens at {totals.predicted_per_second:.1f} tokens/s"),
        ("prompts", f"{totals.prompt_n} tokens read, {totals.reused_n} taken from the cache"),
        ("context", f"{chat.n_prompt()} of {model.engine.n_ctx} tokens in use"),
        ("left out", f"{left_out} older messages" if left_out else ""),
        ("strategy", f"{resolved} ({why})"),
    ]
    if totals.draft_n:
        rates = ", ".join(f"{rate:.2f}" for rate in totals.accepted_per_depth)
        rows += [
            ("drafted", f"{totals.draft_n} tokens, {100 * totals.acceptance_rate:.0f}% accepted"),
            ("acceptance length", f"{totals.acceptance_length:.2f} tokens per round"),
            ("accepted per depth", rates),
            ("speed-up", "" if speedup is None else f"~{speedup:.2f}x plain decoding"),
        ]
        if speedup is None:
            rows.append(("speed-up", "unknown; use /strategy off for one answer to measure plain decoding"))
    return [f"{name + ':':<20}{value}" for name, value in rows if value]
