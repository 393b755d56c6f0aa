"""What tests of sums over GPUs run in processes where the stand-ins are CUDA and NCCL."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import tvm_ffi
from fake_cuda import Fake

from mlc_llm.backends.cuda import nccl, rank_sums
from mlc_llm.backends.cuda.device import CudaDevice
from mlc_llm.backends.cuda.gpu_ranks import environment
from mlc_llm.backends.cuda.rank_sums import NcclSums
from mlc_llm.backends.ranks.meeting import Meeting, shared_file
from mlc_llm.errors import EngineDead, MLCError

SIZES = (1, 7, 64, 1 << 16, (1 << 16) + 5, 3) * 3
END_S = 20


def parts(rank: int) -> list[Any]:
    """What a rank adds."""
    rng = np.random.default_rng(rank)
    return [rng.standard_normal((1, size)).astype(np.float32) for size in SIZES]


def add_all(device: CudaDevice, sums: NcclSums, rank: int, count: int | None = None) -> list[Any]:
    """The sums of a step."""
    own = [device.upload(part) for part in parts(rank)[:count]]
    found = [device.zeros(x.shape, "float32") for x in own]
    for x, total in zip(own, found, strict=True):
        sums.add(x, total)
    sums.end_step()
    return [device.read(total) for total in found]


def rank(memory: int, number: int, shards: int, key: str, says: str) -> None:
    """A rank other than 0. says: what it does differently."""
    parent = os.getppid()

    def check() -> None:
        if os.getppid() != parent:
            raise EngineDead("rank 0 has ended")

    device = CudaDevice()
    sums = device.rank_sums(Meeting(memory, number, shards, check), bytes.fromhex(key))
    add_all(device, sums, number)
    if says == "dies":
        os._exit(3)
    if says == "waits":
        time.sleep(60)
    add_all(device, sums, number, 3 if says == "adds less" else None)


@contextmanager
def ranks(shards: int, says: str = "", *, apart: bool = True) -> Iterator[tuple[Any, ...]]:
    """A device, what makes its sums, and the processes of the other ranks. apart: each has a GPU of
    its own."""
    device, memory, others = CudaDevice(), shared_file(shards), []
    key = device.rank_key()

    def check() -> None:
        for one in others:
            if one.poll() not in (None, 0):
                raise EngineDead(f"a rank has ended with {one.returncode}")

    meeting = Meeting(memory, 0, shards, check)
    for number in range(1, shards):
        given = memory, number, shards, key.hex(), says
        code = f"import nccl_programs as m; m.rank(*{given!r})"
        own = environment(number) if apart else {}
        others.append(
            subprocess.Popen(
                [sys.executable, "-c", code], pass_fds=[memory], env={**os.environ, **own},
                stderr=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
    try:
        yield device, lambda: device.rank_sums(meeting, key), others
    finally:
        meeting.give_up()
        for one in others:
            if says == "waits":
                one.kill()
            _, said = one.communicate(timeout=END_S)
            print(json.dumps([one.returncode, (said.splitlines() or [""])[-1]]))


def same_sums(shards: int) -> None:
    """All sums are right, and nothing is left. Prints the calls of NCCL in a step."""
    fake = Fake()
    with ranks(shards) as (device, make, _):
        sums = make()
        fake.log()
        for _ in range(2):
            for i, total in enumerate(add_all(device, sums, 0)):
                exact = parts(0)[i]
                for number in range(1, shards):
                    exact = exact + parts(number)[i]
                assert total.tobytes() == exact.tobytes()
        calls = [line for line in fake.log() if line.startswith("nccl")]
        sums.close()
    del sums, make, device, total
    gc.collect()
    print(json.dumps([calls, fake.alive(), threads()]))


def threads() -> list[str]:
    """Those that look at sums."""
    end = time.monotonic() + 5
    while (found := _watching()) and time.monotonic() < end:
        time.sleep(0.01)
    return found


def _watching() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == "mlc-llm-ranks"]


def faults(says: str, stalled_s: float, apart: int, once: int) -> None:
    """Prints what is said where something fails, and how long that took. once: before that, there
    was a step without faults."""
    nccl.CALL_S = 1.0
    (rank_sums if once else nccl).STALLED_S = stalled_s
    fake, error, started = Fake(), None, 0.0
    with suppress(MLCError), ranks(2, says, apart=bool(apart)) as (device, make, _):
        sums = None
        started = time.monotonic()
        try:
            sums = make()
            if once:
                add_all(device, sums, 0)
            started = time.monotonic()
            add_all(device, sums, 0)
        except MLCError as caught:
            error = f"{type(caught).__name__}: {caught}"
        took = time.monotonic() - started
        if sums is not None:
            sums.close()
            for _ in range(2):
                try:
                    sums.add(*[device.zeros((3,), "float32")] * 2)
                except EngineDead as caught:
                    assert "\n" not in str(caught)
                    continue
                raise AssertionError("the sums go on")
            stream = int(tvm_ffi.get_raw_stream(tvm_ffi.device("cuda", 0)))
            sums._runtime.wait(stream)  # does not hang any more
    assert "mlc" not in " ".join(threads()) or not once
    print(json.dumps([error, took, fake.alive()[6]]))
