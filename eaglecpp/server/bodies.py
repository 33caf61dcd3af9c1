# SPDX-License-Identifier: MIT
"""Request bodies as types, and the parsing that all APIs share: sampling, messages, tools, forms of answers.

A null counts as a missing field. A text that contains a number counts as that number. Unknown fields are
ignored. `eaglecpp.options` declares the sampling fields.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Meta
from starlette.requests import Request

from eaglecpp.chat.message import Message
from eaglecpp.engine import grammar
from eaglecpp.errors import InvalidArgumentError
from eaglecpp.limits import LOGIT_BIASES
from eaglecpp.modelfile.parameters import PARAMETERS, from_json
from eaglecpp.options import DraftOptions, SamplingOptions, Strategy, describe
from eaglecpp.options.checked import checked
from eaglecpp.server.answer import ServedRequest
from eaglecpp.server.config import keep_alive
from eaglecpp.server.errors import ApiError, FieldError, cut
from eaglecpp.server.http import in_thread, read_json

B = TypeVar("B", bound=msgspec.Struct)
Limit = Annotated[int, Meta(ge=-1)]
"""Maximum tokens of an answer; -1 = no limit."""
NTop = Annotated[int, Meta(ge=0, le=20)]
"""Number of likeliest tokens to report for each position."""
_WHERE = re.compile(r"(?P<what>.*) - at `\$\.?(?P<where>.*)`", re.DOTALL)
_FIELDS = {option.name: option for option in describe(SamplingOptions) if option.name != "n_probs"}
_OPTIONS = _FIELDS | {o.name: o for o in describe(DraftOptions) if o.name == "draft_window"}
_FITTED = {p.key.removeprefix("sampling."): p for p in PARAMETERS.values() if p.key.startswith("sampling.")}
_KINDS: dict[Any, Any] = {"strings": str | list[str], "pairs": Any}


async def read(request: Request, kind: type[B]) -> B:
    """Reads the body of a request as an object of the class `kind`. Raises ApiError, which names the invalid
    field, the expected value and the actual value.
    """
    return await in_thread(request, _converted, await read_json(request), kind)


def _converted(values: Mapping[str, Any], kind: type[B]) -> B:
    try:
        return msgspec.convert({k: v for k, v in values.items() if v is not None}, kind, strict=False)
    except msgspec.ValidationError as error:
        match = _WHERE.fullmatch(str(error))
        if match is None:
            raise ApiError(400, str(error).replace("`", "")) from None
        where, what = match["where"], match["what"].replace("`", "").replace(" | null", "")
        value = values.get(where)
        if ", got " not in what and isinstance(value, str | int | float):
            what += f", found {cut(repr(value))}"
        raise FieldError(where, what[:1].lower() + what[1:]) from None


class _Scale(msgspec.Struct):
    """Scale of an adapter. `id` is the adapter's number in `GET /lora-adapters`."""

    id: int
    scale: Annotated[float, Meta(ge=-100, le=100)]


class Body(msgspec.Struct, kw_only=True):
    """Fields of requests in every API. `draft`, `strategy` and `exact` are eaglecpp's own fields. `options`
    is Ollama's field, and `num_ctx` is the same as `options.num_ctx`. `lora` is llama-server's field:
    adapters that `lora` does not list are not used.
    """

    model: str = ""
    stream: bool = False
    keep_alive: float | str | None = None
    draft: bool | str = True
    strategy: str | None = None
    exact: str | None = None
    options: dict[str, Any] = {}
    num_ctx: int = 0
    cache_prompt: bool = True
    lora: Annotated[list[_Scale], Meta(max_length=64)] | None = None

    def request(self, sampling: Mapping[str, Any] | None = None, **fields: Any) -> ServedRequest:
        """Returns the body as a `ServedRequest`. sampling: sampling options that override the body's
        `options`; fields: further fields of the `ServedRequest`. Raises ApiError.
        """
        options = _ollama_options(self.options)
        n_ctx, n_keep = options.pop("num_ctx", 0), options.pop("num_keep", None)
        if n_keep is not None and fields.get("n_keep", -1) >= 0:
            fields["n_keep"] = n_keep
        options |= sampling or {}
        scales = None if self.lora is None else {adapter.id: adapter.scale for adapter in self.lora}
        if len(scales or ()) < len(self.lora or ()):
            raise FieldError("lora", "an adapter is listed twice; send one scale for each adapter")
        is_off = Strategy.is_off(self.draft)
        if isinstance(self.draft, str) and not is_off:
            raise FieldError("draft", f"expected true, false, off or none, found {cut(self.draft)!r}")
        if fields.get("n_top") is not None:
            options["n_probs"] = max(1, fields["n_top"])
        return ServedRequest(
            model=self.model,
            keep_alive_s=keep_alive(self.keep_alive),
            n_ctx=max(0, self.num_ctx) or n_ctx,
            lora=scales,
            draft_window=options.pop("draft_window", None),
            options=options,
            strategy="off" if is_off else self.strategy,
            exact=self.exact,
            cache_prompt=self.cache_prompt,
            **fields,
        )


def _ollama_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Checks the entries of Ollama's `options` and returns the known entries. Values of Ollama's parameters
    are clamped to their range. Fields of `SamplingOptions` and `draft_window` are accepted too. Other entries
    are ignored, as in Ollama. Raises ApiError.
    """
    options: dict[str, Any] = {}
    for name, value in values.items():
        if value is None or name in ("grammar", "logit_bias") or name not in PARAMETERS.keys() | _OPTIONS:
            continue
        try:
            if name not in PARAMETERS:
                options[name] = checked(_OPTIONS[name], value)
            elif name in ("num_ctx", "num_keep"):
                options[name] = PARAMETERS[name].fitted(int(from_json(name, value)))  # type: ignore[arg-type]
            elif (to := PARAMETERS[name].key).startswith("sampling."):
                options[to.removeprefix("sampling.")] = PARAMETERS[name].fitted(from_json(name, value))
            else:
                from_json(name, value)
        except (TypeError, ValueError, OverflowError) as error:
            raise ApiError(400, str(error), param=name) from None
    return options


if TYPE_CHECKING:

    class SampledBody(Body):
        """A body with the fields for sampling."""

        max_tokens: int | None = None

else:
    SampledBody = msgspec.defstruct(
        "SampledBody",
        [(name, _KINDS.get(option.kind, option.kind) | None, None) for name, option in _FIELDS.items()],
        bases=(Body,),
        kw_only=True,
    )


def sampling_of(body: SampledBody, **rest: Any) -> dict[str, Any]:
    """Returns the sampling options of a body, clamped to the range of Ollama's parameters. rest: options that
    have another name in this API. An empty `stop` keeps the model's own stop strings. Raises ApiError.
    """
    values = {name: getattr(body, name) for name in _FIELDS} | rest
    if values["logit_bias"] is not None:
        values["logit_bias"] = _biases(values["logit_bias"])
    stop = values["stop"] or ()
    values["stop"] = [text for text in ([stop] if isinstance(stop, str) else stop) if text] or None
    return {
        name: _FITTED[name].fitted(value) if name in _FITTED and not isinstance(value, list) else value
        for name, value in values.items()
        if value is not None
    }


def _biases(value: Any) -> list[Any]:
    """Reads `logit_bias`, which is an object of biases by token id, or llama-server's list of [token id,
    bias] pairs. A bias of false forbids the token. Raises ApiError.
    """
    pairs = list(value.items()) if isinstance(value, dict) else value
    if not isinstance(pairs, list) or len(pairs) > LOGIT_BIASES:
        found = f", found {len(pairs)}" if isinstance(pairs, list) else ""
        text = f"expected at most {LOGIT_BIASES} entries of a token id and a number{found}"
        raise FieldError("logit_bias", text)
    try:
        return [(int(token), -math.inf if bias is False else float(bias)) for token, bias in pairs]
    except (TypeError, ValueError, OverflowError):
        raise FieldError("logit_bias", "expected entries of a token id and a number") from None


class CloudBody(SampledBody, kw_only=True):
    """Fields that the APIs of OpenAI and Anthropic share. Values out of range are refused, as OpenAI and
    Anthropic refuse them.
    """

    max_tokens: Limit | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    tools: list[Any] = []
    tool_choice: Any = None


def read_message(entry: Any, where: str) -> Message:
    """Reads one message. Raises ApiError, also for content other than text and images."""
    if not isinstance(entry, dict):
        raise FieldError(where, "expected an object")
    fixed = dict(entry)
    if isinstance(entry.get("content"), list):
        fixed["content"] = [_part(part) for part in entry["content"]]
    try:
        return Message.from_dict(fixed)
    except InvalidArgumentError as error:
        raise FieldError(where, str(error)) from None


def _part(part: Any) -> Any:
    """Converts one part of a content list to a common form, because each API names text parts differently."""
    kind = part.get("type") if isinstance(part, dict) else None
    if key := {"input_text": "text", "output_text": "text", "refusal": "refusal"}.get(str(kind)):
        return {"type": "text", "text": part.get(key)}
    if kind == "input_image":
        return {"type": "image_url", "image_url": part.get("image_url")}
    if kind == "image" and isinstance(source := part.get("source"), dict):  # Anthropic's form
        data = f"data:image/any;base64,{source.get('data')}"
        return {"type": "image_url", "image_url": data if source.get("type") == "base64" else None}
    return part


def read_prompts(value: Any, where: str = "prompt", n_max: int | None = None) -> list[str | list[int]]:
    """Reads the prompts of a request. Each prompt is a text or a list of token ids. A list that contains a
    number is one prompt, any other list is a list of prompts. Raises ApiError for an invalid prompt or more
    than n_max prompts, before any prompt is processed.
    """
    prompts = value if isinstance(value, list) and not any(type(x) is int for x in value) else [value]
    if n_max is not None and len(prompts) > n_max:
        raise FieldError(where, f"expected at most {n_max} prompts, found {len(prompts)}")
    for prompt in prompts:
        is_tokens = isinstance(prompt, list) and bool(prompt) and all(type(token) is int for token in prompt)
        if not (isinstance(prompt, str) or is_tokens):
            raise FieldError(where, "expected a text, token ids, or a list of these")
    if not prompts:
        raise FieldError(where, "expected at least one prompt")
    return prompts


def _read_tools(tools: Sequence[Any]) -> list[dict[str, Any]]:
    """Returns the tools in the form of chat completions. Raises ApiError."""
    checked = []
    for index, tool in enumerate(tools):
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str) or not name:
            raise FieldError(f"tools[{index}]", "expected a function with a name")
        kept = {key: function[key] for key in ("name", "description", "parameters") if function.get(key)}
        checked.append({"type": "function", "function": kept})
    return checked


def read_format(value: Any, name: str = "response_format") -> dict[str, Any]:
    """Converts a `response_format` to fields of `GenerationRequest`. name: name of the API's field, for error
    messages. Raises ApiError.
    """
    if value is None:
        return {}
    try:
        schema, is_strict = grammar.read_format(value, name)
    except InvalidArgumentError as error:
        raise ApiError(400, str(error), param=name.partition(".")[0]) from None
    strict = [{"$id": "form", **schema}] if schema is not None and is_strict else []
    return {} if schema is None else {"json_schema": schema, "strict": strict}


def offered(offers: Sequence[Any], choice: Any, form: Mapping[str, Any]) -> dict[str, Any]:
    """Returns keyword arguments of `Body.request`: the tools, and the format of the answer. By default the
    answer has the format `form` or is a tool call. If `choice` requires a tool call, the answer must be one.
    Raises ApiError.
    """
    tools = _read_tools(offers)
    if choice == "none":
        return dict(form)
    functions = (tool.get("function", tool) for tool in offers)
    own = [_call_schema(function) for function in functions if function.get("strict") is True]
    strict = {"strict": [*form.get("strict", ()), *own]}
    if choice in (None, "auto"):
        return {"tools": tools, "may_call": bool(tools and form), **form, **strict}
    if choice in ("required", "any"):
        if not tools:
            raise FieldError("tool_choice", f"{choice!r} needs tools")
        calls = [_call_schema(tool["function"]) for tool in tools]
        return {"tools": tools, "json_schema": {"anyOf": calls}, **strict}
    allowed = choice.get("allowed_tools", choice) if isinstance(choice, dict) else None
    if isinstance(allowed, dict) and isinstance(allowed.get("tools"), list):
        names = {tool["function"]["name"] for tool in _read_tools(allowed["tools"])}
        some = [tool for tool in tools if tool["function"]["name"] in names]
        return offered(some, allowed.get("mode"), form) | strict
    function = choice.get("function", choice) if isinstance(choice, dict) else None
    if not isinstance(function, dict) or "name" not in function:
        raise FieldError("tool_choice", "expected none, auto, required or a function")
    for tool in tools:
        if tool["function"]["name"] == function["name"]:
            return {"tools": tools, "json_schema": _call_schema(tool["function"]), **strict}
    raise FieldError("tool_choice", f"{function['name']!r} is not among the tools")


def _call_schema(function: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the JSON schema of a call of this tool, in the bare form that `chat.reader.Reader` parses."""
    arguments = function.get("parameters") or {"type": "object", "properties": {}}
    if isinstance(arguments, dict):  # with this id, a $ref refers to the tool's own schema
        arguments = {"$id": "tool:" + quote(function["name"], safe=""), **arguments}
    properties = {"name": {"const": function["name"]}, "arguments": arguments}
    return {"type": "object", "properties": properties, "required": ["name", "arguments"]}


def read_effort(effort: str, reasoning: Mapping[str, Any]) -> bool | str | None:
    """Returns the value of `think` for an API's reasoning fields: False, a level such as "high", or None for
    the model's default.
    """
    wanted = effort or reasoning.get("effort")
    return None if wanted is None else False if wanted in ("none", "minimal") else str(wanted)


def read_budget(*budgets: Any) -> dict[str, int]:
    """Returns the sampling option that limits the tokens of thinking. budgets: values of the API's fields for
    this limit; the first value that is set counts. Raises ApiError.
    """
    budget = next((value for value in budgets if value is not None), None)
    if budget is None:
        return {}
    if not isinstance(budget, int) or isinstance(budget, bool) or budget < -1:
        found = cut(repr(budget))
        raise ApiError(400, f"thinking budget: expected tokens, or -1 for no limit, found {found}")
    return {"think_budget": budget}


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """Returns the arguments of a tool call as JSON text, because most APIs send text."""
    return json.dumps(dict(arguments), ensure_ascii=False)
