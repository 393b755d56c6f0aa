"""What an engine decides about requests besides the model's tokens."""

from __future__ import annotations

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.core.sequence import RequestState, Sequence


class RequestPolicy:
    """The rules of an engine with a model. An engine without one may have others."""

    by_tokens = True
    """Where no grammar is followed, a text is never whole by `is_complete`."""

    def __init__(self, *, writes: bool = True) -> None:
        """writes: False for a decoder that ranks documents and has no head for tokens."""
        self.writes = writes

    def needs_grammar(self, config: GenerationConfig) -> bool:
        """Answers to the request follow a grammar, which has to be compiled."""
        return config.needs_grammar

    def is_complete(self, sequence: Sequence) -> bool:
        """The text is whole. Asked behind each token that does not end it otherwise."""
        return sequence.grammar is not None and sequence.grammar.is_finished

    def usage_json(self, request: RequestState) -> str:
        """The usage of a request that is over; its `extra` holds the request's numbers."""
        return request.metrics.usage_json()
