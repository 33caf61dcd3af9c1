# SPDX-License-Identifier: MIT
"""Trains EAGLE-1, EAGLE-3 and EAGLE 3.1 drafters, and block drafters, on hidden states of the target's GGUF.

`data` and `capture.generate` produce token lists, `capture.features` lets the target compute hidden states
and labels for these lists, `capture.cache` stores both on disk, `data.vocab` chooses the draft vocabulary,
and `fit.loop` trains. The package needs the `train` extra (torch).
"""
