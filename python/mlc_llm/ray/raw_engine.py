"""A threaded engine whose requests are streams of raw outputs, for one event loop or several."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Protocol, TypeVar

from mlc_llm.errors import InvalidField
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.engine_core import EngineCore
from mlc_llm.serve.data import RequestStreamOutput
from mlc_llm.serve.opening.open_engine import OpenEngine
from mlc_llm.serve.request import Request
from mlc_llm.serve.threaded.loops import LoopThreads
from mlc_llm.serve.threaded.work_loop import Progress
from mlc_llm.serve.threaded_engine import ThreadedEngine

FoundT = TypeVar("FoundT")
Outputs = list[RequestStreamOutput]


class _Reader:
    """The outputs of one request, for the task that reads them."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.outputs: asyncio.Queue[RequestStreamOutput] = asyncio.Queue()

    def put(self, output: RequestStreamOutput) -> None:
        """Any thread may call it. If the loop has ended, nobody reads."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.outputs.put_nowait, output)


class Put(Protocol):
    """Gets outputs of a step. One thread calls it; it must not wait."""

    def __call__(self, outputs: Outputs) -> None: ...


class RawEngine:
    """An open model with its two threads."""

    def __init__(
        self,
        model: str | None,
        device: str,
        config: EngineConfig,
        seen: Put,
        on_start: Callable[[], object] | None = None,
    ) -> None:
        """seen: gets all outputs first, also those of requests that nobody reads any more.
        on_start: is called first by the thread that computes. Raises what opening the model raises;
        its threads have ended then."""
        self._readers: dict[str, _Reader | Put] = {}
        self._seen = seen
        self._lock = threading.Lock()
        self._engine = ThreadedEngine.Create()
        self._engine.init_threaded_engine(device, self._hand_out)
        engine = self._engine

        def run_background_loop() -> None:
            if on_start is not None:
                on_start()
            engine.run_background_loop()

        self._loops = LoopThreads(
            {
                "exit_background_loop": self._engine.exit_background_loop,
                "run_background_loop": run_background_loop,
                "run_background_stream_back_loop": self._engine.run_background_stream_back_loop,
            }
        )
        try:
            self._engine.reload(replace(config, model=model, mode=config.mode or "server").asjson())
        except BaseException:
            self.terminate()
            raise

    @property
    def loaded(self) -> OpenEngine:
        return self._engine.loaded

    @property
    def progress(self) -> Progress:
        return self._engine.progress

    async def stream(self, request: Request) -> AsyncGenerator[Outputs, None]:
        """All outputs that have come since the last ones; the usage ends them. Closing it aborts
        the request, unless it has ended. Raises `InvalidField` for an id in use."""
        reader, name, is_over = _Reader(), request.request_id, False
        with self._lock:
            self._readers[name] = reader
        try:
            await asyncio.to_thread(self._engine.add_request, request)
            while not is_over:
                found = [await reader.outputs.get()]
                while not reader.outputs.empty():
                    found.append(reader.outputs.get_nowait())
                is_over = found[-1].request_final_usage_json_str is not None
                yield found
        finally:
            with self._lock:
                self._readers.pop(name, None)
            if not is_over:
                self._engine.abort_request(name)

    def begin(self, request: Request, put: Put) -> None:
        """Queue a request. put: gets the outputs of a step, those of all requests with the same one
        together; it is called in the same thread for all, until the usage has come. Any thread may
        call `begin`. Raises like `stream`, and then nothing comes."""
        name = request.request_id
        with self._lock:
            if name in self._readers:
                raise InvalidField("request_id", name, "it names a request that runs")
            self._readers[name] = put
        try:
            self._engine.add_request(request)
        except BaseException:
            with self._lock:
                self._readers.pop(name, None)
            raise

    def abort(self, request_id: str) -> None:
        """End a request of `begin`. Unknown ids are ignored."""
        self._engine.abort_request(request_id)

    async def call_core(self, function: Callable[[EngineCore], FoundT]) -> FoundT:
        """What the function makes of the core, between two steps. Raises what it raises."""
        found: list[FoundT] = []
        await asyncio.to_thread(self._engine.call_core, lambda core: found.append(function(core)))
        return found[0]

    def terminate(self) -> None:
        """Abort everything and end the threads."""
        self._loops.terminate()

    def _hand_out(self, outputs: list[RequestStreamOutput]) -> None:
        self._seen(outputs)
        together: dict[int, tuple[Put, Outputs]] = {}
        with self._lock:
            found = [(self._readers.get(one.request_id), one) for one in outputs]
            for reader, output in found:
                if reader is None or isinstance(reader, _Reader):
                    continue
                together.setdefault(id(reader), (reader, []))[1].append(output)
                if output.request_final_usage_json_str is not None:
                    del self._readers[output.request_id]
        for reader, output in found:
            if isinstance(reader, _Reader):
                reader.put(output)
        for put, own in together.values():
            put(own)
