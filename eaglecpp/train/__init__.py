# SPDX-License-Identifier: MIT
"""Trains EAGLE-1, EAGLE-3 and EAGLE 3.1 drafters on the hidden states of the same GGUF that they will serve.

`data` and `capture.generate` make token lists, `capture.features` has the target compute states and labels
for them, `capture.cache` keeps those on disk, `data.vocab` chooses the draft vocabulary, and `fit.loop`
trains. Needs the `train` extra (torch).
"""
