"""`mlc_llm serve --ray FILE`: runs a config file of Ray Serve, on this machine or on the cluster
that `RAY_ADDRESS` names."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
import yaml
from ray import serve

from mlc_llm.errors import InvalidField
from mlc_llm.protocol import checks
from mlc_llm.ray.app import build_app
from mlc_llm.ray.ports import check_free
from mlc_llm.ray.resources import check_resources
from mlc_llm.ray.settings import AppSettings
from mlc_llm.record import record
from mlc_llm.serve.server.limits.settings import LOCAL_NAMES

IMPORT_PATH = "mlc_llm.ray:build_app"
OWN_STORE_BYTES = 256 << 20
"""Ray's store of objects, if this command starts Ray: requests and tokens are small."""
STOP_S = 30.0
"""For Ray to end replicas whose answers have ended, or that took longer than they may."""
TOLD_S = 5.0
"""For the ingresses to hear that the application ends."""
POLL_S = 0.2

_log = logging.getLogger(__name__)


@record()
class AppFile:
    """What this command needs of a config file of Ray Serve."""

    name: str
    route_prefix: str
    args: Mapping[str, Any]
    settings: AppSettings
    host: str
    port: int


def read_file(path: Path) -> AppFile:
    """Raises `UserError` for a file that cannot be read or has another application."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        raise InvalidField("ray", str(path), f"cannot be read: {_line(error)}") from error
    apps = found.get("applications") if isinstance(found, dict) else None
    if not isinstance(apps, list) or len(apps) != 1 or not isinstance(apps[0], dict):
        raise InvalidField("ray", str(path), "should have one entry in `applications`")
    (app,) = apps
    if app.get("import_path") != IMPORT_PATH:
        raise InvalidField("import_path", app.get("import_path"), f"should be {IMPORT_PATH}")
    args = app.get("args") or {}
    http = found.get("http_options") or {}
    file = AppFile(
        str(app.get("name", "default")),
        str(app.get("route_prefix", "/")),
        args,
        AppSettings.of(args),
        str(http.get("host", "127.0.0.1")),
        checks.integer("http_options.port", http.get("port", 8000), 1, 65535),
    )
    if file.host not in LOCAL_NAMES and file.settings.keys is None:
        words = "other machines may call it without a key: give api_key_file in args"
        raise InvalidField("http_options.host", file.host, words)
    return file


def serve_file(path: Path, say: Callable[[str], object]) -> int:
    """Serve until a signal comes. say: is told when it serves. Returns the exit code. Raises
    `UserError`, also for more processors than there are, and for a port that is taken."""
    file = read_file(path)
    address = os.environ.get("RAY_ADDRESS")
    own: dict[str, Any] = {}
    if not address:
        check_free("http_options.port", file.host, file.port)
        own = {"object_store_memory": OWN_STORE_BYTES, "include_dashboard": False}
    ray.init(address=address or "local", logging_level="warning", log_to_driver=True, **own)
    try:
        check_resources(file.settings, [one["Resources"] for one in ray.nodes() if one["Alive"]])
        with _signals() as came:
            options = {"host": file.host, "port": file.port}
            serve.start(http_options=options)
            app = build_app(file.args)
            serve.run(app, name=file.name, route_prefix=file.route_prefix)
            names = ", ".join(one.name for one in file.settings.models)
            say(f"serving {names} at http://{file.host}:{file.port}{file.route_prefix}v1")
            came.acquire()
            if _drained(file, came):
                serve.shutdown()
    finally:
        ray.shutdown()
    return 0


def _drained(file: AppFile, came: threading.Semaphore) -> bool:
    """Take the application away: new requests find nothing, and answers end, as long as `drain_s`
    lets them. False: another signal came before. (`serve.shutdown` would end the proxies, and the
    answers with them, at once.)"""
    _tell_ingresses(file.name)
    serve.delete(file.name, _blocking=False)
    longest = max(one.drain_s for one in file.settings.models) + STOP_S
    end = time.monotonic() + longest
    while file.name in serve.status().applications:
        if time.monotonic() > end:
            _log.warning("replicas have not ended %.0f s after the signal", longest)
            return True
        if came.acquire(timeout=POLL_S):
            return False
    return True


def _tell_ingresses(name: str) -> None:
    """That no request may wait for a replica any more. One that does not hear it ends later. Ray
    uses the loop of the handle until `serve.shutdown`, so it runs until then."""

    async def tell() -> None:
        ingresses = serve.get_app_handle(name)
        await ingresses.broadcast("ending").results_async(timeout_s=TOLD_S)

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="tell-ingresses", daemon=True).start()
    try:
        asyncio.run_coroutine_threadsafe(tell(), loop).result(TOLD_S)
    except Exception as error:
        _log.warning("an ingress was not told that it ends: %s", type(error).__name__)


@contextmanager
def _signals() -> Iterator[threading.Semaphore]:
    """Counts SIGTERM and Ctrl-C."""
    came = threading.Semaphore(0)
    kinds = (signal.SIGTERM, signal.SIGINT)
    before = {one: signal.signal(one, lambda *_: came.release()) for one in kinds}
    try:
        yield came
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
