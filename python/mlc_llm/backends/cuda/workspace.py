"""The storage that a library's code computes with: TVM's own, or some that is kept for graphs.

A CUDA graph holds addresses. So what a captured step computes with must stay where it is, and
nobody else may have it while the graph can be launched. TVM keeps its storage in a pool, which
gives it to any step of any engine, and back to the driver when memory lacks. So compiled code asks
`mlc.cuda.alloc_storage` (`codegen.py` puts that in the place of TVM's function), and while a step
is captured a `Workspace` answers. All graphs of an engine share it: they run one after the other.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import tvm_ffi

ALLOCATE = "mlc.cuda.alloc_storage"
TVM_ALLOCATE = "vm.builtin.alloc_storage"
_here = threading.local()


class Workspace:
    """Storage by its size, each piece used once in a step."""

    def __init__(self) -> None:
        self._kept: dict[int, list[Any]] = {}
        self._used: dict[int, int] = {}
        self.bytes = 0
        """Of all that is kept."""

    @contextmanager
    def lending(self) -> Iterator[None]:
        """Code that runs in this thread gets its storage from here, from the first piece on."""
        self._used.clear()
        _here.workspace = self
        try:
            yield
        finally:
            _here.workspace = None

    def take(self, size: int, arguments: tuple[Any, ...]) -> Any:
        """A piece that this step does not use yet. arguments: what TVM's function takes."""
        kept, number = self._kept.setdefault(size, []), self._used.get(size, 0)
        if number == len(kept):
            kept.append(_of_tvm()(*arguments))
            self.bytes += size
        self._used[size] = number + 1
        return kept[number]


@cache
def register() -> None:
    """Compiled code finds the function that it asks. TVM's runtime is loaded."""
    tvm_ffi.register_global_func(ALLOCATE, _allocate, override=True)


@cache
def _of_tvm() -> tvm_ffi.Function:
    return tvm_ffi.get_global_func(TVM_ALLOCATE)


def _allocate(context: Any, shape: Any, *more: Any) -> Any:
    """As TVM's function; shape: the number of bytes alone."""
    workspace: Workspace | None = getattr(_here, "workspace", None)
    if workspace is None:
        return _of_tvm()(context, shape, *more)
    (size,) = shape
    return workspace.take(int(size), (context, shape, *more))
