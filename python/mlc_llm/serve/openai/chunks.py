"""From an engine's outputs to what a streamed answer adds to each choice: the same everywhere."""

from __future__ import annotations

from typing import NamedTuple

from mlc_llm.serve.data import FinishReason, RequestStreamOutput, SingleRequestStreamOutput
from mlc_llm.serve.stream import BranchText
from mlc_llm.tokenizers import Tokenizer


class ChoicePiece(NamedTuple):
    """What one choice gained."""

    choice: int
    text: str
    finish_reason: FinishReason | None
    logprobs: list[str] | None
    """JSON texts, one a token since the choice's last piece; None where nobody asked for them."""


class AnswerStream:
    """The text of one request's choices while it grows."""

    def __init__(self, tokenizer: Tokenizer, n: int) -> None:
        self._choices = [_Choice(tokenizer, i) for i in range(n)]

    def put(self, output: RequestStreamOutput) -> list[ChoicePiece]:
        """The choices that have new text or an end. Not for usage outputs.

        A choice that fails ends with the reason as its text.
        """
        _, singles = output.unpack()
        pieces = [c.put(single) for c, single in zip(self._choices, singles, strict=True)]
        return [piece for piece in pieces if piece is not None]


class _Choice:
    def __init__(self, tokenizer: Tokenizer, index: int) -> None:
        self._index = index
        self._branch = BranchText(tokenizer)
        self._logprobs: list[str] | None = None

    def put(self, single: SingleRequestStreamOutput) -> ChoicePiece | None:
        """None when there is nothing to show; log-probabilities wait for their text then."""
        if single.delta_logprob_json_strs is not None:
            self._logprobs = (self._logprobs or []) + single.delta_logprob_json_strs
        text = self._branch.put(single)
        if single.finish_reason == "error":
            text = single.error or "the request failed"
        if not text and single.finish_reason is None:
            return None
        logprobs = self._logprobs
        self._logprobs = None if logprobs is None else []
        return ChoicePiece(self._index, text, single.finish_reason, logprobs)
