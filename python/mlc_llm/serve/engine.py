"""`MLCEngine`: OpenAI's API in Python, for programs without an event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, Literal, TypeVar, overload

from mlc_llm.protocol.chat_parameters import (
    ChatArguments,
    ChatParameters,
    CompletionArguments,
    CompletionParameters,
    EmbeddingParameters,
    check_names,
)
from mlc_llm.protocol.embedding_protocol import EmbeddingResponse
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.protocol.openai_api_protocol import (
    ChatCompletionResponse,
    ChatCompletionStreamResponse,
    CompletionResponse,
)
from mlc_llm.serve.client import EngineClient, News
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.engine_utils import random_uuid, request_id_of
from mlc_llm.serve.event_trace_recorder import EventTraceRecorder
from mlc_llm.serve.metrics import EngineMetrics
from mlc_llm.serve.one_thread import OneThread
from mlc_llm.serve.openai.calls import Call, Part, Streamed, chat_call
from mlc_llm.serve.openai.completions import completion_call
from mlc_llm.serve.openai.embeddings import embedding_call
from mlc_llm.serve.openai.raw_calls import DeltaOutput, Deltas, metrics_in, prompt_part
from mlc_llm.serve.openai.requests import completion_request_of, embedding_request_of, request_of
from mlc_llm.serve.streams import RequestStream

if TYPE_CHECKING:
    import tvm
    from typing_extensions import Unpack

_TWO_THREADS = "another thread reads this answer; read it in one, which may hand chunks on"

StreamedT = TypeVar("StreamedT")
WholeT = TypeVar("WholeT")


class CallReader(RequestStream[News]):
    """The chunks of all parts of one call, for the one thread that reads them."""

    def __init__(self, parts: Sequence[Part], abort: Callable[[str], None]) -> None:
        """abort: ends the request with this id."""

        def abort_all(_: str) -> None:
            for part in parts:
                abort(part.request_id)

        super().__init__(parts[0].request_id, abort_all)
        self._open_parts = len(parts)

    def give(self, news: News) -> None:
        """Called on the thread of the engine's callback."""
        self._open_parts -= news[1].usage_json is not None
        if self._open_parts:
            self.put(news)
        else:
            self.end(news)


def _deliver(all_news: list[tuple[CallReader, News]]) -> None:
    for reader, news in all_news:
        reader.give(news)


Client = EngineClient[CallReader]


class AnswerChunks(Iterator[StreamedT], Generic[StreamedT]):
    """The chunks of an answer, as they come, for one thread. `close`, the end of a `with` block, or
    losing the last reference ends the request, if it has not ended."""

    def __init__(self, reader: CallReader, streamed: Streamed[StreamedT]) -> None:
        self._reader = reader
        self._chunks = (made for news in reader for made in streamed.of(*news))
        self._alone = OneThread(_TWO_THREADS)

    def __next__(self) -> StreamedT:
        """Raises `RequestError` if the request failed, `UserError` while another thread waits here;
        that one gets its chunks."""
        with self._alone:
            try:
                return next(self._chunks)
            except BaseException:
                self._reader.close()
                raise

    def close(self) -> None:
        """End the request. It may be called more than once."""
        self._reader.close()

    def __enter__(self) -> AnswerChunks[StreamedT]:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def _begin(client: Client, parts: Sequence[Part]) -> CallReader:
    reader = CallReader(parts, client.abort)
    try:
        client.start(parts, reader)
    except BaseException:
        reader.close()
        raise
    return reader


def _answer(
    client: Client, call: Call[StreamedT, WholeT], *, stream: bool
) -> AnswerChunks[StreamedT] | WholeT:
    reader = _begin(client, call.parts)
    if stream:
        return AnswerChunks(reader, call.streamed)
    with reader:
        for news in reader:
            call.whole.put(*news)
    return call.whole.response()


class ChatCompletions:
    """`chat.completions`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @overload
    def create(
        self, *, stream: Literal[False] = False, **parameters: Unpack[ChatArguments]
    ) -> ChatCompletionResponse: ...

    @overload
    def create(
        self, *, stream: Literal[True], **parameters: Unpack[ChatArguments]
    ) -> AnswerChunks[ChatCompletionStreamResponse]: ...

    @overload
    def create(
        self, *, stream: bool, **parameters: Unpack[ChatArguments]
    ) -> AnswerChunks[ChatCompletionStreamResponse] | ChatCompletionResponse: ...

    def create(
        self, **parameters: Unpack[ChatParameters]
    ) -> AnswerChunks[ChatCompletionStreamResponse] | ChatCompletionResponse:
        """The answer to a conversation; with `stream=True` an iterator of its chunks.

        Raises `TypeError` for a parameter that does not exist, `UserError` that names a wrong
        field, and `RequestError` if the request fails (the iterator raises it where it happens).
        """
        check_names(parameters)
        request = request_of(parameters, stream=False)
        request_id = request_id_of(parameters, "chatcmpl")
        call = chat_call(request, request_id, self._client.model)
        return _answer(self._client, call, stream=request.stream)


class Chat:
    """`chat`, as in OpenAI's client."""

    def __init__(self, client: Client) -> None:
        self.completions = ChatCompletions(client)


class Completions:
    """`completions`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @overload
    def create(
        self, *, stream: Literal[False] = False, **parameters: Unpack[CompletionArguments]
    ) -> CompletionResponse: ...

    @overload
    def create(
        self, *, stream: Literal[True], **parameters: Unpack[CompletionArguments]
    ) -> AnswerChunks[CompletionResponse]: ...

    @overload
    def create(
        self, *, stream: bool, **parameters: Unpack[CompletionArguments]
    ) -> AnswerChunks[CompletionResponse] | CompletionResponse: ...

    def create(
        self, **parameters: Unpack[CompletionParameters]
    ) -> AnswerChunks[CompletionResponse] | CompletionResponse:
        """What follows a prompt, or each of several: as `chat.completions.create`, without a chat
        template. With several prompts, the choices of each follow those of the one before."""
        check_names(parameters, CompletionParameters)
        request = completion_request_of(parameters)
        request_id = request_id_of(parameters, "cmpl")
        call = completion_call(request, request_id, self._client.model)
        return _answer(self._client, call, stream=request.stream)


class Embeddings:
    """`embeddings`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(self, **parameters: Unpack[EmbeddingParameters]) -> EmbeddingResponse:
        """The embedding of a text, or of each of several: a vector of length 1, pooled as the
        model's files say. Raises as `chat.completions.create`."""
        check_names(parameters, EmbeddingParameters)
        request = embedding_request_of(parameters)
        request_id = request_id_of(parameters, "embd")
        call = embedding_call(request, request_id, self._client.model)
        found = _answer(self._client, call, stream=False)
        assert isinstance(found, EmbeddingResponse)
        return found


class MLCEngine:
    """A model behind OpenAI's API: `chat.completions.create`, `completions.create` and
    `embeddings.create`.

    Any number of threads may use it, and any number of answers may be read at once. It is a context
    manager: at the end of the `with` block, or when nobody refers to it or to an answer of it any
    more, its threads end and its memory is freed.
    """

    def __init__(
        self,
        model: str | None = None,
        device: str | tvm.runtime.Device = "auto",
        *,
        model_lib: str | None = None,
        mode: Literal["local", "interactive", "server"] = "local",
        engine_config: EngineConfig | Mapping[str, object] | None = None,
        enable_tracing: bool = False,
    ) -> None:
        """`model`: see `open_model`; None is the default model. `mode`: see `EngineConfig`.
        `engine_config`: may be a dict of its fields. `enable_tracing`: `trace_recorder` records
        what happens to each request. Raises `UserError` for a model, a device or a config that
        cannot be used."""
        self.trace_recorder = EventTraceRecorder() if enable_tracing else None
        self._client: Client = EngineClient(
            _deliver,
            model,
            device,
            model_lib=model_lib,
            mode=mode,
            engine_config=engine_config,
            trace=self.trace_recorder,
        )
        self.chat = Chat(self._client)
        self.completions = Completions(self._client)
        self.embeddings = Embeddings(self._client)

    @property
    def engine_config(self) -> EngineConfig:
        """The config with every limit. Raises `MLCError` if no model is loaded."""
        return self._client.engine_config

    def abort(self, request_id: str) -> None:
        """End a request: its answer ends with `abort`. Unknown ids are ignored."""
        self._client.abort(request_id)

    def metrics(self) -> EngineMetrics:
        """The engine's numbers at this moment. Raises `MLCError` if no model is loaded."""
        part = self._client.metrics_part(f"metrics-{random_uuid()}")
        with _begin(self._client, [part]) as reader:
            return metrics_in(chunk for _, chunk in reader)

    def reload(self, engine_config: EngineConfig | Mapping[str, object] | None = None) -> None:
        """Abort all requests, and open the model with another config, which may be a dict of its
        fields; None: as before. A config without `model` keeps the engine's model, one without
        `mode` its mode. Raises what opening raises; then nothing is loaded. A field that is wrong
        by itself raises before anything is aborted."""
        self._client.reload(engine_config)

    def unload(self) -> None:
        """Abort all requests and free the model's memory. `reload` brings it back."""
        self._client.unload()

    def load_adapter(self, name: str, source: str) -> None:
        """Load a LoRA adapter, a PEFT folder or a GGUF file. Requests name it as their `model`. The
        engine needs room for it (`max_adapters`). Raises `UserError` for one that cannot be used;
        other answers go on."""
        self._client.load_adapter(name, source)

    def drop_adapter(self, name: str) -> None:
        """Answers with the adapter go on to their end; no other one gets it. Raises `InvalidField`
        for a name that is not there."""
        self._client.drop_adapter(name)

    def reset(self) -> None:
        """Abort all requests, forget all prefixes and metrics."""
        self._client.reset()

    def terminate(self) -> None:
        """Abort all requests and end the threads. Every reader gets its end. It may be called more
        than once."""
        self._client.terminate()

    def __enter__(self) -> MLCEngine:
        return self

    def __exit__(self, *error: object) -> None:
        self.terminate()

    def _generate(
        self,
        prompt: str | Sequence[int],
        generation_config: GenerationConfig,
        request_id: str,
    ) -> Iterator[list[DeltaOutput]]:
        """What each choice of a request without a protocol gets in a step."""
        part = prompt_part(prompt, generation_config, request_id, self._client.model)
        for outputs in AnswerChunks(_begin(self._client, [part]), Deltas(part.n)):
            if outputs[0].request_final_usage_json_str is None:
                yield outputs
