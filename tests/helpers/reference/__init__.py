# SPDX-License-Identifier: MIT
"""A plain PyTorch reference for the native engine's computations: slow, short, and written from the formulas.

Everything runs in fp32 on the CPU. `checkpoint` reads Hugging Face directories, `layers` has the shared
arithmetic, `drafter` and `target` have the two models, `chain` has the greedy draft-verify loop, and `tree`
has the EAGLE-2 growth. This package does not import eaglecpp. Because the engine and the reference share no
code, agreement between them is evidence.
"""
