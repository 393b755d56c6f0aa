"""Where a server listens, and with which certificate: looked at before a model is opened."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import stat
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlc_llm.errors import InvalidField
from mlc_llm.serve.server.limits.settings import ServerSettings

SOCKET_MODE = 0o660
"""Owner and group may connect to a unix socket."""


class Listening(socket.socket):
    """A socket that has at most so many connections open, and closes any more at once. With TLS,
    nobody else counts those whose handshake has not ended."""

    __slots__ = ("_open", "most")

    def __init__(self, *args: int) -> None:
        super().__init__(*args)
        self.most = sys.maxsize
        self._open: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def accept(self) -> tuple[socket.socket, Any]:
        """See `socket`. Raises `BlockingIOError` for a connection that was closed, as where there
        is none."""
        made, address = super().accept()
        if len(self._open) >= self.most and self._count() >= self.most:
            made.close()
            raise BlockingIOError
        self._open.add(made)
        return made, address

    def _count(self) -> int:
        """Closed ones may not have been forgotten yet."""
        return sum(one.fileno() >= 0 for one in self._open)


@contextlib.contextmanager
def bound(settings: ServerSettings) -> Iterator[Listening]:
    """A socket at the address, on which nobody listens yet. The file of a unix socket is removed at
    the end. Raises `InvalidField` for an address that cannot be had."""
    path = settings.unix_socket
    with contextlib.closing(_on_port(settings) if path is None else _on_file(path)) as found:
        try:
            yield found
        finally:
            if path is not None:
                with contextlib.suppress(OSError):
                    path.unlink()


def check_certificate(settings: ServerSettings) -> None:
    """Raises `InvalidField` for files that are no certificate and its key."""
    if settings.certificate is None:
        return
    for name, file in (("tls_cert", settings.certificate), ("tls_key", settings.certificate_key)):
        try:
            with Path(str(file)).open("rb"):
                pass
        except OSError as error:
            raise InvalidField(name, str(file), f"cannot be read: {error.strerror}") from error
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            settings.certificate, settings.certificate_key
        )
    except OSError as error:
        words = f"no certificate with the key {settings.certificate_key}: {_reason(error)}"
        raise InvalidField("tls_cert", str(settings.certificate), words) from error


def _on_port(settings: ServerSettings) -> Listening:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # asyncio sends small pieces at once (TCP_NODELAY) only where the protocol is given. Else pieces
    # would wait for clients that acknowledge late, as most do: for 40 ms.
    found = Listening(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((settings.host, settings.port))
    except (OSError, OverflowError) as error:
        found.close()
        place = f"{settings.host}:{settings.port}"
        raise InvalidField("port", place, f"cannot listen there: {_reason(error)}") from error
    return found


def _on_file(path: Path) -> Listening:
    found = Listening(socket.AF_UNIX)
    try:
        _remove_stale(path)
        found.bind(str(path))
        os.chmod(path, SOCKET_MODE)
    except OSError as error:
        found.close()
        words = f"cannot listen there: {_reason(error)}"
        raise InvalidField("unix_socket", str(path), words) from error
    except InvalidField:
        found.close()
        raise
    return found


def _remove_stale(path: Path) -> None:
    """Remove the socket of a server that has died. Raises `InvalidField` if it is not one."""
    if not path.exists():
        return
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise InvalidField("unix_socket", str(path), "there is a file of another kind")
    with socket.socket(socket.AF_UNIX) as other, contextlib.suppress(ConnectionRefusedError):
        other.connect(str(path))
        raise InvalidField("unix_socket", str(path), "another server listens there")
    path.unlink()


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
