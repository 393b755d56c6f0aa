"""What all routes share: the models, who gets in, and the settings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import uuid4

from starlette.requests import Request

from mlc_llm.errors import MLCError
from mlc_llm.protocol.base import AnswerModel
from mlc_llm.protocol.openai_api_protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    ModelResponse,
)
from mlc_llm.serve.async_reader import AsyncClient
from mlc_llm.serve.openai.requests import ChatModel
from mlc_llm.serve.server.errors import HTTPError
from mlc_llm.serve.server.limits.admission import Admission
from mlc_llm.serve.server.limits.body import Bodies
from mlc_llm.serve.server.limits.holding import holds_of
from mlc_llm.serve.server.limits.refusing import Pace
from mlc_llm.serve.server.limits.settings import ServerSettings
from mlc_llm.serve.server.notes.note import RequestNote, current_note
from mlc_llm.serve.server.notes.server_metrics import ServerMetrics
from mlc_llm.serve.server.pool.registry import DEFAULT_NAME, ModelRegistry
from mlc_llm.serve.server.pool.slot import ModelSlot
from mlc_llm.serve.server.pool.watch import stalled
from mlc_llm.serve.server.streams.gone import unless_gone
from mlc_llm.serve.server.streams.reader import ServedReader

SHOWN_DEFAULTS = (
    *("temperature", "top_p", "top_k", "min_p"),
    *("repetition_penalty", "frequency_penalty", "presence_penalty"),
)
"""What `/v1/models` says of a model's own way to choose tokens."""


class ServerContext:
    """The state of one server."""

    def __init__(self, models: ModelRegistry, settings: ServerSettings) -> None:
        """models: the default one is open."""
        self.models, self.settings = models, settings
        self.created = int(time.time())
        for slot in models.slots:
            slot.keep_s = settings.keep_model_s
        self.metrics = ServerMetrics()
        self.watchers: list[Callable[[RequestNote], None]] = []
        """Are told of each request at its end, on the event loop."""
        limits = settings.limits
        self.admission = Admission(
            lambda: models.places,
            limits.queue,
            limits.queued_prompt_bytes,
            models.seconds_for,
            self._per_tenant,
        )
        self.pace = Pace(self._most_held)
        self.bodies = Bodies(limits)

    def _per_tenant(self) -> int | None:
        """Answers of one key that may wait or run; without a limit, several keys have half each."""
        given = self.settings.limits.per_key
        if given is None and len(self.settings.keys) > 1:
            return max(1, self.admission.limit // 2)
        return given

    def _most_held(self) -> int:
        """Refusals that may be held back: their connections must leave room for answers and for
        `/health`."""
        connections = self.settings.limits.connections
        return connections - self.admission.limit - connections // 16

    def ended(self, note: RequestNote) -> None:
        """A request has ended."""
        self.metrics.ended(note)
        for tell in self.watchers:
            tell(note)

    def check_debug(self, body: AnswerModel) -> None:
        """Raises `HTTPError` for switches that are only for tests."""
        if not isinstance(body, ChatCompletionRequest | CompletionRequest):
            return
        if body.debug_config is not None and not self.settings.debug:
            words = "debug_config is allowed only if the server was started with --enable-debug"
            raise HTTPError(400, words, param="debug_config")

    def model_entry(self, slot: ModelSlot, name: str) -> ModelResponse:
        """What `/v1/models` says of a name. The lengths are known while the model is open."""
        model = _model_of(slot)
        length = None if model is None else model.context
        prompt = None if model is None else model.context - model.least_answer
        answer = 0 if model is not None and not model.writes else prompt
        return ModelResponse(
            id=name,
            created=self.created,
            max_model_len=length,
            context_length=length,
            max_input_tokens=prompt,
            max_output_tokens=answer,
            root=slot.names[0],
            state="stalled" if slot.stalled else slot.state.value,
            error=slot.stalled or slot.error or None,
            input_modalities=["text", "image"] if model and model.images else ["text"],
            default_parameters=None if model is None else _default_parameters(model),
        )

    @property
    def entries(self) -> list[ModelResponse]:
        """`model_entry` of every name."""
        slots = self.models.slots
        return [self.model_entry(slot, name) for slot in slots for name in slot.all_names]


def _model_of(slot: ModelSlot) -> ChatModel | None:
    """The model, while it is open. An engine that has died may not have been seen yet."""
    try:
        return None if slot.client is None else slot.client.model
    except MLCError:
        return None


class ServedModel:
    """A model that stays open while a request uses it."""

    def __init__(self, context: ServerContext, slot: ModelSlot, name: str) -> None:
        """name: in the answer."""
        assert slot.client is not None and slot.turns is not None
        self.context, self.name, self._slot = context, name, slot
        self._adapters = frozenset(
            {name} if name not in slot.names and name in slot.adapters else ()
        )
        self.client: AsyncClient = slot.client
        self.turns = slot.turns
        self.admission, self.settings = context.admission, context.settings

    @property
    def model(self) -> ChatModel:
        """What requests need of it. An adapter that is dropped meanwhile is refused by name."""
        model = self.client.model
        return model._replace(adapters={*model.adapters, *self._adapters})

    def keep(self, seconds: float | None) -> None:
        """It stays open for so long after its last request; None: for good. This counts until the
        next request for it."""
        self._slot.keep_s = seconds

    @contextmanager
    def reading(self, reader: ServedReader) -> Iterator[None]:
        """Within it, the server knows of the answer. At its end, the answer has ended."""
        self._slot.readers.add(reader)
        try:
            yield
        finally:
            reader.close()
            self._slot.readers.discard(reader)


def _default_parameters(model: ChatModel) -> dict[str, float]:
    """Only those that the model's files give."""
    defaults = model.defaults
    names = [name for name in SHOWN_DEFAULTS if defaults.given.get(name) is not None]
    return {name: getattr(defaults, name) for name in names}


def context_of(request: Request) -> ServerContext:
    """The context that the app was made with."""
    found = request.app.state.context
    assert isinstance(found, ServerContext)
    return found


async def served_model(request: Request, name: str | None) -> ServedModel:
    """The model that a request names, open until its answer has ended.

    The body of the request must have been read. Raises `HTTPError`: 404 for a name that is not
    there, 503 for a model that cannot be opened.
    """
    context = context_of(request)
    slot = context.models.find(name)
    known = name if name and name != DEFAULT_NAME else slot.names[0]
    current_note().model = known if known in slot.all_names else slot.names[0]
    if slot.stalled:
        raise stalled(slot)
    if not context.models.take_ready(slot):
        await unless_gone(request, context.models.take(slot))
    slot.keep_s = context.settings.keep_model_s  # a request before this one may have changed it
    holds_of(request).enter_context(context.models.given_back(slot))
    return ServedModel(context, slot, known)


def new_id(prefix: str, joint: str = "-") -> str:
    """An id that no client can choose. joint: what stands behind the prefix in the ids of the
    API."""
    return f"{prefix}{joint}{uuid4().hex}"
