"""Listens, serves, and ends in order."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from mlc_llm.errors import InvalidField
from mlc_llm.serve.server.app import create_app
from mlc_llm.serve.server.context import ServerContext
from mlc_llm.serve.server.http_protocol import timed

SIGNALS = (signal.SIGINT, signal.SIGTERM)

_log = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """The first SIGTERM or Ctrl-C lets running answers end, for a while; the second ends them."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        super().__init__(_config(context))

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn would raise the signals again at its end, and the process would die of them."""
        if threading.current_thread() is not threading.main_thread():
            yield  # tests
            return
        before = {one: signal.signal(one, self.handle_exit) for one in SIGNALS}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal begins the end, the second one hurries it."""
        self.end(at_once=self.should_exit)

    def end(self, *, at_once: bool = False) -> None:
        """Take on nothing more. Running answers get their time, or are ended at once; then the
        server ends."""
        context = self._context
        context.admission.is_draining = True
        self.should_exit = True
        if at_once:
            context.client.abort_all()
            return
        seconds = context.settings.limits.drain_s
        _log.warning("ending: running answers have %g s", seconds)
        timer = threading.Timer(seconds, context.client.abort_all)
        timer.daemon = True
        timer.start()


def listen(context: ServerContext) -> socket.socket | None:
    """The socket; None for a unix socket, which uvicorn makes. Raises `InvalidField` for an address
    that cannot be had."""
    settings = context.settings
    if settings.unix_socket is not None:
        return None
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    found = socket.socket(family)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((settings.host, settings.port))
    except OSError as error:
        found.close()
        place = f"{settings.host}:{settings.port}"
        raise InvalidField("port", place, f"cannot listen there: {error.strerror}") from error
    return found


def serve(context: ServerContext, own: socket.socket | None) -> None:
    """Serve until a signal comes. own: see `listen`."""
    Server(context).run(None if own is None else [own])


def _config(context: ServerContext) -> uvicorn.Config:
    settings, limits = context.settings, context.settings.limits
    return uvicorn.Config(
        create_app(context),
        uds=None if settings.unix_socket is None else str(settings.unix_socket),
        http=timed(limits.header_s),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=limits.connections,
        timeout_keep_alive=int(limits.keep_alive_s),
        timeout_graceful_shutdown=int(limits.drain_s) + 5,
        h11_max_incomplete_event_size=limits.header_bytes,
        ssl_certfile=None if settings.certificate is None else str(settings.certificate),
        ssl_keyfile=None if settings.certificate_key is None else str(settings.certificate_key),
    )
