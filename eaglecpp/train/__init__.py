# SPDX-License-Identifier: MIT
"""Trains EAGLE-3 and EAGLE 3.1 drafters on the hidden states of the very GGUF they will serve.

`data` and `generate` make token lists, `features` asks the target for what it makes of them, `cache` keeps
that on disk, `vocab` chooses the draft vocabulary; `loop` trains. Needs the `train` extra (torch).
"""
