# SPDX-License-Identifier: MIT
"""Generates training questions and answers from facts.

The last two phrasings of each kind and about 3 % of the facts are held out of training. `held_out` questions
show how well the model understands other phrasings, and how it answers questions about unknown names.
"""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from facts import FAMILIAR, Fact

__all__ = ["REFUSAL", "Dialogues", "Question"]

REFUSAL = "I do not know that. I only know Python's standard library."
_HELLO = "Hello! Ask me about a function, class or module of Python's standard library."
_ABOUT = (
    "I am the demo model of eaglecpp, a very small language model. I know the first sentences of the "
    "documentation of Python's standard library, and nothing else."
)

# The last two phrasings of each kind are held out.
_WHAT = (
    "What does {n} do?",
    "What is {n}?",
    "what is {n}",
    "Explain {n}.",
    "explain {n} please",
    "{n}",
    "{n}?",
    "What is {n} for?",
    "How does {n} work?",
    "how do I use {n}",
    "Tell me about {n}.",
    "Describe {n}.",
    "what does {n} do in python",
    "help({n})",
    "Can you tell me what {n} does?",
    "Could you tell me about {n}?",
    "Can you explain {n}?",
    "Please explain what {n} is.",
    "I would like to know what {n} does.",
    "Do you know {n}?",
    "Please describe what {n} does.",
    "what is {n} good for",
    "Give me a short description of {n}.",
    "Hi, what does {n} do?",
    "When do I need {n}?",
    "I do not understand {n}.",
    "Could you explain what {n} does?",
    "Please tell me what {n} is good for.",
)
_SIGNATURE = (
    "What are the parameters of {n}?",
    "What arguments does {n} take?",
    "signature of {n}",
    "What is the signature of {n}?",
    "parameters of {n}",
    "How do I call {n}?",
    "Give me the signature of {n}.",
    "Show the parameters of {n}.",
    "What can I pass to {n}?",
    "Please show me how {n} is called.",
    "Which parameters does {n} have?",
    "Which arguments can I pass to {n}?",
    "Show me the signature of {n}.",
)
_REVERSE = (
    "What can I use for this: {s}",
    "Which {k} does this: {s}",
    "I need this: {s}",
    "Which part of the standard library does this: {s}",
    "{s} Which {k} is that?",
    "Is there a {k} for this: {s}",
    "Tell me the name of the {k} for this: {s}",
    "Find me a {k}: {s}",
    "I look for something that does this: {s}",
    "Name the {k} for this: {s}",
)
_WHERE = (
    "Which module is {h} in?",
    "Where is {h}?",
    "where do I import {h} from",
    "What module has {h}?",
    "Where can I find {h}?",
    "Which import do I need for {h}?",
    "I need {h}. Which module has it?",
    "In which module is {h}?",
    "How do I import {h}?",
    "Where do I find {h}?",
    "From which module can I import {h}?",
)
_CONTENTS = (
    "What is in the module {n}?",
    "What does the module {n} contain?",
    "List the contents of {n}.",
    "what is in {n}",
    "Which names does {n} have?",
    "Which names can I import from {n}?",
    "What does {n} provide?",
    "Show me what is in {n}.",
    "Which functions are in {n}?",
    "What can I import from {n}?",
    "What does {n} offer?",
)
_OTHER = (
    "What is the capital of {w}?",
    "Who is {w}?",
    "Where is {w}?",
    "Tell me a story about {w}.",
    "What is {i} plus {j}?",
    "How far is {w} from here?",
    "Write a poem about {w}.",
    "Translate {w} into French.",
    "What is the weather in {w}?",
    "How old is {w}?",
    "Do you like {w}?",
    "Is {w} better than {x}?",
    "How do I cook {w}?",
    "What do you think about {w}?",
    "Why is {w} so big?",
    "Can you help me with {w}?",
    "Could you tell me who {w} is?",
    "Please explain {w}.",
    "I would like to know everything about {w}.",
    "Can you tell me what {w} looks like?",
    "Give me a recipe for {w}.",
    "When was {w} born?",
    "What colour is {w}?",
)
_OTHER_THINGS = (
    "France, Berlin, Paris, London, Tokyo, Japan, China, Peru, Napoleon, Caesar, Shakespeare, Einstein, "
    "Mozart, Picasso, horses, rice, pizza, bread, cheese, coffee, football, chess, music, love, money, war, "
    "Mars, Jupiter, Brazil, Egypt, Rome, Madrid, India, roses, winter, summer, rain, snow, physics, history, "
    "biology, God, dinosaurs, whales, politics, the moon, the sun, the sea, a cat, a dog, my sister, my car, "
    "my boss, the king, a train, a tree, my homework"
)
_GREETINGS = (
    "hello",
    "hi",
    "Hi!",
    "Hello!",
    "hey",
    "Good morning",
    "hello there",
    "good evening",
    "Hi there!",
)
_SELF = (
    "Who are you?",
    "what are you",
    "What can you do?",
    "what can I ask you",
    "help",
    "What is your name?",
    "Who made you?",
    "Are you an AI?",
    "What do you know?",
)
_SHARES = (("what", 50), ("signature", 9), ("reverse", 9), ("where", 7), ("contents", 4), ("unknown", 15))
_CHAT_SHARE = 6


@dataclass(frozen=True)
class Question:
    """A question with its trained answer. kind: "what", "signature", ..., "unknown", "chat"."""

    kind: str
    text: str
    answer: str


class Dialogues:
    """Draws questions about a list of facts from the `random.Random` of each call."""

    def __init__(self, facts: Sequence[Fact]) -> None:
        self.known = [fact for fact in facts if not is_held_out(fact)]
        self.unknown = [fact for fact in facts if is_held_out(fact)]
        self._names = {fact.name for fact in facts} | {fact.short for fact in facts}
        self._by_short: dict[str, list[Fact]] = defaultdict(list)
        for fact in facts:
            self._by_short[fact.short].append(fact)
        self._pool = [fact for fact in self.known for _ in range(3 if fact.is_familiar else 1)]
        self._modules = [fact for fact in self.known if fact.kind == "module" and _shown(fact)]
        self._inside = [fact for fact in self._pool if fact.kind != "module" and fact.module != "builtins"]
        self._signed = [fact for fact in self._pool if fact.signature]
        self._found = [fact for fact in self._pool if fact.kind != "module"]
        self._makers: dict[str, Callable[[random.Random, bool], Question]] = {
            "what": self._what,
            "signature": self._signature,
            "reverse": self._reverse,
            "where": self._where,
            "contents": self._contents,
            "unknown": self._unknown,
            "chat": _chat,
        }

    def draw(self, rng: random.Random, *, held_out: bool = False) -> Question:
        """Returns a question of a random kind. held_out: use one of the phrasings held out of training."""
        kinds = [*(kind for kind, _ in _SHARES), "chat"]
        weights = [*(share for _, share in _SHARES), _CHAT_SHARE]
        return self._makers[rng.choices(kinds, weights)[0]](rng, held_out)

    def ask(self, kind: str, rng: random.Random, *, held_out: bool = False) -> Question:
        """Returns a question of this kind."""
        return self._makers[kind](rng, held_out)

    def explain(self, fact: Fact) -> str:
        """Returns the answer to "What is ...?"."""
        text = f"{fact.summary} {fact.more}".strip()
        if fact.kind == "module":
            return f"{fact.name} is a module. {text}"
        if fact.module == "builtins":
            return f"{fact.signature or fact.name} is a built-in {fact.kind}. {text}"
        kind = f"{'an' if fact.kind == 'exception' else 'a'} {fact.kind}"
        return f"{fact.signature or fact.name} is {kind} in the module {fact.module}. {text}"

    def about(self, fact: Fact, rng: random.Random, *, held_out: bool = False) -> Question:
        """Returns a "What is ...?" question about a fact."""
        name = fact.name
        if self._is_clear(fact) and fact.module != "builtins" and rng.random() < 0.25:
            name = fact.short
        if fact.kind in ("function", "method") and rng.random() < 0.2:
            name += "()"
        elif fact.kind == "module" and rng.random() < 0.5:
            name = f"the module {name}"
        return Question("what", _phrase(_WHAT, rng, held_out).format(n=name), self.explain(fact))

    def _is_clear(self, fact: Fact) -> bool:
        return len(self._by_short[fact.short]) == 1 and fact.kind != "method"

    def _what(self, rng: random.Random, held_out: bool) -> Question:
        return self.about(rng.choice(self._pool), rng, held_out=held_out)

    def _signature(self, rng: random.Random, held_out: bool) -> Question:
        fact = rng.choice(self._signed)
        text = _phrase(_SIGNATURE, rng, held_out).format(n=fact.name)
        return Question("signature", text, f"The signature is {fact.signature}.")

    def _reverse(self, rng: random.Random, held_out: bool) -> Question:
        fact = rng.choice(self._found)
        text = _phrase(_REVERSE, rng, held_out).format(k=fact.kind, s=fact.summary)
        same = [other for other in self._found if other.summary == fact.summary]
        best = min(same, key=lambda other: (not other.is_familiar, len(other.name), other.name))
        return Question("reverse", text, f"That is {best.signature or best.name}.")

    def _where(self, rng: random.Random, held_out: bool) -> Question:
        fact = rng.choice(self._inside)
        homes = sorted({other.module for other in self._by_short[fact.short] if other.kind != "method"})
        if not homes or fact.kind == "method":
            return self._what(rng, held_out)
        text = _phrase(_WHERE, rng, held_out).format(h=fact.short)
        if homes == ["builtins"]:
            return Question("where", text, f"{fact.short} is built in; it needs no import.")
        homes = [home for home in homes if home in FAMILIAR] or homes
        return Question("where", text, f"{fact.short} is in the module {_listed(homes[:3], 'or')}.")

    def _contents(self, rng: random.Random, held_out: bool) -> Question:
        fact = rng.choice(self._modules)
        text = _phrase(_CONTENTS, rng, held_out).format(n=fact.name)
        shown = _shown(fact)
        more = ", and more" if len(fact.members) > len(shown) else ""
        names = ", ".join(shown) if more else _listed(shown, "and")
        return Question("contents", text, f"The module {fact.name} has {names}{more}.")

    def _unknown(self, rng: random.Random, held_out: bool) -> Question:
        draw = rng.random()
        if draw < 0.45:
            return Question("unknown", _phrase(_WHAT, rng, held_out).format(n=self._invented(rng)), REFUSAL)
        if draw < 0.6:
            return Question("unknown", _phrase(_WHAT, rng, held_out).format(n=self._misplaced(rng)), REFUSAL)
        first, second = rng.sample(_OTHER_THINGS.split(", "), 2)
        numbers = {"i": rng.randint(1, 99), "j": rng.randint(1, 99)}
        return Question(
            "unknown", _phrase(_OTHER, rng, held_out).format(w=first, x=second, **numbers), REFUSAL
        )

    def _invented(self, rng: random.Random) -> str:
        """Returns an unused name made of the start of one real name and the end of another."""
        while True:
            first, second = rng.choice(self.known).short, rng.choice(self.known).short
            name = first[: rng.randint(2, 5)] + second[-rng.randint(2, 5) :]
            if name not in self._names:
                return rng.choice(FAMILIAR) + "." + name if rng.random() < 0.4 else name

    def _misplaced(self, rng: random.Random) -> str:
        """Returns the name of a real function in a module that does not have it."""
        while True:
            name = f"{rng.choice(FAMILIAR)}.{rng.choice(self._inside).short}"
            if name not in self._names:
                return name


def is_held_out(fact: Fact) -> bool:
    """Returns True for one in 25 unfamiliar facts, by a hash of the name; modules are never held out."""
    digest = hashlib.sha256(fact.name.encode()).digest()
    return fact.kind != "module" and not fact.is_familiar and digest[0] % 25 == 0


def _phrase(phrases: Sequence[str], rng: random.Random, held_out: bool) -> str:
    return rng.choice(phrases[-2:] if held_out else phrases[:-2])


def _shown(module: Fact) -> list[str]:
    """Returns the first eight names of a module without its constants."""
    return [name for name in module.members if not name.isupper()][:8]


def _listed(names: Sequence[str], word: str) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"


def _chat(rng: random.Random, held_out: bool) -> Question:
    if rng.random() < 0.5:
        return Question("chat", rng.choice(_GREETINGS), _HELLO)
    return Question("chat", _phrase(_SELF, rng, held_out), _ABOUT)
