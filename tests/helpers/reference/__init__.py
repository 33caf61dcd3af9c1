# SPDX-License-Identifier: MIT
"""A plain PyTorch reference of what the native engine computes: slow, short, written from the formulas.

Everything runs in fp32 on the CPU. `checkpoint` reads Hugging Face directories, `layers` holds the shared
arithmetic, `drafter` and `target` the two models, `chain` the greedy draft-verify loop and `tree` the
EAGLE-2 growth. Nothing here imports eaglecpp: an agreement between the two is evidence because they share
no code.
"""
