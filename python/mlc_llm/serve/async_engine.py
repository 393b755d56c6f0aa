"""`AsyncMLCEngine`: OpenAI's API in Python, for programs with an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
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
from mlc_llm.serve.async_reader import AsyncClient, AsyncReader, begin, deliver_to_loops
from mlc_llm.serve.client import EngineClient
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.engine_utils import random_uuid, request_id_of
from mlc_llm.serve.event_trace_recorder import EventTraceRecorder
from mlc_llm.serve.metrics import EngineMetrics
from mlc_llm.serve.openai.calls import Call, Streamed, chat_call
from mlc_llm.serve.openai.completions import completion_call
from mlc_llm.serve.openai.embeddings import embedding_call
from mlc_llm.serve.openai.raw_calls import DeltaOutput, Deltas, metrics_in, prompt_part
from mlc_llm.serve.openai.requests import completion_request_of, embedding_request_of, request_of

if TYPE_CHECKING:
    import tvm
    from typing_extensions import Unpack

StreamedT = TypeVar("StreamedT")
WholeT = TypeVar("WholeT")


class AsyncAnswerChunks(AsyncIterator[StreamedT], Generic[StreamedT]):
    """The chunks of an answer, as they come, for one task. `close`, the end of an `async with`
    block, cancelling the task that reads, or losing the last reference ends the request, if it has
    not ended."""

    def __init__(self, reader: AsyncReader, streamed: Streamed[StreamedT]) -> None:
        self._reader, self._streamed = reader, streamed
        self._made: deque[StreamedT] = deque()

    async def __anext__(self) -> StreamedT:
        """Raises `RequestError` if the request failed, `UserError` while another task waits here;
        that one gets its chunks."""
        self._reader.check_reads_alone()
        try:
            while not self._made:
                self._made.extend(self._streamed.of(*await anext(self._reader)))
            return self._made.popleft()
        except BaseException:
            self._reader.close()
            raise

    async def close(self) -> None:
        """End the request. It may be called more than once."""
        self._reader.close()

    aclose = close

    async def __aenter__(self) -> AsyncAnswerChunks[StreamedT]:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __del__(self) -> None:
        self._reader.close()


async def _answer(
    client: AsyncClient, call: Call[StreamedT, WholeT], *, stream: bool
) -> AsyncAnswerChunks[StreamedT] | WholeT:
    reader = await begin(client, call.parts)
    if stream:
        return AsyncAnswerChunks(reader, call.streamed)
    try:
        async for news in reader:
            call.whole.put(*news)
    finally:
        reader.close()
    return call.whole.response()


class AsyncChatCompletions:
    """`chat.completions`."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    @overload
    async def create(
        self, *, stream: Literal[False] = False, **parameters: Unpack[ChatArguments]
    ) -> ChatCompletionResponse: ...

    @overload
    async def create(
        self, *, stream: Literal[True], **parameters: Unpack[ChatArguments]
    ) -> AsyncAnswerChunks[ChatCompletionStreamResponse]: ...

    @overload
    async def create(
        self, *, stream: bool, **parameters: Unpack[ChatArguments]
    ) -> AsyncAnswerChunks[ChatCompletionStreamResponse] | ChatCompletionResponse: ...

    async def create(
        self, **parameters: Unpack[ChatParameters]
    ) -> AsyncAnswerChunks[ChatCompletionStreamResponse] | ChatCompletionResponse:
        """The answer to a conversation; with `stream=True` an asynchronous iterator of its chunks.

        Cancelling it ends the request. Raises `TypeError` for a parameter that does not exist,
        `UserError` that names a wrong field, and `RequestError` if the request fails (the iterator
        raises it where it happens).
        """
        check_names(parameters)
        request = request_of(parameters, stream=False)
        request_id = request_id_of(parameters, "chatcmpl")
        call = chat_call(request, request_id, self._client.model)
        return await _answer(self._client, call, stream=request.stream)


class AsyncChat:
    """`chat`, as in OpenAI's client."""

    def __init__(self, client: AsyncClient) -> None:
        self.completions = AsyncChatCompletions(client)


class AsyncCompletions:
    """`completions`."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    @overload
    async def create(
        self, *, stream: Literal[False] = False, **parameters: Unpack[CompletionArguments]
    ) -> CompletionResponse: ...

    @overload
    async def create(
        self, *, stream: Literal[True], **parameters: Unpack[CompletionArguments]
    ) -> AsyncAnswerChunks[CompletionResponse]: ...

    @overload
    async def create(
        self, *, stream: bool, **parameters: Unpack[CompletionArguments]
    ) -> AsyncAnswerChunks[CompletionResponse] | CompletionResponse: ...

    async def create(
        self, **parameters: Unpack[CompletionParameters]
    ) -> AsyncAnswerChunks[CompletionResponse] | CompletionResponse:
        """What follows a prompt, or each of several: as `chat.completions.create`, without a chat
        template. With several prompts, the choices of each follow those of the one before."""
        check_names(parameters, CompletionParameters)
        request = completion_request_of(parameters)
        request_id = request_id_of(parameters, "cmpl")
        call = completion_call(request, request_id, self._client.model)
        return await _answer(self._client, call, stream=request.stream)


class AsyncEmbeddings:
    """`embeddings`."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def create(self, **parameters: Unpack[EmbeddingParameters]) -> EmbeddingResponse:
        """The embedding of a text, or of each of several: a vector of length 1, pooled as the
        model's files say. Raises as `chat.completions.create`."""
        check_names(parameters, EmbeddingParameters)
        request = embedding_request_of(parameters)
        request_id = request_id_of(parameters, "embd")
        call = embedding_call(request, request_id, self._client.model)
        found = await _answer(self._client, call, stream=False)
        assert isinstance(found, EmbeddingResponse)
        return found


class AsyncMLCEngine:
    """A model behind OpenAI's API: `await chat.completions.create`, `await completions.create` and
    `await embeddings.create`.

    It can be used from any event loop, from several at once too. It is an asynchronous context
    manager: at the end of the `async with` block, or when nobody refers to it or to an answer of it
    any more, its threads end and its memory is freed. The constructor opens the model, which takes
    up to seconds; call it before the event loop runs, or on another thread.
    """

    def __init__(
        self,
        model: str | None = None,
        device: str | tvm.runtime.Device = "auto",
        *,
        model_lib: str | None = None,
        mode: Literal["local", "interactive", "server"] = "server",
        engine_config: EngineConfig | Mapping[str, object] | None = None,
        enable_tracing: bool = False,
    ) -> None:
        """`model`: see `open_model`; None is the default model. `mode`: see `EngineConfig`.
        `engine_config`: may be a dict of its fields. `enable_tracing`: `trace_recorder` records
        what happens to each request. Raises `UserError` for a model, a device or a config that
        cannot be used."""
        self.trace_recorder = EventTraceRecorder() if enable_tracing else None
        self._client: AsyncClient = EngineClient(
            deliver_to_loops,
            model,
            device,
            model_lib=model_lib,
            mode=mode,
            engine_config=engine_config,
            trace=self.trace_recorder,
        )
        self.chat = AsyncChat(self._client)
        self.completions = AsyncCompletions(self._client)
        self.embeddings = AsyncEmbeddings(self._client)

    @property
    def engine_config(self) -> EngineConfig:
        """The config with every limit. Raises `MLCError` if no model is loaded."""
        return self._client.engine_config

    async def abort(self, request_id: str) -> None:
        """End a request: its answer ends with `abort`. Unknown ids are ignored."""
        self._client.abort(request_id)

    async def metrics(self) -> EngineMetrics:
        """The engine's numbers at this moment. Raises `MLCError` if no model is loaded."""
        part = self._client.metrics_part(f"metrics-{random_uuid()}")
        reader = await begin(self._client, [part])
        return metrics_in([chunk async for _, chunk in reader])

    async def reload(
        self, engine_config: EngineConfig | Mapping[str, object] | None = None
    ) -> None:
        """Abort all requests, and open the model with another config, which may be a dict of its
        fields; None: as before. A config without `model` keeps the engine's model, one without
        `mode` its mode. Raises what opening raises; then nothing is loaded. A field that is wrong
        by itself raises before anything is aborted."""
        await asyncio.to_thread(self._client.reload, engine_config)

    async def unload(self) -> None:
        """Abort all requests and free the model's memory. `reload` brings it back."""
        await asyncio.to_thread(self._client.unload)

    async def load_adapter(self, name: str, source: str) -> None:
        """Load a LoRA adapter, a PEFT folder or a GGUF file. Requests name it as their `model`. The
        engine needs room for it (`max_adapters`). Raises `UserError` for one that cannot be used;
        other answers go on."""
        await asyncio.to_thread(self._client.load_adapter, name, source)

    async def drop_adapter(self, name: str) -> None:
        """Answers with the adapter go on to their end; no other one gets it. Raises `InvalidField`
        for a name that is not there."""
        await asyncio.to_thread(self._client.drop_adapter, name)

    async def reset(self) -> None:
        """Abort all requests, forget all prefixes and metrics."""
        self._client.reset()

    def terminate(self) -> None:
        """Abort all requests and end the threads. Every reader gets its end. It may be called more
        than once, and it waits for the step that runs."""
        self._client.terminate()

    async def __aenter__(self) -> AsyncMLCEngine:
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.terminate)

    async def _generate(
        self,
        prompt: str | Sequence[int],
        generation_config: GenerationConfig,
        request_id: str,
    ) -> AsyncIterator[list[DeltaOutput]]:
        """What each choice of a request without a protocol gets in a step; the usage comes last."""
        part = prompt_part(prompt, generation_config, request_id, self._client.model)
        chunks = AsyncAnswerChunks(await begin(self._client, [part]), Deltas(part.n))
        async with chunks:
            async for outputs in chunks:
                yield outputs
