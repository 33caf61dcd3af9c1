# SPDX-License-Identifier: MIT
"""Errors in the form of each API: a status, and a body as the API that was called expects it."""

from __future__ import annotations

import logging
from typing import Any

from starlette.responses import JSONResponse

from eaglecpp.chat.gotemplate.errors import TemplateError
from eaglecpp.errors import (
    ContextFullError,
    EagleError,
    EngineBrokenError,
    MismatchError,
    ModelNotFoundError,
    OutOfMemoryError,
    QueueFullError,
    UnsupportedError,
)

__all__ = ["ApiError", "as_api_error", "error_body", "error_response"]

_log = logging.getLogger("eaglecpp.server")
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
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


def as_api_error(error: BaseException) -> ApiError:
    """What a client is told about an exception. One that nobody foresaw is logged and told without its text,
    which may hold more than the client should know.
    """
    match error:
        case ApiError():
            return error
        case ModelNotFoundError():
            return ApiError(404, str(error), code="model_not_found", param="model")
        case ContextFullError():
            return ApiError(400, str(error), code="context_length_exceeded", param="messages")
        case QueueFullError():
            return ApiError(503, f"server busy, please try again: {error}", code="queue_full")
        case OutOfMemoryError():
            return ApiError(503, str(error), code="out_of_memory")
        case EngineBrokenError():
            return ApiError(500, str(error), code="engine_broken")
        case UnsupportedError() | MismatchError() | TemplateError():
            return ApiError(400, str(error))
        case EagleError():
            return ApiError(500 if type(error) is EagleError else 400, str(error))
        case ValueError() | TypeError() if error.args and isinstance(error.args[0], str):
            return ApiError(400, str(error))
        case TimeoutError():
            return ApiError(504, str(error) or "the request took too long", code="timeout")
    _log.error("internal error", exc_info=error)
    return ApiError(500, f"internal error: {type(error).__name__}; the server's log has the details")


def error_body(error: ApiError, path: str) -> dict[str, Any]:
    """The body of the API that `path` belongs to."""
    if path.startswith("/v1/messages"):
        return {"type": "error", "error": {"type": error.type, "message": error.message}}
    if path.startswith("/v1/"):
        return {
            "error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
        }
    return {"error": error.message}


def error_response(error: BaseException, path: str) -> JSONResponse:
    """The answer to a request that failed before anything was sent."""
    told = as_api_error(error)
    headers = {"Retry-After": "1"} if told.status == 503 else {}
    return JSONResponse(error_body(told, path), told.status, headers)
