"""What requests need of a loaded model."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.errors import UserError
from mlc_llm.images.reader import ImageReader
from mlc_llm.protocol.conversation_protocol import Conversation
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.request import NO_TEXT, RANKS_ONLY
from mlc_llm.tokenizers import Tokenizer

if TYPE_CHECKING:
    from mlc_llm.ranking import Ranking


class ChatModel(NamedTuple):
    """The parts of a loaded model that its requests need."""

    tokenizer: Tokenizer
    template: ChatTemplate | Conversation | None
    defaults: GenerationConfig
    """The values of fields that a request leaves open."""
    context: int
    """The most tokens of a prompt and its answer together."""
    load_id: int
    """See `OpenEngine.load_id`."""
    hidden_size: int = 0
    """Numbers of a hidden vector."""
    fingerprint: str = ""
    """See `opening/fingerprint.py`."""
    pooling: str | None = None
    """How the model's files want a text's vectors to become one; None: they do not say it."""
    is_encoder: bool = False
    """It makes vectors, and writes no text."""
    scores: int = 0
    """Scores that it gives to a pair of texts; 0: it compares none."""
    images: ImageReader | None = None
    """How it reads images; None: it does not."""
    adapters: Collection[str] = ()
    """Names of its LoRA adapters."""
    adapter: str = ""
    """The one that its requests have; "": none."""
    ranking: Ranking | None = None
    """How a decoder ranks documents; None: it does not."""

    def named(self, name: str | None) -> ChatModel:
        """The model that a request means whose `model` is this name: an adapter, if it is the name
        of one."""
        return self._replace(adapter=name) if name and name in self.adapters else self

    @property
    def least_answer(self) -> int:
        """Tokens of the context that a prompt leaves for the answer at least."""
        return 0 if self.is_encoder else 1

    @property
    def writes(self) -> bool:
        """It writes texts."""
        return not self.is_encoder and self.ranking is None

    def check_writes(self) -> None:
        """Raises `UserError` for an encoder, and for a decoder that ranks documents."""
        if self.ranking is not None:
            raise UserError(RANKS_ONLY)
        if self.is_encoder:
            raise UserError(NO_TEXT)
