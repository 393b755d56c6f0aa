"""The packed function `mlc.all_reduce` of this process.

A process may have several models, each with its ranks. Which one computes is a fact of the thread:
compiled code runs on the thread that calls it, one step at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import tvm_ffi

from mlc_llm.library.signatures import ALL_REDUCE

if TYPE_CHECKING:
    from mlc_llm.backends.device import DeviceTensor, RankSums

_here = threading.local()


@contextmanager
def adding(sums: RankSums) -> Iterator[None]:
    """What this thread computes meanwhile is added up with these ranks."""
    before = getattr(_here, "sums", None)
    _here.sums = sums
    try:
        yield
    finally:
        _here.sums = before


def _all_reduce(x: DeviceTensor, total: DeviceTensor) -> None:
    """total = the sum of all ranks' x."""
    _here.sums.add(x, total)


tvm_ffi.register_global_func(ALL_REDUCE, _all_reduce, override=True)
