"""One call of OpenAI's API: its requests to the engine, and how their chunks become its answer.

A chat call is one request. A completion call is one request for each prompt (`completions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar

from mlc_llm.protocol.openai_api_protocol import (
    ChatCompletionRequest,
    ChatCompletionResponse,
    ChatCompletionStreamResponse,
)
from mlc_llm.record import record
from mlc_llm.serve.openai.chunk_models import ChatChunks, WholeChat
from mlc_llm.serve.openai.chunks import Chunk, no_reader
from mlc_llm.serve.openai.requests import (
    ChatForm,
    ChatModel,
    engine_config,
    engine_request,
    warn_of_ignored,
    without_effect,
)
from mlc_llm.serve.openai.tools.answer_reader import AnswerReader
from mlc_llm.serve.request import Request

StreamedT = TypeVar("StreamedT")
WholeT = TypeVar("WholeT")
Streamed_co = TypeVar("Streamed_co", covariant=True)
Whole_co = TypeVar("Whole_co", covariant=True)


class Part(NamedTuple):
    """One request to the engine."""

    request_id: str
    n: int
    """Sequences of it."""
    make: Callable[[], Request]
    """Renders and tokenises the prompt, which takes time. Raises `UserError`."""
    reader: Callable[[], AnswerReader | None] = no_reader
    """Makes the reader of one sequence, once `make` is done. None: all text is the answer."""


class Streamed(Protocol[Streamed_co]):
    """Makes the chunks that the caller gets."""

    def of(self, part: int, chunk: Chunk) -> Iterator[Streamed_co]:
        """The chunks for one of the engine. Raises `RequestError` for a request that failed."""
        ...


class Whole(Protocol[Whole_co]):
    """Collects a whole answer."""

    def put(self, part: int, chunk: Chunk) -> None:
        """Add a chunk. Raises `RequestError` for a request that failed."""

    def response(self) -> Whole_co:
        """The answer, when every part has ended."""
        ...


@record()
class Call(Generic[StreamedT, WholeT]):
    """A call that was checked, and is ready for the engine."""

    parts: Sequence[Part]
    streamed: Streamed[StreamedT]
    whole: Whole[WholeT]
    cost: int = 0
    """Answers as which it counts, where a server bounds its work; 0: one for each sequence."""
    counted: str = "n"
    """The field of the request that decides that."""

    @property
    def answers(self) -> int:
        """`cost`, or the sequences of all parts."""
        return self.cost or sum(part.n for part in self.parts)


ChatCall = Call[ChatCompletionStreamResponse, ChatCompletionResponse]


def chat_call(request: ChatCompletionRequest, request_id: str, model: ChatModel) -> ChatCall:
    """Raises `UserError` for what no engine is needed to refuse."""
    warn_of_ignored(request, without_effect(request, model.template))
    config = engine_config(request, model)
    name = request.model or ""
    form = ChatForm(request, model)
    make = partial(engine_request, form, request_id, config)
    part = Part(request_id, config.n, make, form.reader)
    mark = model.fingerprint
    chunks = ChatChunks(request_id, name, include_usage=request.include_usage, fingerprint=mark)
    return Call([part], chunks, WholeChat(request_id, name, config.n, fingerprint=mark))
