# SPDX-License-Identifier: MIT
"""Following a stream to its end, or to Ctrl+C."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eaglecpp import Engine
from eaglecpp.cli.generate import follow
from eaglecpp.cli.terminal import Watch

if TYPE_CHECKING:
    from conftest import Models


def test_text_that_was_held_back_is_printed_after_ctrl_c(
    models: Models, capsys: pytest.CaptureFixture[str]
) -> None:
    with Engine.open(models.target, n_ctx=128, n_threads=1, temperature=0.0) as engine:
        whole = engine.generate("ab cd", max_tokens=8)
        watch = Watch()
        stop = (
            whole.text[1:] + "\0 and more"
        )  # from its second character on the text may become the stop string
        stream = engine.stream(
            "ab cd",
            max_tokens=8,
            stop=stop,
            stop_when=lambda tokens: setattr(watch, "requested", len(tokens) == 3),
        )
        follow(stream, watch, echo=True)
        result = stream.completion()
    assert (result.finish_reason, result.tokens) == ("cancelled", whole.tokens[:3])
    assert len(result.text) > 1
    assert capsys.readouterr().out == result.text + "\n"
