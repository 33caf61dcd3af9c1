# SPDX-License-Identifier: MIT
"""`Vocabulary`: text to tokens of the target and back."""

from __future__ import annotations

import codecs
import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from eaglecpp.chat.images import split_at_images
from eaglecpp.engine.native import NativeEngine, checks_arguments
from eaglecpp.engine.projector import Projector
from eaglecpp.errors import ContextFullError, InvalidTypeError, InvalidValueError


class Detokenizer:
    """Incremental UTF-8 decoding with stop strings.

    `stop`: strings that end the text. The text ends before the stop string. The stop string that is completed
    first counts. If several stop strings are completed at the same character, the longest counts. `errors`:
    handling of bytes that are not UTF-8, as in `bytes.decode`; U+FFFD by default.
    """

    def __init__(self, stop: Iterable[str] = (), errors: str = "replace") -> None:
        stops = tuple(stop)
        if "" in stops:
            raise InvalidValueError("a stop string is empty and would end every answer at once; remove it")
        self._stops = list(map(_Stop, stops))
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors=errors)
        self._held = ""
        self._finished = False
        self.stopped_by: str | None = None

    @property
    def stopped(self) -> bool:
        """True once a stop string was found. No further text is returned then."""
        return self.stopped_by is not None

    def feed(self, piece: bytes) -> str:
        """Takes the bytes of the next token. Returns the text that is final now, which may be empty."""
        if self._finished:
            raise ValueError("feed() after finish()")
        return self._advance(self._decoder.decode(piece))

    def finish(self) -> str:
        """Ends the input. Returns the text that was held back. A second call returns ""."""
        if self._finished:
            return ""
        self._finished = True
        text = self._advance(self._decoder.decode(b"", final=True))
        rest, self._held = self._held, ""
        return text + rest

    def _advance(self, new: str) -> str:
        if self.stopped:
            return ""
        text = self._held + new
        for end in range(len(self._held) + 1, len(text) + 1):
            complete = [stop.text for stop in self._stops if stop.step(text[end - 1])]
            if complete:
                self.stopped_by = max(complete, key=len)
                self._held = ""
                return text[: end - len(self.stopped_by)]
        n_sure = len(text) - max((stop.n for stop in self._stops), default=0)
        self._held = text[n_sure:]
        return text[:n_sure]


class _Stop:
    """Searches a text for one stop string with the algorithm of Knuth, Morris and Pratt. The average time per
    character is constant, even if the text nearly matches often. n: length of the stop string's prefix that
    the text ends with.
    """

    def __init__(self, text: str) -> None:
        self.text, self.n = text, 0
        # Entry i belongs to the stop string's first i characters. It is the length of their longest proper
        # prefix that is also their suffix.
        self._shorter = [0, 0]
        for i in range(1, len(text)):
            self._shorter.append(self._longer(self._shorter[i], text[i]))

    def step(self, char: str) -> bool:
        """Takes the next character of the text. Returns whether the stop string is complete."""
        self.n = self._longer(self.n, char)
        return self.n == len(self.text)

    def _longer(self, n: int, char: str) -> int:
        while n and (n == len(self.text) or self.text[n] != char):
            n = self._shorter[n]
        return n + (self.text[n] == char)


Prompt = str | bytes | Sequence[int]
_LONG = 8  # characters per token of the context; most texts that fit have fewer


class Vocabulary:
    """The target's tokenizer. `Engine` has the same methods, and their docstrings explain the arguments."""

    def __init__(self, engine: NativeEngine) -> None:
        self._engine = engine
        self.projector: Projector | None = None  # None if the target cannot read images

    @property
    def bos_text(self) -> bytes:
        """The text of the BOS token, or empty."""
        return self._special_text(self._engine.get().bos)

    @cached_property
    def border_texts(self) -> tuple[str, str]:
        """The texts of the BOS and the EOS token; "" for a missing token."""
        texts = self.bos_text, self._special_text(self._engine.get().eos)
        return texts[0].decode("utf-8", "replace"), texts[1].decode("utf-8", "replace")

    @property
    def bos_tokens(self) -> list[int]:
        """The list of the BOS token, if the model wants a BOS token before a text; else []."""
        native = self._engine.get()
        return [native.bos] if native.add_bos and native.bos >= 0 else []

    @cached_property
    def fim_tokens(self) -> dict[str, int]:
        """The infill tokens in the model's file, by llama.cpp's names (pre, suf, mid, rep, sep)."""
        return self._engine.get().fim_tokens()

    def tokenize(
        self, text: str | bytes, *, add_bos: bool = True, special: bool = True, n_ctx: int | None = None
    ) -> list[int]:
        """Returns the token ids of a text, as `Engine.tokenize` does. n_ctx: raise ContextFullError for a
        prompt that leaves no room for an answer in a context of `n_ctx` tokens; 0 = the engine's context;
        None = do not check. A text that is too long for the context in any case is not tokenized.
        """
        data, add_special = self._to_tokenize(text, add_bos, special)
        n_end = int(add_special and self._engine.get().add_eos)
        n_ctx = n_ctx if n_ctx is None else n_ctx or self._engine.get().n_ctx
        tokens = self.read(data, add_special, special, *(() if n_ctx is None else (n_ctx - 1 + n_end,)))
        if tokens is None:
            raise self._context_full(f"at least {n_ctx} tokens", n_ctx or 0)
        return self._unended(tokens, add_special)

    def read(self, data: bytes, *options: Any) -> list[int] | None:
        """Tokenizes a text with llama.cpp. Raises InvalidValueError if llama.cpp refuses it."""
        try:
            tokens: list[int] | None = self._engine.get().tokenize(data, *options)
            return tokens
        except ValueError as error:  # native code only raises built-in exceptions
            raise InvalidValueError(str(error)) from None

    def tokenize_images(
        self, text: str, images: Mapping[str, bytes], *, add_bos: bool, n_ctx: int | None = None
    ) -> list[int]:
        """Returns the ids of a text with image marks, see `Projector`. n_ctx: as in `tokenize`. Images are
        decoded only if the whole prompt fits into the context. If n_ctx is None, each image alone must fit.
        """
        parts = split_at_images(text, images)
        if len(parts) == 1:
            return self.tokenize(text, add_bos=add_bos, n_ctx=n_ctx)
        assert self.projector is not None
        native = self._engine.get()
        n_images, n_room = len(parts) // 2, n_ctx or native.n_ctx
        if n_images >= n_room:
            raise self._context_full(f"{n_images} images", n_room)
        if n_ctx is not None and len(text) > _LONG * n_room:
            n_left = n_room
            for part in parts[::2]:  # the length is checked here, because mtmd tokenizes parts of any length
                tokens = self.read(part.encode(), False, True, n_left)
                if tokens is None:
                    raise self._context_full(f"at least {n_room} tokens", n_room)
                n_left -= len(tokens)
        _, add_bos = self._to_tokenize(text, add_bos, special=True)
        chunks = self.projector.read(parts, images, add_bos=add_bos)
        if n_ctx is None:
            self.check_fit(max(chunk.n for chunk in chunks))
        else:
            n = sum(len(chunk.tokens) + chunk.n for chunk in chunks)
            self.check_fit(n - int(add_bos and native.add_eos), n_ctx)
        return self._unended(self.projector.tokens(chunks, images), add_bos)

    def has_images(self, tokens: Sequence[int]) -> bool:
        """Returns whether the engine still has the images whose ids are among these tokens."""
        return self.projector is None or self.projector.has_all(tokens)

    def check_fit(self, n_prompt: int, n_ctx: int = 0) -> None:
        """Raises ContextFullError for a prompt that leaves no room for an answer in a context of `n_ctx`
        tokens; 0 = the engine's context.
        """
        n_ctx = n_ctx or self._engine.get().n_ctx
        if n_prompt >= n_ctx:
            raise self._context_full(f"{n_prompt} tokens", n_ctx)

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Returns the text of token ids, as `Engine.detokenize` does."""
        return self._engine.get().detokenize(self.checked(tokens), False, special).decode("utf-8", "replace")

    def token_to_piece(self, token: int, *, special: bool = False) -> bytes:
        """Returns the bytes of one token, as `Engine.token_to_piece` does."""
        return self._engine.get().token_to_piece(token, special)

    def is_end(self, token: int) -> bool:
        """Returns whether a token ends a generation."""
        return self._engine.get().is_eog(token)

    def has_token(self, text: str) -> bool:
        """Returns whether a single token has exactly this text."""
        return self.token_of(text) is not None

    def token_of(self, text: str) -> int | None:
        """Returns the single token with this text, or None."""
        tokens = self.tokenize(text, add_bos=False)
        is_whole = len(tokens) == 1 and self.token_to_piece(tokens[0], special=True) == text.encode()
        return tokens[0] if is_whole else None

    def control_tokens(self, texts: Iterable[str]) -> dict[int, str]:
        """Returns the texts that are control tokens, by token id. A control token has no text in an
        answer.
        """
        tokens = ((self.token_of(text), text) for text in texts)
        return {token: text for token, text in tokens if token is not None and not self.token_to_piece(token)}

    def prompt_tokens(self, prompt: Prompt, *, has_to_fit: bool = False, images: bool = False) -> list[int]:
        """Returns the token ids of a prompt, as `Engine.prompt_tokens` does. has_to_fit: raise
        ContextFullError for a prompt that leaves no room for an answer.
        """
        if isinstance(prompt, str | bytes):
            tokens = self.tokenize(prompt, n_ctx=0 if has_to_fit else None)
        elif isinstance(prompt, Mapping) or not hasattr(prompt, "__iter__"):
            raise InvalidTypeError(
                f"prompt: expected str, bytes or a list of token ids, found {type(prompt).__name__}"
            )
        else:
            if has_to_fit and hasattr(prompt, "__len__"):
                self.check_fit(len(prompt))
            tokens = self.checked(prompt, images=images)
        if not tokens:
            raise InvalidValueError("the prompt is empty and the model has no BOS token; write some text")
        return tokens

    def _to_tokenize(self, text: str | bytes, add_bos: bool, special: bool) -> tuple[bytes, bool]:
        """Returns the text's bytes, and whether llama.cpp must add a BOS token."""
        with checks_arguments():  # a lone half of a surrogate pair has no UTF-8
            data = text.encode("utf-8") if isinstance(text, str) else bytes(text)
        return data, add_bos and not (special and self.bos_text and data.startswith(self.bos_text))

    def _unended(self, tokens: list[int], add_special: bool) -> list[int]:
        """Removes the EOS token that llama.cpp appends if the model's file sets `add_eos_token`, because EOS
        would end a text that is to be continued.
        """
        native = self._engine.get()
        return tokens[:-1] if add_special and native.add_eos and tokens[-1:] == [native.eos] else tokens

    def _context_full(self, found: str, n_ctx: int) -> ContextFullError:
        """Returns the error for a prompt that does not fit. Clients search its message for "prompt is too
        long" and "exceeds the available context size".
        """
        return ContextFullError(
            f"the prompt is too long: it has {found}, which exceeds the available context size of {n_ctx} "
            f"including the answer; shorten it or raise n_ctx (trained for {self._engine.get().n_ctx_train})"
        )

    def _special_text(self, token: int) -> bytes:
        return b"" if token < 0 else self.token_to_piece(token, special=True)

    def checked(self, tokens: Sequence[int], *, images: bool = False) -> list[int]:
        """Checks token ids and returns them unchanged. images: also accept the ids of images that the engine
        still has. Raises InvalidTypeError, InvalidValueError for invalid ids.
        """
        try:
            ids, n_vocab = [operator.index(token) for token in tokens], self._engine.get().n_vocab
        except TypeError as error:
            raise InvalidTypeError(
                f"expected token ids as whole numbers: {error}; for several prompts use generate_many()"
            ) from None
        for position, token in enumerate(ids):
            if not 0 <= token < n_vocab and not (images and token < -1):
                raise InvalidValueError(
                    f"token id {token} at position {position}: expected 0 to {n_vocab - 1}"
                )
        return ids
