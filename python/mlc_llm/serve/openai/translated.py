"""What a request of another API says in the words of OpenAI's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.protocol.conversation_protocol import Conversation
from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest, CompletionRequest
from mlc_llm.record import record
from mlc_llm.serve.openai.requests import without_effect

RequestT = TypeVar("RequestT", ChatCompletionRequest, CompletionRequest)

THINKS = "medium"
"""The effort of a request that asks for thoughts and not for how many."""
THINKS_NOT = "none"


@record()
class Translated(Generic[RequestT]):
    """A request, and what of the original is lost."""

    request: RequestT
    ignored: Sequence[str]
    """Fields of the original that have no effect."""
    effort_fields: Sequence[str] = ()
    """Fields of the original that have become `reasoning_effort`."""

    def ignored_by(self, template: ChatTemplate | Conversation | None) -> list[str]:
        """The fields of the original that have no effect on a model of this template."""
        request = self.request
        if not isinstance(request, ChatCompletionRequest):
            return list(self.ignored)
        if "reasoning_effort" in without_effect(request, template):
            return [*self.ignored, *self.effort_fields]
        return list(self.ignored)
