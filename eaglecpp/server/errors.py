# SPDX-License-Identifier: MIT
"""Errors in the form of each API: a status, and a body as that API's clients expect it."""

from __future__ import annotations

import logging
import re
from typing import Any

from eaglecpp import errors as of_engine
from eaglecpp.modelfile.syntax import ModelfileError
from eaglecpp.references import ModelNameError
from eaglecpp.store.errors import DownloadError, HostRefusedError, OfflineError

_OF_LLAMA_SERVER = {413: "invalid_request_error", 500: "server_error", 503: "unavailable_error"}
_log = logging.getLogger("eaglecpp.server")
# maximum characters of a message, and number of characters that are kept of a longer message's beginning
_MOST, _HEAD = 300, 200
_READ = 10_000
_FOLDERS = re.compile(r"(?<![\w.:/\\~-])(?:[A-Za-z]:)?(?:[/\\][^/\\\s:'\"]+)+[/\\]")
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    501: "not_supported_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class ApiError(Exception):
    """An error that the client gets as the response. code, param: fields of OpenAI's error object. A long
    message is shortened, because the message may quote megabytes of a request.
    """

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None
    ) -> None:
        self.status = status
        self.message = cut(message)
        super().__init__(self.message)
        self.code = code
        self.param = param

    @property
    def type(self) -> str:
        return _TYPES.get(self.status, "api_error" if self.status >= 500 else "invalid_request_error")


class FieldError(ApiError):
    """A field of a request is invalid. where: the field, or a path inside it: messages[0].content"""

    def __init__(self, where: str, text: str) -> None:
        super().__init__(400, f"{where}: {text}", param=re.split(r"[.\[]", where)[0])


def cut(text: str) -> str:
    """Shortens a text that quotes a request, for the error response and the log."""
    return text if len(text) <= _MOST else f"{text[:_HEAD]} ... {text[_HEAD - _MOST :]}"


def as_api_error(error: BaseException, path: str = "") -> ApiError:
    """Converts an exception to the error that the client gets. Client errors are returned unchanged. Errors
    of files and other servers are also logged for the operator. Any other exception is logged as an internal
    error and reported without its text, which may contain confidential details.
    """
    if isinstance(error, ApiError):
        return error
    for kinds, status, code, param in _KNOWN:  # noqa: B007
        if isinstance(error, kinds):
            break
    else:
        _log.error("%s: internal error", path or "-", exc_info=error)
        return ApiError(500, "internal error; the server's log has the details")
    if code == "context_length_exceeded":
        param = _PROMPTS.get(path, "messages")
    # Paths of folders are removed, because clients must not learn where files are.
    text = str(error) if isinstance(error, _OF_A_REQUEST) else _FOLDERS.sub("", str(error)[:_READ])
    if code in ("queue_full", "engine_busy"):
        text = f"server busy, please try again: {text}"
    if code in (None, "engine_broken") and status >= 403:
        _log.error("%s: %s: %s", path or "-", type(error).__name__, cut(str(error)))
    return ApiError(status, text, code=code, param=param)


_OF_A_REQUEST = (of_engine.InvalidArgumentError, of_engine.GrammarError, of_engine.TemplateError)
"""Exceptions whose message quotes only the request, and no paths of this machine."""
_WRONG = (*_OF_A_REQUEST, of_engine.UnsupportedError, of_engine.MismatchError, ModelfileError, ModelNameError)
_PROMPTS = {"/v1/completions": "prompt", "/v1/responses": "input", "/v1/embeddings": "input"}
"""Field with the prompt, by path. In all other bodies of OpenAI's API, this field is `messages`."""
_KNOWN: tuple[tuple[Any, int, str | None, str | None], ...] = (
    (of_engine.ModelNotFoundError, 404, "model_not_found", "model"),
    (of_engine.ContextFullError, 400, "context_length_exceeded", None),
    (_WRONG, 400, None, None),
    (of_engine.QueueFullError, 503, "queue_full", None),
    (of_engine.EngineBusyError, 503, "engine_busy", None),
    (of_engine.PreemptedError, 504, "timeout", None),
    (of_engine.OutOfMemoryError, 503, "out_of_memory", None),
    (HostRefusedError, 403, None, None),
    (OfflineError, 503, None, None),
    (DownloadError, 502, None, None),
    (of_engine.EngineBrokenError, 500, "engine_broken", None),
    (of_engine.EagleError, 500, None, None),
)
"""Exception classes with their HTTP status, code and field. The first class that matches is used."""


def error_body(error: ApiError, path: str) -> dict[str, Any]:
    """Returns an error body in the form of the API that `path` belongs to, or of llama-server for other
    paths.
    """
    if path.startswith("/v1/messages"):
        return {"type": "error", "error": {"type": error.type, "message": error.message}}
    if path.startswith("/v1/"):
        return {
            "error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
        }
    if path.startswith("/api/") or path == "/":
        return {"error": error.message}
    kind = _OF_LLAMA_SERVER.get(error.status, error.type)
    if error.code == "context_length_exceeded":
        kind = "exceed_context_size_error"
    return {"error": {"code": error.status, "message": error.message, "type": kind}}
