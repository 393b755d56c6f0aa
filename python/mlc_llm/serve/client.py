"""A threaded engine with its two threads, as `MLCEngine` and `AsyncMLCEngine` use it.

A call (`openai/calls.py`) is started on the thread of whoever asks. Its chunks go from the engine's
callback to the reader of the call. The two engines differ in their readers alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar

from mlc_llm.protocol.debug_protocol import DebugConfig
from mlc_llm.protocol.error_protocol import ErrorBody
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.record import record
from mlc_llm.serve.chat_model import chat_model_of
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.data import RequestStreamOutput
from mlc_llm.serve.event_trace_recorder import EventTraceRecorder
from mlc_llm.serve.metrics import zero_usage_json
from mlc_llm.serve.openai.calls import Part
from mlc_llm.serve.openai.chunks import REQUEST_FAILED, AnswerStream, Chunk
from mlc_llm.serve.openai.requests import ChatModel
from mlc_llm.serve.opening.arguments import check_engine_config, detect_device
from mlc_llm.serve.opening.bundle import ModelBundle
from mlc_llm.serve.request import Request
from mlc_llm.serve.streams import OpenStreams
from mlc_llm.serve.threaded.inbox import Arrival
from mlc_llm.serve.threaded.loops import LoopThreads
from mlc_llm.serve.threaded.work_loop import Progress
from mlc_llm.serve.threaded_engine import TERMINATED, ThreadedEngine

if TYPE_CHECKING:
    from collections.abc import Sequence

    import tvm

News = tuple[int, Chunk]
"""The number of a part of the call, and its next chunk."""


class Reader(Protocol):
    """Where the chunks of one call go."""

    @property
    def is_over(self) -> bool:
        """It has all chunks, or nobody reads any more."""
        ...


ReaderT = TypeVar("ReaderT", bound=Reader)
Deliver = Callable[[list[tuple[ReaderT, News]]], None]
"""Gives the chunks of one step to their readers. It must not wait."""

_log = logging.getLogger(__name__)


@record(eq=False)
class _Running(Generic[ReaderT]):
    """A part of a call that has not ended."""

    reader: ReaderT
    part: int
    answer: AnswerStream


@record(eq=False)
class Ready(Generic[ReaderT]):
    """The requests of a call that are ready for the engine."""

    arrivals: list[Arrival]
    begun: dict[str, _Running[ReaderT]]

    @property
    def prompt_tokens(self) -> int:
        """Of all its prompts."""
        prepared = [one.prepared for one in self.arrivals]
        return sum(len(one.prompt) for one in prepared if one is not None)


class EngineCallback(Generic[ReaderT]):
    """Makes chunks of what the engine gives to its callback, by request id."""

    def __init__(self, deliver: Deliver[ReaderT], abort: Callable[[str], None]) -> None:
        self._deliver, self._abort = deliver, abort
        self.running: OpenStreams[_Running[ReaderT]] = OpenStreams()

    def __call__(self, outputs: list[RequestStreamOutput]) -> None:
        news = []
        for output in outputs:
            one = self.running.find(output.request_id)
            if one is not None:
                chunks = self._chunks(one, output)
                news += [(one.reader, (one.part, chunk)) for chunk in chunks]
        self._deliver(news)

    def end(self, error: str) -> None:
        """End every call that is still open with an error."""
        for request_id in self.running.ids():
            one = self.running.take(request_id)
            if one is not None:
                self._deliver([(one.reader, (one.part, last)) for last in _last(error)])

    def _chunks(self, one: _Running[ReaderT], output: RequestStreamOutput) -> Sequence[Chunk]:
        if output.request_final_usage_json_str is not None:
            self.running.leave(output.request_id, one)
        try:
            chunk = one.answer.put(output)
            return [] if chunk is None else [chunk]
        except Exception as error:  # a bug of ours, which must not end the other calls
            _log.exception("the answer to request %s cannot be written", output.request_id)
            self.running.leave(output.request_id, one)
            self._abort(output.request_id)
            return _last(str(error) or type(error).__name__)


def _salted(make: Callable[[], Request], cache_salt: str) -> Callable[[], Request]:
    return make if not cache_salt else lambda: replace(make(), cache_salt=cache_salt)


def _last(error: str) -> list[Chunk]:
    body = ErrorBody(message=error, type=REQUEST_FAILED)
    return [Chunk((), body), Chunk((), None, zero_usage_json())]


class EngineClient(Generic[ReaderT]):
    """An open model whose requests anybody may start, from any thread.

    Its threads end with `terminate`, or when nobody refers to this object any more.
    """

    def __init__(
        self,
        deliver: Deliver[ReaderT],
        model: str | None,
        device: str | tvm.runtime.Device,
        *,
        model_lib: str | None,
        mode: Literal["local", "interactive", "server"],
        engine_config: EngineConfig | Mapping[str, object] | None,
        trace: EventTraceRecorder | None,
    ) -> None:
        """Raises `UserError` for a model, a device or a config that cannot be used; its threads
        have ended then."""
        self.trace = trace
        config = EngineConfig.of(engine_config)
        check_engine_config(model, model_lib, mode, config)
        if isinstance(device, str):
            device = detect_device(device, config.kernels)
        self._config = replace(config, model=model, model_lib=model_lib, mode=mode)
        self._engine = ThreadedEngine.Create()
        self._callback = EngineCallback(deliver, self._engine.abort_request)
        self._engine.init_threaded_engine(device, self._callback, trace)
        self._loops = LoopThreads(
            {
                "exit_background_loop": self._engine.exit_background_loop,
                "run_background_loop": self._engine.run_background_loop,
                "run_background_stream_back_loop": self._engine.run_background_stream_back_loop,
            }
        )
        try:
            self.reload()
        except BaseException:
            self.terminate()
            raise

    @property
    def model(self) -> ChatModel:
        """What calls need of the loaded model. Raises `MLCError` if none is loaded."""
        return chat_model_of(self._engine.loaded)

    @property
    def bundle(self) -> ModelBundle:
        """The opened files of the loaded model. Raises `MLCError` if none is loaded."""
        return self._engine.loaded.bundle

    @property
    def model_name(self) -> str:
        """The name of the loaded model. Raises `MLCError` if none is loaded."""
        return self.bundle.name

    @property
    def engine_config(self) -> EngineConfig:
        """The config with every limit. Raises `MLCError` if no model is loaded."""
        return self._engine.get_complete_engine_config()

    @property
    def progress(self) -> Progress:
        """Whether the engine's thread moves."""
        return self._engine.progress

    def start(self, parts: Sequence[Part], reader: ReaderT) -> None:
        """Start all parts of a call, or none. It takes as long as it takes to make their prompts.

        Raises `IdInUse` and what `Part.make` raises. Nothing is started, or goes on, for a reader
        that is closed.
        """
        self.submit(self.prepare(parts, reader), reader)

    def prepare(
        self, parts: Sequence[Part], reader: ReaderT, cache_salt: str = ""
    ) -> Ready[ReaderT]:
        """The slow half of `start`: prompts, tables and grammars, without the engine. cache_salt:
        see `Request`. Raises like `start`."""
        tokenizer = self.model.tokenizer
        begun: dict[str, _Running[ReaderT]] = {}
        arrivals = []
        try:
            for number, (request_id, n, make, read) in enumerate(parts):
                one = _Running(reader, number, AnswerStream(tokenizer, n, read))
                self._callback.running.open(request_id, one)
                begun[request_id] = one
                if not reader.is_over:
                    made = _salted(make, cache_salt)
                    arrivals.append(self._engine.make_ready(request_id, n, made, raises=True))
        except BaseException:
            self._drop(begun)
            raise
        if reader.is_over:  # another thread has closed it while the parts were made
            self._drop(begun)
        return Ready([one for one in arrivals if one is not None], begun)

    def submit(self, ready: Ready[ReaderT], reader: ReaderT) -> None:
        """Give the engine what `prepare` has made. It returns at once."""
        try:
            for arrival in ready.arrivals:
                self._engine.add_ready(arrival)
        except BaseException:
            self._drop(ready.begun)
            raise
        if reader.is_over:
            self._drop(ready.begun)

    def _drop(self, begun: Mapping[str, _Running[ReaderT]]) -> None:
        """Abort requests whose reader wants nothing more."""
        for request_id, one in begun.items():
            self._callback.running.leave(request_id, one)
            self._engine.abort_request(request_id)

    def metrics_part(self, request_id: str) -> Part:
        """A request that the engine answers at once, with its metrics in the usage."""
        debug = DebugConfig(special_request="query_engine_metrics")
        config = GenerationConfig(debug_config=debug)
        return Part(request_id, 1, lambda: self._engine.create_request(request_id, [], config))

    def abort(self, request_id: str) -> None:
        """End a request: its answer ends with `abort`. Unknown ids are ignored."""
        self._engine.abort_request(request_id)

    def abort_all(self) -> None:
        """End all requests: their answers end with `abort`."""
        for request_id in self._callback.running.ids():
            self._engine.abort_request(request_id)

    def reload(self, config: EngineConfig | Mapping[str, object] | None = None) -> None:
        """Abort everything, and open the model of this config; None: the same as before. Raises
        what opening raises."""
        wanted = self._config if config is None else self._completed(EngineConfig.of(config))
        self._engine.reload(wanted.asjson())
        self._config = wanted

    def _completed(self, config: EngineConfig) -> EngineConfig:
        """A config with what it leaves to the engine's arguments: its model, with the library of
        that one, and its mode."""
        config = replace(config, mode=config.mode or self._config.mode)
        if config.model is not None:
            return config
        library = config.model_lib or self._config.model_lib
        return replace(config, model=self._config.model, model_lib=library)

    def unload(self) -> None:
        """Abort everything and free the model's memory."""
        self._engine.unload()

    @property
    def adapters(self) -> list[str]:
        """Names of the LoRA adapters. Raises `MLCError` if no model is loaded."""
        return self._engine.loaded.core.adapters.names

    def load_adapter(self, name: str, source: str) -> None:
        """Load a LoRA adapter. See `ThreadedEngine`."""
        self._engine.load_adapter(name, source)

    def drop_adapter(self, name: str) -> None:
        """Drop a LoRA adapter. See `ThreadedEngine`."""
        self._engine.drop_adapter(name)

    def reset(self) -> None:
        """Abort everything; forget prefixes and metrics."""
        self._engine.reset()

    def terminate(self) -> None:
        """Abort everything and end the threads. Every reader gets its end. It may be called more
        than once."""
        self._loops.terminate()
        self._callback.end(TERMINATED)
