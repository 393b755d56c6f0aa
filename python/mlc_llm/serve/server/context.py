"""What all routes share: the engine, its names, and the settings."""

from __future__ import annotations

import logging
import time
from uuid import uuid4

from starlette.requests import Request

from mlc_llm.protocol.openai_api_protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    ModelResponse,
)
from mlc_llm.serve.async_reader import AsyncClient
from mlc_llm.serve.openai.requests import ChatModel
from mlc_llm.serve.server.admission import Admission
from mlc_llm.serve.server.errors import HTTPError, not_found
from mlc_llm.serve.server.settings import ServerSettings

DEFAULT_NAME = "default"
IGNORED_HEADER = "x-ignored-params"

_log = logging.getLogger(__name__)


class ServerContext:
    """One served model."""

    def __init__(self, client: AsyncClient, name: str, settings: ServerSettings) -> None:
        """name: the model's own."""
        self.client, self.settings = client, settings
        self.names = settings.served_names or (name,)
        self.created = int(time.time())
        running = client.engine_config.max_num_sequence or 1
        limits = settings.limits
        self.admission = Admission(running + limits.queue, limits.queued_prompt_bytes)

    @property
    def model(self) -> ChatModel:
        return self.client.model

    def check_name(self, name: str | None) -> str:
        """The served name for the one in a request. Raises `HTTPError` (404)."""
        if name in (None, "", DEFAULT_NAME):
            return self.names[0]
        if name in self.names or self.settings.any_name:
            return str(name)
        known = ", ".join(self.names)
        words = f"the model {str(name)[:80]!r} does not exist; there is: {known}"
        raise not_found(words, code="model_not_found", param="model")

    def check_debug(self, request: ChatCompletionRequest | CompletionRequest) -> None:
        """Raises `HTTPError` for switches that are only for tests."""
        if request.debug_config is not None and not self.settings.debug:
            words = "debug_config is allowed only if the server was started with --enable-debug"
            raise HTTPError(400, words, param="debug_config")

    def model_entry(self, name: str) -> ModelResponse:
        """What `/v1/models` says of a name."""
        length = self.model.context
        return ModelResponse(
            id=name,
            created=self.created,
            max_model_len=length,
            context_length=length,
            max_input_tokens=length - 1,
            max_output_tokens=length - 1,
            root=self.names[0],
        )


def context_of(request: Request) -> ServerContext:
    """The context that the app was made with."""
    found = request.app.state.context
    assert isinstance(found, ServerContext)
    return found


def new_id(prefix: str) -> str:
    """An id that no client can choose."""
    return f"{prefix}-{uuid4().hex}"


def ignored(request: ChatCompletionRequest | CompletionRequest) -> dict[str, str]:
    """A header that names the fields without effect, so that nobody is misled."""
    unknown = request.unknown_fields()
    if not unknown:
        return {}
    names = ",".join(name for name in unknown if name.isascii() and name.isprintable())
    return {IGNORED_HEADER: names[:1000]}
