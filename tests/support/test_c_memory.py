"""Arenas of the C library are few in a server, and free memory goes back. In processes of their
own, because a bound stays until a process ends."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading

import pytest

from mlc_llm.support.c_memory import ARENAS, EVERY_S, VARIABLES, GivingBack

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_info"), reason="the C library is not glibc"
)
ARENAS_OF_THREADS = """
import ctypes, re, sys, tempfile, threading
from mlc_llm.support.c_memory import few_arenas
is_done = "bound" in sys.argv and few_arenas()
c = ctypes.CDLL(None)
c.malloc.restype, c.malloc.argtypes, c.free.argtypes = (
    ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p])
c.fopen.restype = ctypes.c_void_p
c.malloc_info.argtypes, c.fclose.argtypes = [ctypes.c_int, ctypes.c_void_p], [ctypes.c_void_p]
together = threading.Barrier(6)
def work():
    for _ in range(50):
        c.free(c.malloc(50_000))
    together.wait()
threads = [threading.Thread(target=work) for _ in range(6)]
[one.start() for one in threads]
[one.join() for one in threads]
with tempfile.NamedTemporaryFile() as place:
    file = c.fopen(place.name.encode(), b"w")
    c.malloc_info(0, file)
    c.fclose(file)
    print(is_done, len(re.findall(b"<heap nr=", place.read())))
"""
MEMORY_THAT_IS_FREE = """
import ctypes
from mlc_llm.support.c_memory import give_back
def resident_mb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 >> 20
c = ctypes.CDLL(None)
c.malloc.restype, c.malloc.argtypes, c.free.argtypes = (
    ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p])
found = [c.malloc(65_536) for _ in range(1600)]
for one in found:
    ctypes.memset(one, 1, 65_536)
for one in found[:-1]:  # the last piece keeps the arena from getting shorter
    c.free(one)
before = resident_mb()
give_back()
print(before - resident_mb())
"""


def _run(program: str, *arguments: str, **variables: str) -> list[str]:
    clean = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(
        command, env={**clean, **variables}, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_threads_share_few_arenas() -> None:
    is_done, count = _run(ARENAS_OF_THREADS, "bound")
    assert is_done == "True"
    assert int(count) <= ARENAS
    assert int(_run(ARENAS_OF_THREADS)[1]) > ARENAS, "threads make more of themselves"


def test_what_the_user_has_set_stays() -> None:
    is_done, count = _run(ARENAS_OF_THREADS, "bound", MALLOC_ARENA_MAX="5")
    assert is_done == "False"
    assert ARENAS < int(count) <= 5


def test_free_memory_goes_back() -> None:
    (given_back,) = _run(MEMORY_THAT_IS_FREE)
    assert int(given_back) >= 90, "of 100 MB that are free"


def test_a_busy_server_gives_back_now_and_then() -> None:
    now, done = 100.0, threading.Semaphore(0)
    giving = GivingBack(done.release, lambda: now)
    for _ in range(3):
        now += EVERY_S / 2
        giving.look(is_busy=False)
    assert not done.acquire(timeout=0.05), "a server that rests does it otherwise"
    giving.look(is_busy=True)
    assert done.acquire(timeout=10.0)
    giving.look(is_busy=True)
    now += EVERY_S / 2
    giving.look(is_busy=True)
    assert not done.acquire(timeout=0.05), "once in a while"
    now += EVERY_S / 2
    giving.look(is_busy=True)
    assert done.acquire(timeout=10.0)
