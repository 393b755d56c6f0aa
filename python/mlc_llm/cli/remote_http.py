"""A small client of servers that speak OpenAI's API, on the standard library."""

from __future__ import annotations

import http.client
import json
import queue
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from mlc_llm.errors import InvalidField, MLCError, RequestError, UserError
from mlc_llm.protocol.json_text import parse_json

CONNECT_S = 10.0
SILENCE_S = 600.0
"""A server that says nothing for so long is given up. A long prompt takes a while."""
POLL_S = 0.1
MAX_LINE = 16 << 20
MAX_BODY = 64 << 20


class Address:
    """Where a server is. Raises `InvalidField` for what is no address of one."""

    def __init__(self, url: str) -> None:
        words = "should be like http://127.0.0.1:8000 or https://example.org/v1"
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise InvalidField("--url", url, words) from error
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise InvalidField("--url", url, words)
        if parts.query or parts.fragment or not url.isascii() or not url.isprintable():
            raise InvalidField("--url", url, words)
        self.host, self.port, self.secure = parts.hostname, port, parts.scheme == "https"
        self.path = parts.path.rstrip("/") or "/v1"
        self.shown = f"{parts.scheme}://{parts.netloc}{self.path}"

    def connect(self, silence_s: float) -> http.client.HTTPConnection:
        """An open connection. Raises `MLCError`."""
        made: http.client.HTTPConnection
        if self.secure:
            context = ssl.create_default_context()
            made = http.client.HTTPSConnection(
                self.host, self.port, timeout=CONNECT_S, context=context
            )
        else:
            made = http.client.HTTPConnection(self.host, self.port, timeout=CONNECT_S)
        try:
            made.connect()
        except ssl.SSLCertVerificationError as error:
            words = f"{error.verify_message}; SSL_CERT_FILE names a file of certificates"
            raise MLCError(f"{self.shown}: cannot connect: {words}") from error
        except OSError as error:
            raise MLCError(f"{self.shown}: cannot connect: {error.strerror or error}") from error
        made.sock.settimeout(silence_s)
        return made


class RemoteServer:
    """A server. Any thread may call it."""

    def __init__(self, address: Address, key: str | None) -> None:
        """key: sent as `Authorization: Bearer`."""
        self.address = address
        self._headers = {"accept": "application/json, text/event-stream"}
        if key is not None:
            self._headers["authorization"] = f"Bearer {key}"

    def models(self) -> list[dict[str, Any]]:
        """The entries of its list of models. Raises `MLCError`."""
        connection = self.address.connect(SILENCE_S)
        try:
            found = parse_json(
                _whole(self._reply(connection, "GET", "/models", None)), "the models"
            )
        finally:
            connection.close()
        data: Any = found.get("data") if isinstance(found, dict) else None
        if not isinstance(data, list):
            raise MLCError(f"{self.address.shown}/models: the answer has no list of models")
        return [one for one in data if isinstance(one, dict) and isinstance(one.get("id"), str)]

    def stream(self, path: str, body: Mapping[str, object]) -> EventReader:
        """Begin a streamed answer."""
        return EventReader(self, path, json.dumps({**body, "stream": True}).encode())

    def _reply(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None
    ) -> http.client.HTTPResponse:
        """Raises `MLCError` for an answer that is an error."""
        headers = {**self._headers, **({"content-type": "application/json"} if body else {})}
        try:
            connection.request(method, self.address.path + path, body, headers)
            reply = connection.getresponse()
            if reply.status != 200:
                with reply:
                    raise _refusal(self.address, path, reply)
        except (OSError, http.client.HTTPException) as error:
            raise _lost(self.address, error) from error
        return reply


class EventReader:
    """The events of a streamed answer. A thread reads them: Ctrl-C is noticed in between."""

    def __init__(self, server: RemoteServer, path: str, body: bytes) -> None:
        self._server, self._path, self._body = server, path, body
        self._news: queue.Queue[dict[str, Any] | BaseException | None] = queue.Queue()
        self._connection: http.client.HTTPConnection | None = None
        self._closed = False
        self.ignored = ""
        """The names of fields that the server says it ignores."""
        threading.Thread(target=self._run, daemon=True).start()

    def __iter__(self) -> Iterator[dict[str, Any] | None]:
        """Each event as JSON, and None now and then, when there was none. Raises `MLCError`."""
        while True:
            try:
                news = self._news.get(timeout=POLL_S)
            except queue.Empty:
                yield {} if self._closed else None
                continue
            if news is None:
                return
            if isinstance(news, BaseException):
                raise news
            yield news

    def close(self) -> None:
        """End the answer: the server notices that the connection is closed."""
        self._closed = True
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with suppress(OSError):
                connection.sock.shutdown(2)

    def _run(self) -> None:
        try:
            self._connection = self._server.address.connect(SILENCE_S)
            try:
                self._read(self._connection)
            finally:
                self._connection.close()
        except BaseException as error:
            self._news.put(error)

    def _read(self, connection: http.client.HTTPConnection) -> None:
        address = self._server.address
        reply = self._server._reply(connection, "POST", self._path, self._body)
        self.ignored = reply.getheader("x-ignored-params") or ""
        try:
            with reply:
                for data in _events(reply):
                    if data == "[DONE]":
                        self._news.put(None)
                        return
                    self._news.put(_checked(data))
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _lost(address, error) from error
        raise RequestError(f"{address.shown}: the answer ended before it was complete")


def _events(reply: http.client.HTTPResponse) -> Iterator[str]:
    """The data of server-sent events."""
    data: list[str] = []
    while line := reply.readline(MAX_LINE + 1):
        if len(line) > MAX_LINE:
            raise ValueError("a line of the stream is longer than 16 MB")
        text = line.decode("utf-8").rstrip("\r\n")
        if text.startswith("data:"):
            data.append(text[5:].lstrip())
        elif not text and data:
            yield "\n".join(data)
            data = []


def _checked(data: str) -> dict[str, Any]:
    """Raises `RequestError` for an event that says so."""
    found = parse_json(data, "an event of the server")
    if not isinstance(found, dict):
        raise ValueError("an event of the server is no JSON object")
    if found.get("error"):
        raise RequestError(_message(found) or "the request failed")
    return found


def _whole(reply: http.client.HTTPResponse) -> str:
    raw = reply.read(MAX_BODY + 1)
    if len(raw) > MAX_BODY:
        raise MLCError("the server's answer is longer than 64 MB")
    return raw.decode("utf-8", "replace")


def _refusal(address: Address, path: str, reply: http.client.HTTPResponse) -> MLCError:
    text = _whole(reply)
    found: object = None
    with suppress(UserError):
        found = parse_json(text, "the error")
    words = _message(found) or f"status {reply.status} {reply.reason}"
    wait = reply.getheader("retry-after")
    where = f"{address.shown}{path}: {words}" + (f"; try again in {wait} s" if wait else "")
    if reply.status == 401:
        return UserError(f"{where}; --api-key gives one")
    error = found.get("error") if isinstance(found, dict) else None
    if isinstance(error, dict) and error.get("code") == "context_length_exceeded":
        return TooLong(where)
    return UserError(where) if reply.status < 500 else RequestError(where)


def _message(found: object) -> str | None:
    """The message in an error, in the shapes that servers write."""
    error = found.get("error", found) if isinstance(found, dict) else None
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail")
    return error if isinstance(error, str) else None


def _lost(address: Address, error: Exception) -> MLCError:
    if isinstance(error, TimeoutError):
        return RequestError(f"{address.shown}: the server was silent for too long")
    return RequestError(f"{address.shown}: the connection broke: {error or type(error).__name__}")


class TooLong(UserError):
    """The conversation does not fit into the context of the server's model."""
