# SPDX-License-Identifier: MIT
"""`Infill`: a prompt whose answer goes between two texts, built with the infill tokens in the target's file.
The layout is llama.cpp's (tools/server/server-common.cpp, format_prompt_infill):

    [REP]myproject\\n [SEP]name\\n text ... [SEP]filename\\n [PRE]prefix begun [SUF]suffix [MID]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from eaglecpp.engine.vocabulary import Vocabulary
from eaglecpp.errors import UnsupportedError

_NEEDED = {"pre": "prefix", "suf": "suffix", "mid": "middle"}
_CHARS_PER_TOKEN = 64  # maximum characters per token; the rest of a text is cut off before tokenizing


@dataclass(frozen=True)
class Infill:
    """A prompt for the text that belongs between two texts.

    prefix, suffix: the texts around the gap; special tokens in them are not parsed
    extra:  names and texts of other files, most important last; None = no other files, and no header before
        other files
    begun:  beginning of the answer, placed after the prefix
    suffix_first: place the suffix before the prefix, as in the training of models such as Codestral
    (llama.cpp's --spm-infill)
    """

    prefix: str
    suffix: str
    extra: Sequence[tuple[str, str]] | None = None
    begun: str = ""
    suffix_first: bool = False

    def tokens(self, vocabulary: Vocabulary, n_tokens_max: int = 0) -> list[int]:
        """Returns the prompt as token ids. n_tokens_max: maximum length in tokens; 0 = raise ContextFullError
        if the prompt does not fit into the context. From a longer prompt, other files are removed first, then
        the text farthest from the gap. The prefix may take up to three quarters of the maximum. Raises
        UnsupportedError if the model's file lacks infill tokens.
        """
        fim = vocabulary.fim_tokens
        missing = [name for name in _NEEDED if name not in fim]
        if missing:
            kinds = " and no ".join(_NEEDED[name] for name in missing)
            keys = ", ".join(f"tokenizer.ggml.fim_{name}_token_id" for name in missing)
            raise UnsupportedError(
                f"this model does not support insert: its file has no {kinds} token for infilling ({keys})"
            )
        n_chars = n_tokens_max * _CHARS_PER_TOKEN

        def read(text: str, special: bool = False) -> list[int]:
            return vocabulary.tokenize(
                text, add_bos=False, special=special, n_ctx=None if n_tokens_max else 0
            )

        before, behind = read(self.prefix[-n_chars:]), read(self.suffix[: n_chars or None])
        begun, others = read(self.begun[-n_chars:], special=True), self._others(fim, read, n_chars)
        head = vocabulary.bos_tokens
        if n_tokens_max:
            n_left = max(0, n_tokens_max - len(_NEEDED) - len(head) - len(begun))
            n_before = min(len(before), max(3 * n_left // 4, n_left - len(behind)))
            n_behind = min(len(behind), n_left - n_before)
            before, behind = _last(before, n_before), behind[:n_behind]
            others = _last(others, n_left - n_before - n_behind)
        parts = [[fim["pre"], *before, *begun], [fim["suf"], *behind]]
        if self.suffix_first:
            parts.reverse()
        tokens = [*others, *head, *parts[0], *parts[1], fim["mid"]]
        if not n_tokens_max:
            vocabulary.check_fit(len(tokens))
        return tokens

    def _others(self, fim: Mapping[str, int], read: Callable[[str], list[int]], n_chars: int) -> list[int]:
        if self.extra is None:
            return []
        tokens = [fim["rep"], *read("myproject\n")] if "rep" in fim else []
        for name, text in self.extra:
            tokens += [fim["sep"], *read(f"{name}\n")] if "sep" in fim else read("\n\n--- snippet ---\n\n")
            tokens += read(text[-n_chars:])
        return tokens + ([fim["sep"], *read("filename\n")] if "sep" in fim else [])


def _last(tokens: list[int], n: int) -> list[int]:
    return tokens[len(tokens) - n :]
