"""The search for the scales of ggml's K types in compiled code, which gives the bits of NumPy's."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from functools import cache
from threading import Lock

import numpy as np
import tvm

from mlc_llm.kernels.cpu.k_search import L, minima_search, signed_search
from mlc_llm.quantization.block_format import Floats
from mlc_llm.quantization.scale_search import Candidates, Fit, Searches
from mlc_llm.support.machine import cpu_flags

_X86 = ("x86_64", "amd64")
_building = Lock()


def compiled_searches() -> Searches | None:
    """A kernel is compiled when it is first used, in about a second. None where a processor cannot
    be kept from multiplying and adding in one instruction, which would give other bits."""
    return Searches(_minima, _signed) if platform.machine().lower() in _X86 else None


def _minima(x: Floats, weight: Floats, candidates: Candidates) -> Fit:
    factors = np.array(candidates.factors(), np.float32)
    with _building:
        kernel = _built(minima_search, len(x), candidates.most, len(factors))
    return Fit(*_found(kernel, [x, weight], None, factors, rows=4))


def _signed(
    x: Floats, weight: Floats, largest: Floats, factors: list[np.float32], half: int
) -> tuple[Floats, Floats]:
    with _building:
        kernel = _built(signed_search, len(x), len(factors), half)
    scale, inverse = _found(kernel, [x, weight], largest, np.array(factors, np.float32), rows=2)
    return scale, inverse


def _found(
    kernel: Callable[..., None],
    columns: list[Floats],
    largest: Floats | None,
    factors: Floats,
    *,
    rows: int,
) -> Sequence[Floats]:
    """What a kernel finds for each group. Their number is made a multiple of its lanes."""
    groups = columns[0].shape[1]
    more = -groups % L
    if more:
        columns = [np.pad(one, ((0, 0), (0, more))) for one in columns]
        largest = None if largest is None else np.append(largest, np.ones(more, np.float32))
    found = tvm.runtime.empty((rows, groups + more), "float32")
    given = [*columns, *([] if largest is None else [largest]), factors]
    kernel(*map(tvm.runtime.tensor, given), found)
    return list(found.numpy()[:, :groups])


@cache
def _built(make: Callable[..., tvm.tirx.PrimFunc], *sizes: int) -> tvm.runtime.Module:
    """The function of a kernel, compiled without the instructions that fuse operations."""
    wide = ["+avx2"] if "avx2" in (cpu_flags() or ()) else []
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64", "mattr": wide})
    kernel = make(*sizes).with_attr("global_symbol", "search")
    return tvm.tirx.build(kernel, target=target)["search"]
