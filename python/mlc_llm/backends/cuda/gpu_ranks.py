"""Ranks on GPUs: each has the GPU of its number, among those that the driver shows to rank 0.

The process of a rank sees no other GPU than its own, which so is the first one there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from mlc_llm.backends.cuda import packages
from mlc_llm.backends.cuda.driver import usable_gpu, usable_gpus
from mlc_llm.errors import UnusableDevice

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The driver shows these GPUs, in this order; all, if it is not set."""


def environment(rank: int, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What a rank's process has in its environment beside what rank 0 has, which is `given`."""
    shown = given.get(VISIBLE)
    return {VISIBLE: str(rank) if shown is None else shown.split(",")[rank].strip()}


def why_not(ranks: int) -> str | None:
    """Why so many ranks cannot compute here, in a line; None: they can."""
    try:
        packages.require(packages.NCCL)
        usable_gpus(ranks)
    except UnusableDevice as error:
        return str(error)
    return None


def free_memory(ranks: int) -> int:
    """Free bytes of the fullest of their GPUs. Raises UnusableDevice."""
    if ranks == 1:
        return usable_gpu().free_memory
    return min(one.free_memory for one in usable_gpus(ranks))
