# SPDX-License-Identifier: MIT
"""A C++ compiler for any system: `zig_cxx.py TARGET ARGUMENT...` runs the compiler of the package ziglang.

The compiler runs without optimisation, because the tests only check that the code compiles.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    target, *arguments = sys.argv[1:]
    # zig has another name for this instruction set.
    arguments = [a.replace("-march=armv8.2-a", "-mcpu=generic") for a in arguments]
    zig = [sys.executable, "-P", "-m", "ziglang", "c++", "-target", target]
    os.execv(sys.executable, [*zig, *arguments, "-O0", "-Wno-unused-command-line-argument"])
