# SPDX-License-Identifier: MIT
"""`ChatModel`: an opened model with everything a conversation needs, and the seam to model references.

`find_source` says what a reference stands for: files and a Modelfile. `ChatModel` opens them, picks the chat
template and merges options: the defaults of `run`, then the Modelfile, then the command line, then what was
set in the chat. Prompts are made in `chat_prompts`. Nothing here prints.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglecpp.chat.prompts import PromptMaker
from eaglecpp.chat.template import ChatTemplate
from eaglecpp.chat.thinking import ThinkTags, tags_of
from eaglecpp.cli.chat.defaults import N_BATCH
from eaglecpp.context import ContextChoice, choose_n_ctx, free_memory
from eaglecpp.errors import MismatchError
from eaglecpp.modelfile import Command, Modelfile
from eaglecpp.modelfile.parameters import PARAMETERS, ParameterValue
from eaglecpp.options import TEXT, DraftOptions, ModelOptions, SamplingOptions, Strategy, split

if TYPE_CHECKING:
    from eaglecpp.engine import Engine

__all__ = ["ChatModel", "Source", "find_source"]

_CONTROL = re.compile(r"<\|[^<>|]+\|>|\[/?[A-Z]+\]|<[^<>|]+>")


@dataclass(frozen=True)
class Source:
    """What a model reference stands for.

    draft_asked: the drafter was named on the command line; drafts_text: the text itself was, in its place
    """

    reference: str
    target: Path
    modelfile: Modelfile
    draft: Path | None = None
    draft_asked: bool = False
    drafts_text: bool = False
    stored_template: str = ""
    adapters: tuple[Path, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What to call it in one word."""
        return self.target.stem if self.is_file else self.reference

    @property
    def is_file(self) -> bool:
        """Whether the reference is the path of the target, not a name."""
        return self.reference == str(self.target)


def find_source(
    reference: str, draft: str | None = None, *, wants_draft: bool = True, insecure: bool = False
) -> Source:
    """Looks a reference up, and fetches what is not on this machine.

    draft: as on the command line; None is the model's own. wants_draft: False when nothing will be drafted.
    insecure: fetching by http, and from servers whose certificates do not check out, is allowed
    Raises ModelNotFoundError, DownloadError, StoreError, MismatchError, ConvertError.
    """
    from eaglecpp.cli.models import prepare

    prepared = prepare(reference, draft, wants_draft=wants_draft, insecure=insecure)
    model = prepared.model
    target = model.target.absolute()
    return Source(
        reference=str(target) if model.name is None else str(model.name),
        target=target,
        modelfile=model.modelfile or Modelfile(from_=(Command("model", str(target)),)),
        draft=prepared.draft.absolute() if isinstance(prepared.draft, Path) else None,
        draft_asked=draft is not None and prepared.draft is not None,
        drafts_text=prepared.draft == TEXT,
        stored_template=model.stored_template or "",
        adapters=model.adapters,
        notices=tuple(str(notice) for notice in model.notices),
    )


class ChatModel:
    """given: options of the command line by field name; strategy: the one asked for, None = the model's.

    `parameters` and `strategy_set` hold what was set in the chat, by Modelfile name; `set_parameter` and
    `set_strategy` change them.
    """

    def __init__(
        self,
        source: Source,
        given: Mapping[str, Any],
        strategy: Strategy | None = None,
        parameters: Mapping[str, ParameterValue] | None = None,
    ) -> None:
        self.source = source
        self.parameters: dict[str, ParameterValue] = dict(parameters or {})
        self.strategy_set = ""
        self.context = ContextChoice(0, "asked for")
        self.notices: list[str] = list(source.notices)
        self._model_given, self._draft_given, self._sampling_given = split(
            given, ModelOptions, DraftOptions, SamplingOptions
        )
        if source.drafts_text:
            self._draft_given.setdefault("text_drafts", "on")
        self._asked = strategy
        self.engine = self._open()
        self.template = self._choose_template()
        self.prompts = PromptMaker(self.engine, self.template)
        self.tags: ThinkTags | None = (
            None if self.template.language == "family" else tags_of(self.template.text)
        )
        self.marks = self._find_marks()

    # Options

    @property
    def can_draft(self) -> bool:
        """Whether there is anything to draft from: a drafter, loaded or not, or the text itself."""
        return self.source.draft is not None or self.drafts_text_alone

    @property
    def drafts_text_alone(self) -> bool:
        """Whether drafts come from the text itself, without a drafter."""
        wanted = self._merged("draft", self._draft_given).get("text_drafts")
        return self.source.draft is None and wanted == "on"

    @property
    def strategy(self) -> Strategy:
        """How the drafter is used from the next answer on."""
        if not self.engine.has_draft:
            return Strategy("off")
        return self._wanted()

    def sampling(self) -> SamplingOptions:
        """The options of the next answer."""
        return SamplingOptions(**self._merged("sampling", self._sampling_given))

    def set_parameter(self, name: str, value: ParameterValue) -> bool:
        """Sets a parameter by its Modelfile name; returns whether the model had to be loaded again for it.
        When that fails the old value is back and the error is raised.
        """
        before = dict(self.parameters)
        self.parameters[name] = value
        option = PARAMETERS[name].option
        if option == "strategy":
            return self.set_strategy(Strategy.parse(f"chain:{value}" if value else "off"))
        if not option.startswith("model.") or before == self.parameters:
            return False
        try:
            self.reopen()
        except BaseException:
            self.parameters = before
            self.reopen()
            raise
        return True

    def set_strategy(self, strategy: Strategy) -> bool:
        """Uses the drafter another way; returns whether the model had to be loaded again for it.

        Raises ValueError or UnsupportedError, and changes nothing, where that is impossible.
        """
        before, self._asked = self._asked, strategy
        try:
            reloaded = self._make_room(strategy)
        except BaseException:
            self._asked = before
            if self.engine.closed:
                self.reopen()
            raise
        self.strategy_set = str(strategy)
        return reloaded

    def reopen(self, *, n_draft_max: int | None = None) -> None:
        """Loads the model again with the options of now. The caches start empty."""
        if n_draft_max is not None:
            self._draft_given["n_draft_max"] = n_draft_max
        self.engine.close()
        self.engine = self._open()
        self.prompts = PromptMaker(self.engine, self.template)

    def other(self, source: Source) -> ChatModel:
        """Another model opened with the same options."""
        given = {**self._model_given, **self._draft_given, **self._sampling_given}
        return ChatModel(source, given, self._asked, self.parameters)

    def close(self) -> None:
        """Frees the model."""
        self.engine.close()

    # Opening

    def _open(self) -> Engine:
        from eaglecpp.engine import Engine

        options = self._merged("model", self._model_given)
        if not options.get("n_ctx"):
            self.context = self._choose_context(options)
            options["n_ctx"] = self.context.n_ctx
        else:
            self.context = ContextChoice(options["n_ctx"], "asked for")
        options["lora"] = tuple((str(path), 1.0) for path in self.source.adapters)
        model = ModelOptions(**options)
        drafting = DraftOptions(**self._merged("draft", self._draft_given))
        wanted = self._wanted()
        if wanted.kind == "off" or not self.can_draft:
            return Engine(self.source.target, strategy="off", model=model, drafting=drafting)
        try:
            return Engine(
                self.source.target, self.source.draft, strategy=wanted, model=model, drafting=drafting
            )
        except MismatchError as error:
            if self.source.draft_asked:
                raise
            self.notices.append(f"running without the drafter, it does not fit: {error}")
            return Engine(self.source.target, strategy="off", model=model, drafting=drafting)

    def _wanted(self) -> Strategy:
        """The strategy asked for, whether a drafter is loaded or not."""
        if self._asked is not None:
            return self._asked
        option = self._options().get("strategy", "auto")
        return Strategy.parse(option)

    def _make_room(self, strategy: Strategy) -> bool:
        """Loads the drafter, or loads with room for more draft nodes, where the strategy needs it."""
        if strategy.kind == "off":
            return False
        if not self.can_draft:
            raise ValueError(f"strategy {strategy} needs a drafter: run with --draft")
        if not self.engine.has_draft:
            self.reopen()
            if not self.engine.has_draft:
                raise ValueError(f"strategy {strategy}: {self.notices[-1]}")
            return True
        self.engine.resolve(strategy)
        try:  # a generation of nothing: the engine alone knows what it has room for
            self.engine.stream(self.prompts.spoken_tokens, strategy=strategy, max_tokens=0).close()
        except ValueError:
            self.reopen(n_draft_max=strategy.nodes)
            return True
        return False

    def _options(self) -> dict[str, Any]:
        """Options by "group.field" from the Modelfile and what was set in the chat."""
        set_here = replace(
            self.source.modelfile, parameters={**self.source.modelfile.parameters, **self.parameters}
        )
        return {"model.n_batch": N_BATCH, **set_here.engine_options()}

    def _merged(self, group: str, given: Mapping[str, Any]) -> dict[str, Any]:
        prefix = f"{group}."
        merged = {
            name.removeprefix(prefix): value
            for name, value in self._options().items()
            if name.startswith(prefix)
        }
        set_here = {PARAMETERS[name].option for name in self.parameters}
        return merged | {name: value for name, value in given.items() if prefix + name not in set_here}

    def _choose_context(self, options: Mapping[str, Any]) -> ContextChoice:
        # what "auto" is without flash attention on the CPU; on a GPU the larger of two guesses
        usual = "f32" if options.get("flash_attn") == "off" else "f16"
        types = [
            usual if options.get(name, "auto") == "auto" else options[name] for name in ("type_k", "type_v")
        ]
        return choose_n_ctx(
            self.source.target,
            type_k=types[0],
            type_v=types[1],
            n_ubatch=options.get("n_ubatch", 512),
            n_free=_free_bytes(options),
        )

    def _choose_template(self) -> ChatTemplate:
        engine, modelfile = self.engine, self.source.modelfile
        eos = engine.native.eos
        eos_text = b"" if eos < 0 else engine.token_to_piece(eos, special=True)
        template = ChatTemplate.choose(
            modelfile=modelfile.template,
            gguf=engine.native.chat_template(),
            stored=self.source.stored_template,
            choice=modelfile.settings.chat_template,
            has_token=lambda text: self._control_token(text) is not None,
            bos_text=engine.bos_text.decode("utf-8", "replace"),
            eos_text=eos_text.decode("utf-8", "replace"),
        )
        self.notices += template.notices
        return template

    def _find_marks(self) -> dict[int, str]:
        """The control tokens that the thinking tags are made of, with their texts."""
        if self.tags is None:
            return {}
        texts = _CONTROL.findall(self.tags.open + self.tags.close + self.tags.plain)
        tokens = {text: self._control_token(text) for text in texts}
        return {
            token: text
            for text, token in tokens.items()
            if token is not None and not self.engine.token_to_piece(token)
        }

    def _control_token(self, text: str) -> int | None:
        """The one token that this text is, None if it is several."""
        tokens = self.engine.tokenize(text, add_bos=False)
        whole = len(tokens) == 1 and self.engine.token_to_piece(tokens[0], special=True) == text.encode()
        return tokens[0] if whole else None


def _free_bytes(options: Mapping[str, Any]) -> int | None:
    """Free memory where the KV cache goes: the first GPU's, if layers go there, else the machine's."""
    from eaglecpp.lowlevel import system_info

    gpus = [device for device in system_info()["devices"] if device["kind"] == "gpu"]
    if gpus and options.get("n_gpu_layers", -1) != 0 and options.get("offload_kqv", True):
        return int(gpus[options.get("main_gpu", 0) % len(gpus)]["memory_free"])
    return free_memory()
