# SPDX-License-Identifier: MIT
"""`ServerAnswers`: answers of a `ChatSession` from a model in a server, through Ollama's `/api/chat` with
eaglecpp's additional fields.

    ChatSession(ServerAnswers("http://127.0.0.1:11434", "smollm2")).ask("Hi").text
"""

from __future__ import annotations

import base64
import contextlib
import json
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from eaglecpp.chat.conversation import Conversation
from eaglecpp.chat.message import Message, Role
from eaglecpp.errors import EagleError, InvalidValueError
from eaglecpp.modelfile.model import Modelfile
from eaglecpp.modelfile.syntax import Command
from eaglecpp.opening.find import ModelFiles
from eaglecpp.options import SamplingOptions, describe
from eaglecpp.references import read_name
from eaglecpp.results import AnswerStream, Chunk, Completion, FinishReason, Piece, Timings

if TYPE_CHECKING:
    import httpx

_CONNECT_S = 5.0
_FACTS_S = 30.0
_TCP = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 120_000}
_TCP_HERE = [(socket.IPPROTO_TCP, getattr(socket, n), i) for n, i in _TCP.items() if hasattr(socket, n)]
_KEEP_ALIVE = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *_TCP_HERE]
_MAX_BYTES = 1 << 26  # maximum bytes of one line of an answer, and of a model's description
_MALFORMED = (AttributeError, TypeError, ValueError, ArithmeticError, RecursionError)
_NO_THINKING = "does not support thinking"
_FIGURES = vars(Timings())  # names of the counters in JSON, with their default values
_SAMPLING = {option.name for option in describe(SamplingOptions)}


class ServerRefusedError(EagleError):
    """The server refused the request; the message has the server's reason."""


class NoServerError(ServerRefusedError):
    """No server listens at the address."""


def address_of(text: str, port: int = 11434) -> str:
    """Returns the URL of a server given as in OLLAMA_HOST: [SCHEME://]HOST[:PORT][/PATH] (ollama/ollama:
    envconfig/config.go). port: used if neither the scheme nor the text determines a port. Raises
    InvalidValueError.
    """
    scheme, _, rest = text.strip().strip("\"'").rpartition("://")
    netloc, slash, path = rest.partition("/")
    netloc = f"[{netloc}]" if netloc.count(":") > 1 and not netloc.startswith("[") else netloc
    try:
        parts = urlsplit(f"//{netloc}")
        port = parts.port or {"http": 80, "https": 443}.get(scheme, port)
    except ValueError:
        port = -1
    if port < 0 or scheme not in ("", "http", "https"):
        raise InvalidValueError(f"server {text!r}: expected HOST[:PORT], also after http:// or https://")
    host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(name := parts.hostname or "", name)
    host = f"[{host}]" if ":" in host else host
    return f"{scheme or 'http'}://{host}:{port}{slash}{path}".rstrip("/")


def elsewhere(text: str) -> str | None:
    """Returns the server's URL as `address_of` does. Returns None for a server on this machine, because such
    a server is found without an address.
    """
    address = address_of(text)
    return None if _is_here(address) else address


def _is_here(address: str) -> bool:
    return urlsplit(address).hostname in ("127.0.0.1", "localhost", "::1")


def request(
    address: str,
    method: str,
    path: str,
    body: Any = None,
    key: str | None = None,
    timeout: float | None = None,
) -> httpx.Response:
    """Sends a request and returns the streaming response, which the caller closes. timeout: maximum seconds
    between two packets; None = no limit, because loading a model and long prompts take time. TCP keep-alive
    detects a lost host within two minutes. Raises NoServerError if no server listens, ServerRefusedError if
    the server refuses the request.
    """
    from urllib.request import getproxies, proxy_bypass

    import httpx

    url = urlsplit(address)
    proxies = {} if _is_here(address) or proxy_bypass(url.hostname or "") else getproxies()
    own = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {})
    # without kept connections, closing the response closes its connection
    limits = httpx.Limits(max_keepalive_connections=0)
    try:
        transport = httpx.HTTPTransport(
            verify=url.scheme == "https",
            limits=limits,
            socket_options=_KEEP_ALIVE,
            proxy=proxies.get(url.scheme) or proxies.get("all"),
        )
    except (httpx.InvalidURL, ImportError, OSError, ValueError) as error:
        why = f"cannot use the proxy or SSL_CERT_FILE from the environment: {error}"
        raise ServerRefusedError(why) from None
    try:
        client = httpx.Client(transport=transport, timeout=httpx.Timeout(timeout, connect=_CONNECT_S))
        headers = httpx.Headers(own, "utf-8")
        sent = client.build_request(method, address + path, json=body, headers=headers)
        response = client.send(sent, stream=True)
        if response.status_code == 200:
            return response
        reason = f"status {response.status_code}"
        with contextlib.closing(response), contextlib.suppress(httpx.TransportError, KeyError, *_MALFORMED):
            reason = str(json.loads(_read(response))["error"])
        if response.status_code == 401:
            reason += "; set EAGLECPP_API_KEY to one of the server's keys"
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise _no_connection(address, error) from None
    except (httpx.TransportError, httpx.InvalidURL, ValueError) as error:
        reason = str(error) or type(error).__name__
    raise ServerRefusedError(reason)


def ask(
    address: str, method: str, path: str, body: Any = None, key: str = "", timeout: float | None = None
) -> Any:
    """Sends a request and returns the JSON value of the response. Raises the errors of `request`, and
    ServerRefusedError for a response that is not JSON.
    """
    import httpx

    try:
        with contextlib.closing(request(address, method, path, body, key, timeout)) as response:
            return json.loads(_read(response))
    except (httpx.TransportError, *_MALFORMED) as error:
        raise ServerRefusedError(f"expected an answer of `eaglecpp serve` from {address}: {error}") from None


def _no_connection(address: str, error: Exception) -> ServerRefusedError:
    import ssl

    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return ServerRefusedError(
            f"the certificate of {address} is not trusted: {cause.verify_message}; to trust it, set "
            "SSL_CERT_FILE to the file of its certificate authority"
        )
    if cause is not None:
        return ServerRefusedError(f"{address} does not use TLS: {cause}; try http:// instead")
    return NoServerError(str(error) or "no answer came")


def _lines(response: httpx.Response) -> Iterator[bytes]:
    """Yields the lines of a response, each with at most _MAX_BYTES."""
    held = b""
    for part in response.iter_raw():
        *lines, held = (held + part).split(b"\n")
        yield from lines
        if len(held) > _MAX_BYTES:
            break
    yield held


def _read(response: httpx.Response) -> bytes:
    data = bytearray()
    for part in response.iter_raw():
        data += part
        if len(data) > _MAX_BYTES:
            raise ServerRefusedError(f"the answer has more than {_MAX_BYTES} bytes, the maximum")
    return bytes(data)


@dataclass(frozen=True)
class ServerAnswers:
    """A model in a server. keep_alive_s: seconds for which the server keeps the model loaded after an answer;
    None = the server's default.
    """

    address: str
    model: str
    keep_alive_s: float | None = None
    api_key: str = ""

    def __call__(self, conversation: Conversation, options: Mapping[str, Any]) -> ServedAnswer:
        """Starts an answer. Takes the options of `Session.chat`, but options of the prompt have no effect.
        Raises ServerRefusedError before the first token, also for a conversation that does not fit.
        """
        body = self._body(conversation, options)
        try:
            return ServedAnswer(request(self.address, "POST", "/api/chat", body, self.api_key))
        except ServerRefusedError as error:
            # the model cannot think, so the request is sent again without `think`
            if body["think"] and _NO_THINKING in str(error):
                return self(conversation, {**options, "think": None})
            raise

    def facts(self) -> dict[str, Any]:
        """Returns the model's `/api/show` entry. Raises ServerRefusedError, also if the server is not
        eaglecpp's, because another server would not draft.
        """
        facts: dict[str, Any] = {}
        try:
            for method, path, body in (("GET", "version", None), ("POST", "show", {"model": self.model})):
                facts |= ask(self.address, method, f"/api/{path}", body, self.api_key, _FACTS_S)
                if "eaglecpp" not in facts:
                    raise ServerRefusedError(
                        f"{self.address} is not `eaglecpp serve`; use --no-server to open the model here"
                    )
        except (NoServerError, TypeError) as error:
            raise ServerRefusedError(f"{self.address} does not answer: {error}") from None
        return facts

    def found(self) -> tuple[ModelFiles, bool, bool]:
        """Returns the model as the server describes it (without files), whether the model drafts, and whether
        the model accepts images. Raises ServerRefusedError, ModelNameError.
        """
        facts, name = self.facts(), read_name(self.model)
        text = Modelfile(from_=(Command("model", str(name)),), system=str(facts.get("system") or "") or None)
        files = ModelFiles("store", Path(str(name)), text, name=name)
        return files, bool(facts.get("draft_info")), "vision" in (facts.get("capabilities") or ())

    def _body(self, conversation: Conversation, options: Mapping[str, Any]) -> dict[str, Any]:
        # Even an empty system prompt is sent, because it overrides the model's own system prompt.
        head = {"role": "system", "content": conversation.system}
        schema, strategy = options.get("json_schema", ""), options.get("strategy")
        return {
            "model": self.model,
            "messages": [head, *map(_message, conversation.messages)],
            "options": {name: value for name, value in options.items() if name in _SAMPLING},
            "think": options.get("think"),
            "format": json.loads(schema) if schema else "",
            "strategy": None if strategy is None else str(strategy),
            "keep_alive": self.keep_alive_s,
            "truncate": False,
            "stream": True,
            "show_drafts": True,
        }


class ServedAnswer(AnswerStream):
    """A running answer from a server. Iterate over it for chunks, which have text but no tokens. Raises
    EagleError if the server reports an error or the response ends early. load_ms: milliseconds that the
    server took to load the model.
    """

    def __init__(self, response: httpx.Response) -> None:
        self._response, self._lines = response, _lines(response)
        self.load_ms = 0.0
        self.is_open = True
        self._pieces: list[Piece] = []
        self._timings = Timings()
        self._finish: FinishReason = "cancelled"
        self._failed = False

    def __next__(self) -> Chunk:
        if not self.is_open:
            raise StopIteration
        from httpx import TransportError

        try:
            chunk = self._chunk(json.loads(next(self._lines, b"")))
        except (TransportError, json.JSONDecodeError, UnicodeDecodeError):
            why = "the server closed the connection before the end of the answer; try again"
        except EagleError as error:
            why = str(error)
        except _MALFORMED as error:
            why = f"expected an answer of `eaglecpp serve`: {error}"
        else:
            if chunk.finish_reason is not None:
                self.close()
            return chunk
        self._failed = True
        self.close()
        raise EagleError(why)

    def _chunk(self, part: dict[str, Any]) -> Chunk:
        """Parses a line of the answer. Raises EagleError if the line reports an error, and the exceptions in
        `_MALFORMED` for an invalid line.
        """
        if "error" in part:
            raise EagleError(str(part["error"]))
        drafts = (part.get("drafts") or {}).get("pieces", ())
        pieces = [Piece(str(text), bool(thought), bool(accepted)) for text, accepted, thought in drafts]
        self._pieces += pieces
        text = "".join(piece.text for piece in pieces)
        if not part.get("done"):
            return Chunk(text, [], [], pieces=pieces)
        figures = part.get("timings", {})
        self.notices = tuple(map(str, figures.get("notices", ())))
        self.load_ms = part.get("load_duration", 0) / 1e6
        known = {name: type(value)(figures[name]) for name, value in _FIGURES.items() if name in figures}
        self._timings, self._finish = Timings(**known), part.get("done_reason") or "stop"
        return Chunk(text, [], [], finish_reason=self._finish, timings=self._timings, pieces=pieces)

    def completion(self) -> Completion:
        """Returns the answer so far, which has no token ids."""
        content = "".join(piece.text for piece in self._pieces if not piece.is_thinking)
        thinking = "".join(piece.text for piece in self._pieces if piece.is_thinking)
        message = Message(Role.ASSISTANT, content, thinking)
        text = message.thinking + message.content
        return Completion(text, [], [], self._finish, 0, [], self._timings, _message=message)

    def close(self) -> Chunk:
        """Ends the answer here and in the server. Never raises."""
        if self.is_open:
            self.is_open = False
            self._response.close()
            if self.on_end is not None and not self._failed:
                self.on_end(self.completion())
        return Chunk("", [], [])


def _message(message: Message) -> dict[str, Any]:
    sent: dict[str, Any] = {"role": str(message.role), "content": message.text}
    if message.thinking:
        sent["thinking"] = message.thinking
    if message.images:
        sent["images"] = [base64.b64encode(data).decode() for data in message.images]
    return sent
