# SPDX-License-Identifier: MIT
"""Requests to llama-server's completions: bodies to `Ask`s, with its names, defaults and forms of a prompt.

Source: ggml-org/llama.cpp: tools/server/server-schema.cpp, server-common.cpp, server-context.cpp.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eaglecpp.limits import LOGIT_BIASES
from eaglecpp.options import SamplingOptions, describe
from eaglecpp.server.answer import Ask
from eaglecpp.server.errors import ApiError
from eaglecpp.server.http import extensions, field, keep_alive

if TYPE_CHECKING:
    from eaglecpp.engine.vocabulary import Vocabulary
    from eaglecpp.server.loaded import LoadedModel

__all__ = [
    "DEFAULTS",
    "NAMES",
    "SAMPLERS",
    "LineLimits",
    "Parts",
    "is_prompt",
    "read_ask",
    "read_biases",
    "read_prompts",
    "read_samplers",
    "tokens_of",
]

Parts = str | Sequence[str | int]
"""A prompt: a text, token ids, or both in turn."""

_LIMIT = ("n_predict", "max_completion_tokens", "max_tokens")
_SPECIAL = {"max_tokens", "stop", "grammar", "logit_bias", "n_probs"}
NAMES = [option.name for option in describe(SamplingOptions) if option.name not in _SPECIAL]
"""Options of sampling that a request has as they are."""

DEFAULTS = {name: getattr(SamplingOptions(), name) for name in ("top_p", "min_p")}
"""llama.cpp's, where Ollama's are others."""
SAMPLERS: dict[str, dict[str, Any]] = {
    "penalties": {"repeat_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0},
    "dry": {"dry_multiplier": 0.0},
    "top_n_sigma": {"top_n_sigma": -1.0},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "xtc": {"xtc_probability": 0.0},
    "temperature": {"temperature": 1.0, "dynatemp_range": 0.0},
}
"""llama.cpp's samplers in our order, which does not change, and the options with which each does nothing."""
_OTHER_NAMES = {"typical_p": "typ_p", "typical": "typ_p", "temp": "temperature", "nucleus": "top_p"}
_CHARS = {"e": "penalties", "d": "dry", "s": "top_n_sigma", "k": "top_k", "y": "typ_p", "p": "top_p",
          "m": "min_p", "x": "xtc", "t": "temperature", "i": "infill"}  # fmt: skip


def read_ask(body: Mapping[str, Any]) -> Ask:
    """All but the prompt."""
    if body.get("lora"):
        raise ApiError(400, "lora: adapters are chosen when the model is opened")
    if field(body, "post_sampling_probs", bool, False):
        raise ApiError(400, "post_sampling_probs is not supported: probabilities are the model's own")
    options = {name: body[name] for name in NAMES if body.get(name) is not None}
    limits = [field(body, name, int) for name in _LIMIT]
    options["num_predict"] = next((limit for limit in limits if limit is not None), -1)
    stop = body.get("stop") or []
    texts = [stop] if isinstance(stop, str) else stop
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ApiError(400, "stop must be a list of texts")
    if any(texts):
        options["stop"] = [text for text in texts if text]
    grammar, schema = field(body, "grammar", str, ""), field(body, "json_schema", dict)
    n_probs = max(field(body, name, int, 0) for name in ("n_probs", "logprobs"))
    draft, strategy = extensions(body)
    return Ask(
        model=field(body, "model", str, ""),
        options=options | read_samplers(body.get("samplers")),
        defaults=DEFAULTS,
        sampling={"grammar": grammar} if grammar else {},
        format=None if grammar or schema is None else schema or {"type": "object"},
        n_probs=n_probs or None,
        keep_alive_s=keep_alive(body.get("keep_alive")),
        draft=draft,
        strategy=strategy,
        exact=field(body, "exact", str),
        cache_prompt=field(body, "cache_prompt", bool, True),
        show_drafts=field(body, "timings_per_token", bool, False),
    )


def read_samplers(given: Any) -> dict[str, Any]:
    """The options with which only these samplers do anything."""
    if given is None:
        return {}
    names = [_CHARS.get(char, "") for char in given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ApiError(400, "samplers must be a list of names, or a text of their letters")
    names = [name.replace("-", "_") for name in names]
    known = {_OTHER_NAMES.get(name, name) for name in names}
    options: dict[str, Any] = {"infill": "infill" in known}
    for name, off in SAMPLERS.items():
        options |= off if name not in known else {}
    return options


def read_prompts(given: Any) -> list[Parts]:
    """The prompts of a request. A list with a number in it is one prompt, any other list is several."""
    is_several = isinstance(given, list) and not any(type(part) is int for part in given)
    prompts: list[Any] = given if is_several else [given]
    prompts = [
        one.get("prompt_string") if isinstance(one, dict) and "multimodal_data" not in one else one
        for one in prompts
    ]
    if not prompts or not all(map(is_prompt, prompts)):
        raise ApiError(400, "prompt must be a text, a list of token ids and texts, or a list of such prompts")
    return prompts


def is_prompt(given: Any) -> bool:
    return isinstance(given, str) or (
        isinstance(given, list) and bool(given) and all(type(part) in (str, int) for part in given)
    )


def tokens_of(
    vocabulary: Vocabulary, prompt: Parts, begins: bool = True, special: bool = True, n_most: int = 0
) -> list[int]:
    """begins: whether a text at the beginning gets a BOS token, if the model wants one. n_most: raises
    ContextFullError for a text that has as many tokens; 0 = as the context.
    """
    tokens: list[int] = []
    for index, part in enumerate([prompt] if isinstance(prompt, str) else prompt):
        if isinstance(part, str):
            tokens += vocabulary.fitting(part, add_bos=begins and index == 0, special=special, n_ctx=n_most)
        else:
            tokens.append(part)
    return vocabulary.checked(tokens)


def read_biases(body: Mapping[str, Any], vocabulary: Vocabulary) -> dict[str, Any]:
    """`logit_bias`: pairs, or an object, of tokens or texts and what is added to them, false = never."""
    given = body.get("logit_bias") or []
    pairs = list(given.items()) if isinstance(given, dict) else given
    if not isinstance(pairs, list) or len(pairs) > LOGIT_BIASES:
        raise ApiError(400, f"logit_bias must be a list of at most {LOGIT_BIASES} pairs of token and bias")
    found: list[tuple[int, float]] = []
    for pair in pairs:
        token: Any
        bias: Any
        token, bias = pair if isinstance(pair, list | tuple) and len(pair) == 2 else (None, None)
        if isinstance(given, dict) and str(token).isdecimal():
            token = int(str(token))
        bias = float("-inf") if bias is False else bias
        if type(token) not in (int, str) or isinstance(bias, bool) or not isinstance(bias, int | float):
            raise ApiError(400, "logit_bias: expected a token id or a text, and a number or false")
        tokens = (
            tokens_of(vocabulary, token, begins=False, special=False) if isinstance(token, str) else [token]
        )
        found += [(one, float(bias)) for one in tokens]
    return {"logit_bias": tuple(found)} if found else {}


class LineLimits:
    """Ends an answer where a line begins that is indented less than `n_indent`, or at the end of a line after
    `most_ms`. It sees one token after the other, so that drafts make no difference. n_kept: bytes of the text
    that the answer has then; None = all.
    """

    def __init__(self, model: LoadedModel, n_indent: int, most_ms: float) -> None:
        self._piece = model.engine.engine.vocabulary.token_to_piece
        self._n_indent, self._most_s = n_indent, most_ms / 1000
        self._text, self._line, self._has_line = b"", 0, False
        self._started: float | None = None
        self.n_kept: int | None = None

    def __call__(self, tokens: list[int]) -> bool:
        if self._started is None:
            self._started = time.perf_counter()
        new = self._piece(tokens[-1])
        self._text += new
        if self._has_line and self._n_indent > 0:
            if self._line:
                line = self._text[self._line :]
                n_blank = len(line) - len(line.lstrip(b" \t"))
                if n_blank < min(self._n_indent, len(line)):
                    self.n_kept = self._line + n_blank
                    return True
            self._line = self._text.find(b"\n", self._line) + 1 or self._line
        if b"\n" not in new:
            return False
        self._has_line = True
        return 0 < self._most_s < time.perf_counter() - self._started
