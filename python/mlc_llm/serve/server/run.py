"""Listens, serves, and ends in order."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import FrameType

import uvicorn

from mlc_llm.errors import InvalidField, UserError
from mlc_llm.serve.server.app import create_app
from mlc_llm.serve.server.calls.context import ServerContext
from mlc_llm.serve.server.errors import HTTPError
from mlc_llm.serve.server.http_protocol import timed
from mlc_llm.serve.server.limits.files import connections_within_files
from mlc_llm.serve.server.listening import Listening, check_certificate
from mlc_llm.serve.server.notify import READY, STOPPING, Supervisor
from mlc_llm.serve.server.pool.idle import IdleModels
from mlc_llm.serve.server.pool.watch import Watch
from mlc_llm.support.c_memory import GivingBack, give_back
from mlc_llm.support.garbage import IdleCollection, rare_collections

ENDED = 0
STALLED = 70
"""Exit code: an engine is stalled, and a supervisor should start the server again."""
SIGNAL_BASE = 128
"""Exit code: this and the number of the signal, if answers were cut."""
FORCE_S = 2.0
"""Connections have so long to take their last bytes if the server ends at once."""

_log = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """The first SIGTERM or Ctrl-C lets running answers end, for a while; the second ends them.
    SIGHUP reads keys and certificates again."""

    def __init__(
        self, context: ServerContext, when_ready: Callable[[], object] = lambda: None
    ) -> None:
        """when_ready: called when it listens and knows what to do with signals."""
        self.exit_code, self._when_ready = ENDED, when_ready
        self._context = context
        limits = context.settings.limits
        self._watch = Watch(
            context.models, limits.stall_s, context.settings.on_stall, self._leave_stalled
        )
        self._supervisor, self._garbage = Supervisor(), IdleCollection(rest)
        self._memory = GivingBack()
        self._idle = IdleModels(context.models)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_ending = False
        """A signal has come."""
        super().__init__(_config(context))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn."""
        for one in sockets or ():
            if isinstance(one, Listening):
                one.most = self.config.backlog
        try:
            await super().startup(sockets)
        except OSError as error:  # another server has begun to listen there in the meantime
            port = self._context.settings.port
            raise InvalidField("port", port, f"cannot listen there: {error.strerror}") from error
        self._supervisor.say(READY)
        self._when_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn, which waits for all connections."""
        self._context.bodies.end()
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second. Returns whether the server ends."""
        self._watch.look()
        self._idle.look()
        is_busy = self._context.models.is_busy
        has_bodies = self._context.bodies.held > 0  # they may never become requests
        self._garbage.look(is_busy=is_busy or has_bodies)
        self._memory.look(is_busy=is_busy or has_bodies)
        if not self._context.models.stalled:
            self._supervisor.is_well()
        is_drained = self._context.admission.is_draining and not is_busy
        return is_drained or await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn would raise the signals again at its end, and the process would die of them."""
        self._loop = asyncio.get_running_loop()
        if threading.current_thread() is not threading.main_thread():
            yield  # tests
            return
        handlers = {signal.SIGINT: self.handle_exit, signal.SIGTERM: self.handle_exit}
        if self._context.settings.can_reload:  # else it ends the process, as a closed terminal does
            handlers[signal.SIGHUP] = self.handle_reload
        before = {one: signal.signal(one, handler) for one, handler in handlers.items()}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal begins the end, the second one hurries it. That is done between two
        requests: what the signal interrupts may hold the locks that it takes, or be writing to
        standard error, as it does."""
        is_second, self._is_ending = self._is_ending, True
        self._soon(partial(self.end, at_once=is_second, code=SIGNAL_BASE + sig))

    def handle_reload(self, sig: int, frame: FrameType | None) -> None:
        """Read keys and certificates again, between two requests."""
        self._soon(self.reload)

    def _soon(self, work: Callable[[], object]) -> None:
        """From a handler of a signal, which is there as long as the loop."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(work)

    def reload(self) -> None:
        """If one of the files cannot be used, all stays as it is."""
        settings = self._context.settings
        try:
            check_certificate(settings)
            again = settings.read_keys_again
            keys = None if again is None else again()
            if self.config.ssl is not None and settings.certificate is not None:
                self.config.ssl.load_cert_chain(settings.certificate, settings.certificate_key)
            if keys is not None:
                settings.keys.replace(keys)
        except (UserError, OSError) as error:  # an SSLError is one of them
            _log.error("keys and certificates stay as they were: %s", error)
        else:
            _log.warning("keys and certificates were read again: %d keys", len(settings.keys))

    def end(self, *, at_once: bool = False, code: int = ENDED) -> None:
        """Take on nothing more. Running answers get their time, or are ended at once; then the
        server ends. code: of the process if answers are cut. Any thread may call it."""
        self._context.admission.is_draining = True
        self._supervisor.say(STOPPING)
        if at_once:
            self._end_answers(code)
            return
        seconds = self._context.settings.limits.drain_s
        _log.warning("ending: running answers have %g s", seconds)
        timer = threading.Timer(seconds, self._end_answers, [code])
        timer.daemon = True
        timer.start()

    def _end_answers(self, code: int) -> None:
        """End all answers with an error, then the server."""

        def work() -> None:
            if self._context.models.is_busy:
                self.exit_code = code
                self._context.models.fail_all(server_ended())
            self._leave()

        if self._loop is None:
            self.should_exit = True
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(work)

    def _leave_stalled(self) -> None:
        self.exit_code = STALLED
        self._leave()

    def _leave(self) -> None:
        """End when the last bytes have gone, or soon."""
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_later(FORCE_S, self._force)

    def _force(self) -> None:
        self.force_exit = True


def rest() -> None:
    """What a server does when nobody waits for it: it looks for garbage in all objects, and gives
    free memory back to the system."""
    gc.collect()
    give_back()


def server_ended() -> HTTPError:
    """The error of answers that the end of the server cuts."""
    words = "the answer was ended by the server: it ends"
    return HTTPError(503, words, kind="server_error", code="server_ended")


def serve(context: ServerContext, own: socket.socket, when_ready: Callable[[], object]) -> int:
    """Serve until a signal comes. own: from `bound`. when_ready: see `Server`. Returns the exit
    code."""
    server = Server(context, when_ready)
    with rare_collections():
        server.run([own])
    return server.exit_code


def _config(context: ServerContext) -> uvicorn.Config:
    settings, limits = context.settings, context.settings.limits
    limits = replace(limits, connections=connections_within_files(limits.connections))
    return uvicorn.Config(
        create_app(context),
        http=timed(limits),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=limits.connections,
        timeout_keep_alive=int(limits.keep_alive_s),
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=limits.header_bytes,
        ssl_certfile=None if settings.certificate is None else str(settings.certificate),
        ssl_keyfile=None if settings.certificate_key is None else str(settings.certificate_key),
    )
