"""How far two cores are from each other, and how fast both read together.

    python benchmarks/core_distance.py [--turns 30] [--rest 1]

A virtual machine may have its cores now on one chip of the processor and now on two. On one they
share a cache and a way to the memory. Measured in turns: the nanoseconds in which a line of the
cache goes from one core to the other, and GB/s that both threads read (`machine.py`). x86 only.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

os.environ["MLC_NUM_THREADS"] = "2"

import numpy as np
import tvm
from common import print_configuration
from machine import Limits, built
from tvm.script import tirx as T

from mlc_llm.backends.cpu.target import choose
from mlc_llm.kernels.cpu.claims import can_claim
from mlc_llm.kernels.cpu.vectors import SCHEDULED

HANDOVERS = 20_000
MOST_SPINS = 10_000_000
"""A thread gives up after so many tries in all, so that nothing hangs if the other one is gone."""
NEAR_NS = 80
"""A line takes less between cores that share a cache."""
BALL, SPINS, LINE = 0, 16, 64
"""Places in what the threads share: a line with the ball, and lines in which they count tries."""


def handing_over() -> tvm.tirx.PrimFunc:
    """One thread sets a bit and the other clears it, in turns."""

    @T.inline
    def wait(shared, action, last, spins):
        """Does the action until the bit was another one before."""
        while T.And(
            T.call_llvm_intrin("int32", action, T.address_of(shared[BALL]), T.int8(0)) == last,
            shared[spins] < MOST_SPINS,
        ):
            shared[spins] = shared[spins] + 1

    @T.prim_func(private=True, s_tir=True)
    def hand_over(shared: T.Buffer((LINE,), "int32")):
        T.func_attr(SCHEDULED)
        with T.sblock("root"):
            for thread in T.parallel(2):
                if thread == 0:
                    for _ in T.serial(HANDOVERS):
                        wait(shared, "llvm.x86.atomic.bts", 1, SPINS)
                else:
                    for _ in T.serial(HANDOVERS):
                        wait(shared, "llvm.x86.atomic.btr", 0, 2 * SPINS)

    return hand_over


class Distance:
    """Measures the way between two cores."""

    def __init__(self) -> None:
        self._run = built(handing_over(), choose().isa)

    def nanoseconds(self) -> float:
        """Of a handover, the least of three runs."""
        return min(self._once() for _ in range(3))

    def _once(self) -> float:
        shared = tvm.runtime.tensor(np.zeros(LINE, np.int32))
        start = time.perf_counter()
        self._run(shared)
        seconds = time.perf_counter() - start
        if max(shared.numpy()[SPINS::SPINS]) >= MOST_SPINS:
            raise SystemExit("the two threads did not run at once")
        return seconds / HANDOVERS / 2 * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--rest", type=float, default=1.0, help="seconds between two turns")
    arguments = parser.parse_args()
    limits = Limits()
    if limits.threads != 2 or not can_claim(choose().isa):
        raise SystemExit("this needs an x86 machine with two cores or more")
    print_configuration("two cores", threads=2)
    distance, found = Distance(), []
    for _ in range(arguments.turns):
        found.append((distance.nanoseconds(), limits.bandwidth()))
        print(f"{found[-1][0]:.0f} ns, {found[-1][1]:.1f} GB/s", flush=True)
        time.sleep(arguments.rest)
    for name, is_near in (("near", True), ("far", False)):
        rates = [rate for ns, rate in found if (ns < NEAR_NS) == is_near]
        if rates:
            median, least, most = statistics.median(rates), min(rates), max(rates)
            print(f"{name}: {len(rates)} turns, {median:.1f} ({least:.1f} to {most:.1f}) GB/s")


if __name__ == "__main__":
    main()
