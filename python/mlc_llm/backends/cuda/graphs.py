"""Steps as CUDA graphs: what a step launches is captured once, and then launched with one call.

Source: "CUDA Runtime API", 13.0, "Graph Management". A step is captured when it comes for the
second time: the first time has loaded its code and taken its memory, so nothing is allocated in
capture.
"""

from __future__ import annotations

import ctypes
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import tvm_ffi

from mlc_llm.backends.cuda.formats import GRAPH_BYTES
from mlc_llm.backends.cuda.runtime import Runtime
from mlc_llm.backends.cuda.staging import current_stream
from mlc_llm.backends.cuda.workspace import Workspace
from mlc_llm.errors import MLCError

LEAST_BYTES = 256 << 10
"""Counted for a graph at least: the driver takes its memory in larger pieces."""
_THREAD_LOCAL, _NON_BLOCKING = 1, 1
"""cudaStreamCaptureModeThreadLocal: in capture the driver refuses what this thread must not do.
cudaStreamNonBlocking: the stream does not wait for the default stream, which cannot be captured."""
_ref = ctypes.byref
_log = logging.getLogger(__name__)
Result = TypeVar("Result")


class _Graph:
    """A captured step. Whatever it reads and writes lives as long as it."""

    def __init__(self, runtime: Runtime, handle: ctypes.c_void_p, size: int, result: Any) -> None:
        self._runtime, self._handle, self.size, self.result = runtime, handle, size, result

    def launch(self, stream: int) -> None:
        self._runtime.call("cudaGraphLaunch", self._handle, ctypes.c_void_p(stream))

    def __del__(self) -> None:
        with suppress(MLCError, MemoryError):  # as `Runtime.free`
            self._runtime.call("cudaGraphExecDestroy", self._handle)


class _Entry:
    """A step that came at least once."""

    def __init__(self, inputs: Sequence[object]) -> None:
        self.graph: _Graph | None = None  # goes first: its kernels are code of the inputs
        self.inputs = inputs
        self.is_refused = False

    def is_for(self, inputs: Sequence[object]) -> bool:
        """Whether these are the very objects, whose addresses the graph has."""
        return len(inputs) == len(self.inputs) and all(
            one is other for one, other in zip(inputs, self.inputs, strict=True)
        )


class CudaGraphs:
    """See `backends.device.Repeats`. One thread at a time. Where graphs take too much memory, those
    go that were not launched for longest."""

    def __init__(self, runtime: Runtime, most_bytes: int = GRAPH_BYTES) -> None:
        self._runtime, self._most_bytes = runtime, most_bytes
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._workspace = Workspace()
        self._stream = ctypes.c_void_p()
        runtime.call("cudaStreamCreateWithFlags", _ref(self._stream), _NON_BLOCKING)

    @property
    def bytes(self) -> int:
        """Memory of the GPU that all this takes."""
        return self._workspace.bytes + self._graph_bytes

    @property
    def count(self) -> int:
        """How many graphs there are."""
        return sum(entry.graph is not None for entry in self._entries.values())

    def run(self, kind: str, inputs: Sequence[object], work: Callable[[], Result]) -> Result:
        """The result of `work`, whose steps on the device may be repeated without calling it."""
        entry = self._entries.get(kind)
        if entry is None or not entry.is_for(inputs):
            self._drop(kind)
            entry = _Entry(inputs)  # kept once it has run: a step that fails is no first time
            with self._workspace.lending():
                result = work()
            self._entries[kind] = entry
            return result
        self._entries.move_to_end(kind)
        if entry.graph is None and not entry.is_refused:
            self._capture(kind, entry, work)
        if entry.graph is None:
            with self._workspace.lending():
                return work()
        entry.graph.launch(current_stream())
        found: Result = entry.graph.result
        return found

    def _capture(self, kind: str, entry: _Entry, work: Callable[[], object]) -> None:
        """Makes the graph of an entry, or says why there is none."""
        try:
            entry.graph = self._captured(work)
        except Exception as error:  # what TVM raises has no base class of its own
            entry.is_refused = True
            words = str(error).strip().splitlines()
            reason = words[-1] if words else type(error).__name__
            _log.warning("steps of %s get no CUDA graph, and are slower: %s", kind, reason)
            return
        while self._graph_bytes > self._most_bytes and self.count > 1:
            self._drop(next(kind for kind, one in self._entries.items() if one.graph is not None))

    def _captured(self, work: Callable[[], object]) -> _Graph:
        call, captured, ready = self._runtime.call, ctypes.c_void_p(), ctypes.c_void_p()
        before, _ = self._runtime.free_memory()
        result = self._recorded(work, captured)
        try:
            call("cudaGraphInstantiate", _ref(ready), captured, ctypes.c_ulonglong(0))
        finally:
            self._destroy(captured)
        size = max(before - self._runtime.free_memory()[0], LEAST_BYTES)
        return _Graph(self._runtime, ready, size, result)

    def _recorded(self, work: Callable[[], object], captured: ctypes.c_void_p) -> object:
        """What `work` returns; `captured` gets the graph of what it launches."""
        call, stream = self._runtime.call, self._stream
        call("cudaStreamBeginCapture", stream, _THREAD_LOCAL)
        try:
            on_stream = tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), stream.value or 0)
            with self._workspace.lending(), on_stream:
                result = work()
        except BaseException:
            with suppress(MLCError, MemoryError):  # the first error counts
                call("cudaStreamEndCapture", stream, _ref(captured))
            self._destroy(captured)
            raise
        call("cudaStreamEndCapture", stream, _ref(captured))
        return result

    def _destroy(self, captured: ctypes.c_void_p) -> None:
        if captured:
            with suppress(MLCError, MemoryError):  # as `Runtime.free`
                self._runtime.call("cudaGraphDestroy", captured)

    @property
    def _graph_bytes(self) -> int:
        graphs = (entry.graph for entry in self._entries.values())
        return sum(graph.size for graph in graphs if graph is not None)

    def _drop(self, kind: str) -> None:
        """Forget a step, whose graph may still run: the driver keeps no word on that."""
        entry = self._entries.pop(kind, None)
        if entry is not None and entry.graph is not None:
            self._runtime.wait(current_stream())

    def __del__(self) -> None:
        with suppress(MLCError, MemoryError):  # as `Runtime.free`
            self._runtime.wait(current_stream())
        self._entries.clear()
        if self._stream:
            with suppress(MLCError, MemoryError):  # as `Runtime.free`
                self._runtime.call("cudaStreamDestroy", self._stream)
