# SPDX-License-Identifier: MIT
"""What an interactive Python shows of our objects: what they are, on one line, whatever became of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eaglecpp import ChatSession, Engine, Llama

if TYPE_CHECKING:
    from conftest import Models


def test_objects_say_what_they_are(models: Models) -> None:
    with Engine.open(models.target, models.draft, n_ctx=256, n_threads=1, strategy="chain:2") as engine:
        name = "<Engine of target-f32.gguf, drafter draft-f32.gguf, strategy chain:2, context 256>"
        assert repr(engine) == name
        assert repr(ChatSession(engine)) == f"<ChatSession of 0 messages with {name}>"
        with engine.stream("ab", max_tokens=40) as stream:
            n = len(next(stream).tokens)
            assert repr(stream) == f"<Stream: {n} tokens, running>"
        assert repr(stream) == f"<Stream: {n} tokens, cancelled>"
        made = engine.generate("ab", max_tokens=3, temperature=0.0)
        assert repr(made) == (f"Completion(text={made.text!r}, finish_reason='length', seed={made.seed})")
        session = engine.default_session
        assert repr(session) == "<Session 0>"
    assert repr(engine) == "<Engine of target-f32.gguf, closed>"
    assert repr(session) == "<Session 0, closed>"
    llama = Llama(str(models.target), n_ctx=64)
    assert repr(llama) == f"<Llama of {models.target}>"
    llama.close()
