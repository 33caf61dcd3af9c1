# SPDX-License-Identifier: MIT
"""What frameworks for agents are given: a shape to answer in, and a tool, which `serving.CALL` makes a model
call.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


class Size(BaseModel):
    """A size."""

    n: Literal[7]


def weather(city: str) -> str:
    """The weather somewhere."""
    return city
