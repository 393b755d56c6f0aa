"""Makes chunks of a streamed answer of an engine's outputs: the same for every front end.

A chunk is made once. A front end gives it to Python as it is, writes it as JSON (`chunk_json`), or
collects the chunks into a whole answer (`answers`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mlc_llm.protocol.error_protocol import ErrorBody, ErrorResponse
from mlc_llm.serve.data import FinishReason, RequestStreamOutput, SingleRequestStreamOutput
from mlc_llm.serve.metrics import zero_usage_json
from mlc_llm.serve.stream import SequenceText
from mlc_llm.tokenizers import Tokenizer

REQUEST_FAILED = "request_error"
"""The `type` of an error that ends a request which the engine had accepted."""


class ChoicePiece(NamedTuple):
    """The news of one choice."""

    choice: int
    text: str
    finish_reason: FinishReason | None
    logprobs: list[str] | None
    """JSON texts, one for each token since the choice's last piece. None if not asked for."""


class Chunk(NamedTuple):
    """One item of a stream: the news of its choices, or the usage."""

    pieces: Sequence[ChoicePiece]
    error: ErrorBody | None = None
    """The reason, if the choices end with `error`."""
    usage_json: str | None = None
    """Only the last chunk of a request has it. That chunk has no pieces."""


class AnswerStream:
    """The growing texts of the choices of one request."""

    def __init__(self, tokenizer: Tokenizer, n: int) -> None:
        self._choices = [_Choice(tokenizer, i) for i in range(n)]

    def put(self, output: RequestStreamOutput) -> Chunk | None:
        """The chunk of an output. None if there is nothing to show yet.

        It has the choices with new text or an end. The text of a choice that fails is the reason.
        """
        if output.request_final_usage_json_str is not None:
            return Chunk((), None, output.request_final_usage_json_str)
        _, singles = output.unpack()
        pieces = [c.put(single) for c, single in zip(self._choices, singles, strict=True)]
        shown = [piece for piece in pieces if piece is not None]
        if output.error is not None:
            return Chunk(shown, ErrorBody(message=_utf8(output.error), type=REQUEST_FAILED))
        return Chunk(shown) if shown else None


def refusal_chunks(error: Exception) -> list[Chunk]:
    """All chunks of a request that is refused: one choice with an error, whose text is the reason,
    and a usage of zeros."""
    body = ErrorResponse.of(error).error
    body = body.model_copy(update={"message": _utf8(body.message or type(error).__name__)})
    reason = ChoicePiece(0, body.message, "error", None)
    return [Chunk([reason], body), Chunk((), None, zero_usage_json())]


class _Choice:
    def __init__(self, tokenizer: Tokenizer, index: int) -> None:
        self._index = index
        self._sequence = SequenceText(tokenizer)
        self._logprobs: list[str] | None = None

    def put(self, single: SingleRequestStreamOutput) -> ChoicePiece | None:
        """None if there is nothing to show. Then log-probabilities wait for the next piece."""
        if single.delta_logprob_json_strs is not None:
            self._logprobs = (self._logprobs or []) + single.delta_logprob_json_strs
        text = self._sequence.put(single)
        if single.finish_reason == "error":
            text = single.error or "the request failed"
        if not text and single.finish_reason is None:
            return None
        logprobs = self._logprobs
        self._logprobs = None if logprobs is None else []
        return ChoicePiece(self._index, text, single.finish_reason, logprobs)


def _utf8(text: str) -> str:
    """The text with "?" for a lone surrogate, which a user's text may have and UTF-8 cannot
    write."""
    return text.encode("utf-8", "replace").decode()
