"""A stand-in for CUDA, for processes that tests start: `fake/fake_driver.c` says what it can do.

It is built once a run, needs no GPU and no package of NVIDIA, and computes nothing.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
COMPILER = shutil.which("gcc")
DEVICE, PINNED, MODULE, STREAM, EVENT, GRAPH, COMMUNICATOR = KINDS = range(7)
"""Kinds of objects that a program can have."""
DRIVER = "libcuda.so.1"

needs_fake = pytest.mark.skipif(COMPILER is None, reason="needs gcc, which builds the stand-in")


def build_fake(folder: Path) -> dict[str, str]:
    """Builds the stand-in. The environment in which a program finds it in CUDA's place."""
    driver, runtime = folder / "driver", folder / "site" / "nvidia" / "cu13" / "lib"
    driver.mkdir(parents=True)
    runtime.mkdir(parents=True)
    fake = HERE / "fake"
    _build(driver / DRIVER, fake / "fake_driver.c")
    version = f"-Wl,--version-script={fake / 'fake_runtime.map'}"
    parts = (fake / "fake_runtime.c", version, driver / DRIVER)
    _build(runtime / "libcudart.so.13", *parts)
    nccl = folder / "site" / "nvidia" / "nccl" / "lib"
    nccl.mkdir(parents=True)
    _build(nccl / "libnccl.so.2", fake / "fake_nccl.c", driver / DRIVER)
    paths = (folder / "site", HERE, HERE.parent.parent, *filter(None, sys.path))
    libraries = f"{driver}{os.pathsep}{runtime}"  # before a CUDA runtime of the system
    return {
        "LD_LIBRARY_PATH": libraries,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "FAKE_NCCL_FOLDER": str(folder),
    }


def _build(library: Path, *parts: object) -> None:
    assert COMPILER is not None
    options = (f"-Wl,-soname,{library.name}", "-o", str(library), *map(str, parts))
    subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", *options], check=True)


def run_in_fake(
    fake: dict[str, str], function: Callable[..., None], *arguments: object, **settings: object
) -> str:
    """Calls a function of `fake_programs.py` in a process of its own, where the stand-in is CUDA.
    What it prints. arguments: texts and numbers. settings: of the stand-in (FAKE_CUDA_GPUS ...)."""
    code = f"import {function.__module__} as m; m.{function.__name__}(*{arguments!r})"
    environment = os.environ | fake | {name: str(value) for name, value in settings.items()}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        timeout=300, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


class Fake:
    """Inside such a process: what was called, what is alive, and what shall fail."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(DRIVER)
        for name in ("fake_log", "fake_failed"):
            getattr(self._library, name).restype = ctypes.c_char_p
        for name in ("fake_alive", "fake_calls", "fake_contexts"):
            getattr(self._library, name).restype = ctypes.c_long

    def log(self) -> list[str]:
        """The calls since the last time."""
        lines: list[str] = self._library.fake_log().decode(errors="replace").splitlines()
        self._library.fake_clear_log()
        return lines

    def alive(self) -> list[int]:
        """How many objects of each kind there are, and how often a context is held."""
        return [*map(self._library.fake_alive, KINDS), self._library.fake_contexts()]

    @contextmanager
    def failing(self, call: int, code: int = 999) -> Iterator[None]:
        """The call of that number from now on, from 1, fails with a code."""
        self._library.fake_fail_at(ctypes.c_long(call), code)
        try:
            yield
        finally:
            self._library.fake_fail_at(ctypes.c_long(0), 0)

    def lose(self, call: int) -> None:
        """From the call of that number on, all fail, as after an illegal access of a kernel."""
        self._library.fake_lose_at(ctypes.c_long(call))

    def calls(self) -> int:
        """How many there were."""
        return int(self._library.fake_calls())

    def failed(self) -> str:
        """The function that `failing` made fail, last; empty if there were fewer calls."""
        name: bytes = self._library.fake_failed()
        return name.decode()


@cache
def fake_machine_code(sm: int = 90) -> bytes:
    """The start of an ELF file for an architecture: the stand-in looks at no more."""
    head = b"\x7fELF" + bytes(44) + struct.pack("<I", sm << 8)
    return head.ljust(64, b"\0")


def emulated_machine_code(library: Path, sm: int = 90) -> bytes:
    """The same for kernels that a library computes in the place of a GPU."""
    head = bytearray(fake_machine_code(sm))
    head[60] = 1
    return bytes(head) + str(library).encode() + b"\0"
