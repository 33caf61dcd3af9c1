# SPDX-License-Identifier: MIT
"""Errors in the form of each API: a status, and a body as the API that was called expects it."""

from __future__ import annotations

import logging
from typing import Any

from eaglecpp.errors import (
    ContextFullError,
    EagleError,
    EngineBrokenError,
    EngineBusyError,
    GrammarError,
    InvalidArgumentError,
    MismatchError,
    ModelNotFoundError,
    OutOfMemoryError,
    PlaceLostError,
    QueueFullError,
    TemplateError,
    UnsupportedError,
)
from eaglecpp.modelfile.errors import ModelfileError
from eaglecpp.references.names import ModelNameError
from eaglecpp.store.errors import DownloadError, OfflineError

__all__ = ["ApiError", "as_api_error", "error_body"]

_OF_LLAMA_SERVER = {400: "invalid_request_error", 413: "invalid_request_error", 500: "server_error",
                    503: "unavailable_error"}  # fmt: skip
_log = logging.getLogger("eaglecpp.server")
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    501: "not_supported_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class ApiError(Exception):
    """A request that is answered with an error. code, param: OpenAI's fields."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param

    @property
    def type(self) -> str:
        return _TYPES.get(self.status, "api_error" if self.status >= 500 else "invalid_request_error")


def as_api_error(error: BaseException, path: str = "") -> ApiError:
    """What a client is told about an exception. A request's own fault is told as it is, and so is one of a
    file or of another server, which is nobody's here but the operator's, and logged. Anything else is a fault
    of ours: it is logged, and told without its text, which may hold more than the client should know.
    """
    match error:
        case ApiError():
            return error
        case ModelNotFoundError():
            return ApiError(404, str(error), code="model_not_found", param="model")
        case ContextFullError():
            return ApiError(400, str(error), code="context_length_exceeded", param="messages")
        case UnsupportedError() if path == "/infill":
            return ApiError(501, str(error))
        case (
            InvalidArgumentError()
            | GrammarError()
            | UnsupportedError()
            | MismatchError()
            | TemplateError()
            | ModelfileError()
            | ModelNameError()
        ):
            return ApiError(400, str(error))
        case QueueFullError():
            return ApiError(503, f"server busy, please try again: {error}", code="queue_full")
        case EngineBusyError():
            return ApiError(503, f"server busy, please try again: {error}", code="engine_busy")
        case PlaceLostError():
            return ApiError(504, str(error), code="timeout")
        case OutOfMemoryError():
            return ApiError(503, str(error), code="out_of_memory")
        case EagleError():
            _log.error("%s: %s: %s", path or "-", type(error).__name__, error)
            code = "engine_broken" if isinstance(error, EngineBrokenError) else None
            return ApiError(_status(error), str(error), code=code)
    _log.error("%s: internal error", path or "-", exc_info=error)
    return ApiError(500, "internal error; the server's log has the details")


def _status(error: BaseException) -> int:
    if isinstance(error, OfflineError):
        return 503
    return 502 if isinstance(error, DownloadError) else 500


def error_body(error: ApiError, path: str) -> dict[str, Any]:
    """The body of the API that `path` belongs to, llama-server's if it is no other's."""
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
