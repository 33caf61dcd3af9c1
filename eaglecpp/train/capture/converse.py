# SPDX-License-Identifier: MIT
"""Lets the target write conversations. This training data needs nothing but the model.

If the prompt is a chat that ends where the user's turn begins, a chat model continues as the user (Magpie,
arXiv 2406.08464). So both sides are sampled from the target: the question, the answer, the next question.
System prompts, first words, number of turns, temperature and lengths are drawn at random. A share of the
first questions comes from lists, because the questions that a model invents are easy for it. A conversation
with repetitive text or an unfinished turn is left out and counted.

The content of each entry of the file (`job`) depends only on its seed and number.
"""

from __future__ import annotations

import ast
import json
import random
import sys
import sysconfig
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from eaglecpp.chat.bounds import rendered_at
from eaglecpp.chat.message import Message, Role
from eaglecpp.chat.turns import accepted
from eaglecpp.engine.engine import Engine
from eaglecpp.engine.loops import is_looping
from eaglecpp.errors import DataError
from eaglecpp.options import SamplingOptions
from eaglecpp.train.capture.batched import Generated, GenerateJob, Task
from eaglecpp.train.capture.job import OnProgress, Written, write_entries
from eaglecpp.train.data.chats import TEMPLATE_DATE, template_of

_QUESTION, _ANSWER, _NEXT = "Kwqestio", "Zanswerv", "Xnextquej"


class Frame:
    """The texts of a chat template around the messages, as tokens, so that a target can also write the user's
    turns. These texts are found by rendering one conversation of marker words. Afterwards turns are joined as
    tokens and never rendered again, so that the target's tokens are kept exactly.

    to_assistant, to_user: tokens that end a turn and begin the other one; user_end: text that ends a question
    if the vocabulary has no token for this, otherwise b"".
    """

    def __init__(self, engine: Engine) -> None:
        """Finds the texts by rendering a conversation. Raises DataError for a target without a template, or
        whose template does not print all turns.
        """
        template = template_of(engine)
        if template is None:
            raise DataError(
                f"{engine.target_path.name}: expected a chat template (tokenizer.chat_template) to write "
                "conversations with, found none. It is probably a base model: give text with --data"
            )
        self._engine, self._template = engine, template
        text, _ = self._rendered(None)
        parts: list[str] = []
        for word in (_QUESTION, _ANSWER, _NEXT):
            before, found, text = text.partition(word)
            if not found:
                raise DataError(
                    f"{engine.target_path.name}: the chat template does not show every turn in order; give "
                    "conversations with --data"
                )
            parts.append(before)
        self.to_assistant, self.to_user = (engine.tokenize(part, add_bos=False) for part in parts[1:])
        ends = bool(self.to_assistant) and engine.native.is_eog(self.to_assistant[0])
        self.user_end = b"" if ends else parts[1].strip().encode()

    def opening(self, system: str | None) -> list[int]:
        """Returns the tokens of a chat up to the user's turn. system: None = the template's own system
        prompt. A system prompt that the template does not support is put before the question.
        """
        text, has_bos = self._rendered(system)
        before = text.partition(_QUESTION)[0]
        return self._engine.tokenize(before, add_bos=not has_bos) if before or not has_bos else []

    def joined(self, tokens: list[int], joint: list[int]) -> list[int]:
        """Joins the tokens of a conversation with the template's tokens that follow its last turn. The end
        token of the last turn is not repeated.
        """
        if joint and tokens[-1] == joint[0] and self._engine.native.is_eog(joint[0]):
            return tokens + joint[1:]
        return tokens + joint

    def _rendered(self, system: str | None) -> tuple[str, bool]:
        turns = [] if system is None else [Message(Role.SYSTEM, system)]
        turns += [Message(Role.USER, _QUESTION), Message(Role.ASSISTANT, _ANSWER), Message(Role.USER, _NEXT)]
        with rendered_at(TEMPLATE_DATE):
            taken = accepted(turns, (), self._template.takes)
            rendered = self._template.render(taken.messages, add_generation_prompt=True)
        return rendered.text, rendered.has_bos


# First words and complete questions. A chat model alone asks only a few kinds of questions, and the first
# words lead the model to other kinds. The complete questions cover common uses: explanations, stories, code,
# arithmetic, and work on texts. These texts are docstrings and help topics of the running Python.
_WORDS: dict[str, list[str]] = json.loads(Path(__file__).with_name("questions.json").read_text("utf-8"))
SYSTEMS, OPENINGS, FOLLOW_UPS = (tuple(_WORDS[kind]) for kind in ("systems", "openings", "follow_ups"))

_MAX_STUB = 900
_MIN_TEXT, _MAX_TEXT = 300, 3500
_CUTS = (600, 1200, 2400, _MAX_TEXT)
_NO_TEXTS = ("test", "idlelib", "lib2to3", "site-packages", "dist-packages", "turtledemo", "ensurepip")


def question(rng: random.Random) -> str:
    """Draws the first question of a conversation at random."""
    kind = rng.random()
    one, other = rng.sample(_WORDS["topics"], 2)
    if kind < 0.40:
        return rng.choice(_WORDS["about"]).format(t=one, u=other)
    if kind < 0.55:
        return rng.choice(_WORDS["code"]).format(
            x=rng.choice(_WORDS["tasks"]), y=rng.choice(_WORDS["things"])
        )
    stubs, texts = _sources()
    if kind < 0.75 and stubs:
        return rng.choice(_WORDS["stubs"]).format(s=rng.choice(stubs))
    if kind < 0.85 or not texts:
        return rng.choice(_WORDS["sums"]).format(
            n=rng.randint(2, 20), a=rng.randint(10, 300), b=rng.randint(3, 90)
        )
    return rng.choice(_WORDS["texts"]).format(d=rng.choice(texts)[: rng.choice(_CUTS)])


@lru_cache
def _sources() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the beginnings of functions and the texts of the running Python's standard library, as a
    pair.
    """
    stubs: list[str] = []
    texts: list[str] = []
    for path in _modules():
        try:
            source = path.read_text(encoding="utf-8")
            tree = ast.parse(source)
        except (OSError, SyntaxError, ValueError):
            continue
        text = ast.get_docstring(tree)
        if text and len(text) > _MIN_TEXT:
            texts.append(text)
        lines = source.splitlines()
        stubs += (stub for node in ast.walk(tree) if (stub := _stub(node, lines)))
    from pydoc_data.topics import topics

    texts += (text for _, text in sorted(topics.items()) if len(text) > _MIN_TEXT)
    return tuple(stubs), tuple(texts)


def _modules() -> Iterator[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted([*root.glob("*.py"), *root.glob("*/*.py")]):
        if path.relative_to(root).parts[0] not in _NO_TEXTS:
            yield path


def _stub(node: ast.AST, lines: list[str]) -> str:
    """Returns the head and the docstring of a function in a syntax tree, or "" if the node is no function or
    the result would be too long.
    """
    if not isinstance(node, ast.FunctionDef) or len(ast.get_docstring(node) or "") <= 40:
        return ""
    head = lines[node.lineno - 1 : node.body[0].end_lineno]
    n_indent = len(head[0]) - len(head[0].lstrip())
    text = "\n".join(line[n_indent:] for line in head) + "\n"
    return text if len(text) < _MAX_STUB else ""


_MIN_ROOM = 64
"""Minimum tokens of context left for an answer."""
_MIN_QUESTION = 3
_ANSWER_SHARES = (0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class ConverseSettings:
    """Settings that, with the target, determine the content of the n-th conversation.

    own_questions: share of conversations whose first question the target asks; named_systems: share of
    conversations with a system prompt from the list; all other conversations use the template's own system
    prompt
    turns:         weights of one, two, ... turns; temperatures: (temperature, weight) of answers
    question_tokens, answer_tokens: maximum tokens of a question and of an answer
    """

    seed: int = 1
    own_questions: float = 0.5
    named_systems: float = 0.4
    openings: float = 0.6
    follow_ups: float = 0.6
    turns: tuple[float, ...] = (0.62, 0.22, 0.11, 0.05)
    temperatures: tuple[tuple[float, float], ...] = ((0.0, 0.3), (0.7, 0.5), (1.0, 0.2))
    question_tokens: int = 300
    answer_tokens: int = 512


def converse(
    engine: Engine,
    out: Path,
    n_wanted: int,
    settings: ConverseSettings,
    on_progress: OnProgress = lambda n_done, n_all, n_tokens: None,
) -> Written:
    """Lets the target write the conversations 0 to n_wanted - 1 into `out`. Continues an existing file.

    engine: the target without a drafter; writes `n_sequences` conversations at a time Raises DataError for a
    target without a usable template, and the errors of `write_entries`.
    """
    writer = _Writer(engine, Frame(engine), settings)
    facts = {"format": "eaglecpp conversations", **asdict(settings)}
    # The Python version belongs to the file, because the questions quote texts of this version.
    facts["python"] = ".".join(map(str, sys.version_info[:2]))
    return write_entries(engine, out, facts, "conversations", n_wanted, writer.conversation, on_progress)


class _Writer:
    """Creates the tasks that write the conversations."""

    def __init__(self, engine: Engine, frame: Frame, settings: ConverseSettings) -> None:
        self._engine, self._frame, self._settings = engine, frame, settings

    def conversation(self, index: int) -> Task[dict[str, Any]]:
        """Lets the target write the n-th conversation. Returns the conversation, or the reason why it is left
        out.
        """
        settings = self._settings
        rng = random.Random(f"{settings.seed}:{index}")
        tokens = self._frame.opening(rng.choice(SYSTEMS) if rng.random() < settings.named_systems else None)
        n_turns = rng.choices(range(1, len(settings.turns) + 1), settings.turns)[0]
        temperature = rng.choices(*zip(*settings.temperatures, strict=True))[0]
        turns: list[tuple[int, int]] = []
        reason = ""
        for number in range(n_turns):
            asked = yield from self._question(rng, tokens, is_first=number == 0)
            if isinstance(asked, str):
                reason = asked
                break
            asked = self._frame.joined(asked, self._frame.to_assistant)
            if len(asked) + _MIN_ROOM > self._engine.n_ctx:
                reason = "no room for an answer"
                break
            answer = yield self._answer(rng, asked, float(temperature))
            if answer.finish == "loop" or is_looping(answer.tokens):
                reason = "the answer loops"
                break
            turns.append((len(asked), len(asked) + len(answer.tokens)))
            tokens = asked + answer.tokens
            if answer.finish != "stop":
                break
            tokens = self._frame.joined(tokens, self._frame.to_user)
        if not turns:
            return {"index": index, "dropped": reason}
        return {"index": index, "tokens": tokens[: turns[-1][1]], "turns": turns}

    def _question(
        self, rng: random.Random, tokens: list[int], is_first: bool
    ) -> Generator[GenerateJob, Generated, list[int] | str]:
        """Continues the conversation with the user's next turn. Returns the reason if this fails."""
        settings, text = self._settings, None
        if is_first and rng.random() >= settings.own_questions:
            text = question(rng)
        elif not is_first and rng.random() < settings.follow_ups:
            text = rng.choice(FOLLOW_UPS)
        if text is not None:
            return tokens + self._engine.tokenize(text, add_bos=False, special=False)
        if is_first and rng.random() < settings.openings:
            tokens = tokens + self._engine.tokenize(rng.choice(OPENINGS), add_bos=False, special=False)
        if len(tokens) + settings.question_tokens + _MIN_ROOM > self._engine.n_ctx:
            return "no room for a question"
        generated: Generated = yield GenerateJob(
            tokens,
            SamplingOptions(
                temperature=1.0,
                top_k=100,
                top_p=0.95,
                max_tokens=settings.question_tokens,
                seed=rng.getrandbits(30),
            ),
            stop=self._frame.user_end,
        )
        asked = generated.tokens
        if generated.finish == "text":
            spoken = b"".join(self._engine.token_to_piece(token, special=True) for token in asked)
            question_text = spoken.partition(self._frame.user_end)[0]
            asked = self._engine.tokenize(question_text, add_bos=False, special=False)
        elif generated.finish == "loop" or is_looping(asked):
            return "the question loops"
        elif generated.finish != "stop" or self._frame.user_end or asked[-1] != self._frame.to_assistant[0]:
            return "the question does not end"
        return tokens + asked if len(asked) >= _MIN_QUESTION else "the question is empty"

    def _answer(self, rng: random.Random, tokens: list[int], temperature: float) -> GenerateJob:
        return GenerateJob(
            tokens,
            SamplingOptions(
                temperature=temperature,
                top_k=100 if temperature >= 1 else 40,
                max_tokens=max(int(rng.choice(_ANSWER_SHARES) * self._settings.answer_tokens), 1),
                seed=rng.getrandbits(30),
            ),
        )
