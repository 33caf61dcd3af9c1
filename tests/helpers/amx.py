# SPDX-License-Identifier: MIT
"""Makes llama.cpp work on virtual machines that claim the instruction set AMX but lack it. On such a machine,
llama.cpp's repacked weights would crash the process.
"""

from __future__ import annotations

from eaglecpp import lowlevel

_WITHOUT_REPACKING = """
import llama_cpp.llama_cpp as _llama
_defaults = _llama.llama_model_default_params
def _without_repacking():
    params = _defaults()
    params.use_extra_bufts = False
    return params
_llama.llama_model_default_params = _without_repacking
"""


def spare_llama_cpp() -> str:
    """Returns Python code that must precede a program that uses llama_cpp, on a machine that claims AMX but
    lacks it. Returns "" on other machines.
    """
    amx = lowlevel.system_info()["amx"]
    return _WITHOUT_REPACKING if amx["claimed"] and not amx["works"] else ""
