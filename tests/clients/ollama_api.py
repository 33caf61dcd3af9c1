# SPDX-License-Identifier: MIT
"""Ollama's API as an OpenAPI document, in our own words, for tools that make requests from one. Endpoints,
types and required fields are those of its own (ollama/ollama: docs/openapi.yaml), without what only
ollama.com answers; pull and push would need a network.
"""

from __future__ import annotations

from typing import Any

TEXT, NUMBER, WHOLE, YES = {"type": "string"}, {"type": "number"}, {"type": "integer"}, {"type": "boolean"}
TIME = {"type": "string", "format": "date-time"}


def of(required: str = "", **properties: Any) -> dict[str, Any]:
    """An object with these properties; required: names with spaces between."""
    return {"type": "object", "properties": properties, "required": required.split()}


def each(schema: Any, names: str) -> dict[str, Any]:
    """The same for several properties."""
    return dict.fromkeys(names.split(), schema)


def any_of(*schemas: Any) -> dict[str, Any]:
    return {"anyOf": list(schemas)}


def many(schema: Any) -> dict[str, Any]:
    return {"type": "array", "items": schema, "maxItems": 4}


def document(model: str) -> dict[str, Any]:
    """model: the one that requests name, most of the time."""
    name = {"type": "string", "enum": [model, "nobody", ""]}
    options = of(
        **each(NUMBER, "temperature top_p min_p repeat_penalty"),
        **each(WHOLE, "seed top_k"),
        stop=any_of(TEXT, many(TEXT)),
        num_ctx={"type": "integer", "maximum": 256},
        num_predict={"type": "integer", "minimum": -2, "maximum": 4},
    )
    call = of("function", function=of("name", name=TEXT, arguments={"type": "object"}))
    message = of(
        "role content",
        role={"enum": ["system", "user", "assistant", "tool"]},
        **each(TEXT, "content thinking tool_name"),
        tool_calls=many(call),
        images=many(TEXT),
    )
    parameters = of("type", type={"const": "object"}, properties={"type": "object"})
    function = of("name parameters", name=TEXT, description=TEXT, parameters=parameters)
    tool = of("type function", type={"const": "function"}, function=function)
    format = any_of({"const": "json"}, {"const": ""}, of(type={"enum": ["object", "string", "array"]}))
    common = each(YES, "stream logprobs truncate draft") | {
        "model": name,
        "options": options,
        "format": format,
        "think": any_of(YES, {"enum": ["low", "medium", "high"]}),
        "keep_alive": any_of({"enum": ["5m", "", "soon"]}, NUMBER),
        "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
        "strategy": {"enum": ["auto", "off", "chain:3"]},
        "exact": {"enum": ["on", "auto", "off"]},
    }
    probability = {"token": TEXT, "logprob": NUMBER, "bytes": {"type": "array", "items": WHOLE}}
    tops = {"type": "array", "items": of("token logprob", **probability)}
    counts = "total_duration load_duration prompt_eval_count prompt_eval_duration eval_count eval_duration"
    ended = each(WHOLE, counts) | each(TEXT, "model done_reason") | {"created_at": TIME, "done": YES}
    ended["logprobs"] = {"type": "array", "items": of("token logprob", top_logprobs=tops, **probability)}
    facts = "format family parameter_size quantization_level"
    details = of(facts, **each(TEXT, facts), families=any_of({"type": "null"}, many(TEXT)))
    listed = each(TEXT, "name model digest") | {"size": WHOLE, "details": details}
    entry = of("name model modified_at size digest details", modified_at=TIME, **listed)
    loaded = of(
        "name model size digest details expires_at",
        expires_at=TIME,
        **listed,
        **each(WHOLE, "size_vram context_length"),
    )
    said = of("role content", role={"const": "assistant"}, content=TEXT, thinking=TEXT, tool_calls=many(call))
    shown = of(
        "capabilities model_info details",
        capabilities=many(TEXT),
        model_info={"type": "object"},
        details=details,
        modified_at=TIME,
        **each(TEXT, "template parameters license"),
    )
    status = of("status", status=TEXT)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Ollama's API", "version": "1"},
        "paths": {
            "/api/version": asks("get", answer=of("version", version=TEXT)),
            "/api/tags": asks("get", answer=of("models", models={"type": "array", "items": entry})),
            "/api/ps": asks("get", answer=of("models", models={"type": "array", "items": loaded})),
            "/api/show": asks("post", of("model", model=name, verbose=YES), shown),
            "/api/chat": asks(
                "post",
                of("model messages", messages=many(message), tools=many(tool), **common),
                of("model created_at message done", message=said, **ended),
            ),
            "/api/generate": asks(
                "post",
                of(
                    "model",
                    **each(TEXT, "prompt system template suffix"),
                    raw=YES,
                    images=many(TEXT),
                    context=many(WHOLE),
                    **common,
                ),
                of(
                    "model created_at response done",
                    **each(TEXT, "response thinking"),
                    context={"type": "array"},
                    **ended,
                ),
            ),
            "/api/create": asks(
                "post",
                of(
                    "model",
                    **each(TEXT, "model system template quantize"),
                    **{"from": name},
                    stream=YES,
                    parameters=options,
                    license=any_of(TEXT, many(TEXT)),
                    messages=many(message),
                    files={"type": "object", "additionalProperties": TEXT},
                ),
                status,
            ),
            "/api/copy": asks("post", of("source destination", source=name, destination=TEXT)),
            "/api/delete": asks("delete", of("model", model={"enum": ["nobody", "made", ""]})),
            "/api/embed": asks(
                "post",
                of("model input", model=name, input=any_of(TEXT, many(TEXT)), truncate=YES, dimensions=WHOLE),
                of("model embeddings", model=TEXT, embeddings={"type": "array"}, prompt_eval_count=WHOLE),
            ),
            "/api/embeddings": asks(
                "post",
                of("model prompt", model=name, prompt=TEXT, options=options),
                of("embedding", embedding={"type": "array", "items": NUMBER}),
            ),
        },
    }


def asks(method: str, body: Any = None, answer: Any = None) -> dict[str, Any]:
    """An operation that takes and gives JSON; streams are not described."""
    failed = {"description": "refused", "content": {"application/json": {"schema": of("error", error=TEXT)}}}
    good: dict[str, Any] = {"description": "done"}
    if answer is not None:
        good["content"] = {"application/json": {"schema": answer}, "application/x-ndjson": {}}
    operation: dict[str, Any] = {"responses": {"200": good, "4XX": failed}}
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return {method: operation}
