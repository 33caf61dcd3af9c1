# SPDX-License-Identifier: MIT
"""A byte-level BPE tokenizer of a few hundred tokens, as GGUF fields.

The control tokens come first, then the 256 bytes, and then the merges of a short list of words (GPT-2's
split, tokenizer model `gpt2`, pre `gpt-2`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import gguf

CONTROL = ("<|bos|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>")
BOS, EOS = 0, 1
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = (
    "the and that with this from have not are was for you all can had her one our out day get has him"
    " his how man new now old see two way who boy did its let put say she too use in on at to of is it"
    " be as or an we he"
)


def byte_symbols() -> list[str]:
    """Returns the printable character that GPT-2 uses for each byte value."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = iter(range(256, 512))
    return [chr(b) if b in keep else chr(next(shifted)) for b in range(256)]


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer with the token texts in the order of their ids, and the merges as pairs of texts. kind and
    pre: llama.cpp's names of the tokenizer and the pre-tokenizer. types: types of the tokens; by default the
    first few are control tokens. ids: ids of special tokens. name: model name that replaces the default.
    """

    tokens: list[str]
    merges: list[tuple[str, str]]
    kind: str = "gpt2"
    pre: str = "gpt-2"
    types: tuple[int, ...] = ()
    scores: tuple[float, ...] = ()
    ids: Mapping[str, int] = field(default_factory=lambda: {"bos": BOS, "eos": EOS})
    add_bos: bool = True
    name: str = ""

    def is_plain(self, token: int) -> bool:
        """Returns True for printable ASCII text, which random weights prefer."""
        text = self.tokens[token].replace("Ġ", " ").replace("Ċ", "\n")
        return token >= len(CONTROL) and all(c == "\n" or " " <= c <= "~" for c in text)

    def add_to(self, writer: gguf.GGUFWriter, with_template: bool) -> None:
        """Adds the `tokenizer.*` fields to a GGUF."""
        normal, control = int(gguf.TokenType.NORMAL), int(gguf.TokenType.CONTROL)
        types = [control if i < len(CONTROL) else normal for i in range(len(self.tokens))]
        writer.add_tokenizer_model(self.kind)
        if self.pre:
            writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types or types)
        if self.scores:
            writer.add_token_scores(self.scores)
        if self.merges:
            writer.add_token_merges([" ".join(pair) for pair in self.merges])
        for name, token in self.ids.items():
            writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token)
        writer.add_add_bos_token(self.add_bos)
        if self.name:
            writer.kv_data[0]["general.name"].value = self.name
        if with_template:
            writer.add_chat_template(CHAT_TEMPLATE)


def tiny_tokenizer() -> Tokenizer:
    """Returns the tiny tokenizer, which is always the same."""
    tokens = [*CONTROL, *byte_symbols()]
    return Tokenizer(tokens, add_words(tokens, "Ġ"))


def add_words(tokens: list[str], space: str) -> list[tuple[str, str]]:
    """Adds every prefix of each word in WORDS to the tokens, shortest first. Returns the merges."""
    merges: list[tuple[str, str]] = []
    for word in WORDS.split():
        text = space
        for letter in word:
            if text + letter not in tokens:
                tokens.append(text + letter)
                merges.append((text, letter))
            text += letter
    return merges
