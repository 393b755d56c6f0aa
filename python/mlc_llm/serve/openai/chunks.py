"""Makes chunks of a streamed answer of an engine's outputs: the same for every front end.

A chunk is made once. A front end gives it to Python as it is, writes it as JSON (`chunk_json`), or
collects the chunks into a whole answer (`answers`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from mlc_llm.errors import RequestError
from mlc_llm.protocol.error_protocol import ErrorBody, ErrorResponse
from mlc_llm.serve.data import FinishReason, RequestStreamOutput, SingleRequestStreamOutput
from mlc_llm.serve.metrics import zero_usage_json
from mlc_llm.serve.openai.tools.answer_reader import AnswerReader
from mlc_llm.serve.openai.tools.reading import CallPiece, Reading, joined
from mlc_llm.serve.stream import SequenceText
from mlc_llm.tokenizers import Tokenizer

__all__ = [
    "REQUEST_FAILED",
    "AnswerStream",
    "CallPiece",
    "ChoicePiece",
    "Chunk",
    "MakeReader",
    "check_failure",
    "no_reader",
    "refusal_chunks",
]

MakeReader = Callable[[], AnswerReader | None]

REQUEST_FAILED = "request_error"
"""The `type` of an error that ends a request which the engine had accepted."""


class ChoicePiece(NamedTuple):
    """The news of one choice."""

    choice: int
    text: str
    finish_reason: FinishReason | None
    logprobs: list[str] | None
    """JSON texts, one for each token since the choice's last piece. None if not asked for."""
    reasoning: str = ""
    """What the model thinks before it answers."""
    calls: Sequence[CallPiece] = ()
    stop_str: str | None = None
    """The stop string that ended the choice. None if something else did."""


class Chunk(NamedTuple):
    """One item of a stream: the news of its choices, or the usage."""

    pieces: Sequence[ChoicePiece]
    error: ErrorBody | None = None
    """The reason, if the choices end with `error`."""
    usage_json: str | None = None
    """Only the last chunk of a request has it. That chunk has no pieces."""
    prompt_logprobs: Sequence[str] | None = None
    """JSON texts, one for each token of the prompt. The first chunk of a request has them, if they
    were asked for; it may have no pieces."""
    embedding: Sequence[float] | None = None
    """The hidden vector behind the prompt, if that was asked for."""


def check_failure(chunk: Chunk, request_id: str) -> None:
    """Raises `RequestError` if the request has failed."""
    if chunk.error is not None:
        raise RequestError(f"request {request_id} failed: {chunk.error.message}")


def no_reader() -> None:
    """All the text of an answer is the answer."""


class AnswerStream:
    """The growing texts of the choices of one request."""

    def __init__(self, tokenizer: Tokenizer, n: int, reader: MakeReader | None = None) -> None:
        """reader: makes a reader for each choice, when its first output comes."""
        self._choices = [_Choice(tokenizer, i, reader or no_reader) for i in range(n)]

    def put(self, output: RequestStreamOutput) -> Chunk | None:
        """The chunk of an output. None if there is nothing to show yet.

        It has the choices with new text or an end. The text of a choice that fails is the reason.
        """
        if output.request_final_usage_json_str is not None:
            return Chunk((), None, self._usage(output.request_final_usage_json_str))
        _, singles = output.unpack()
        pieces = [c.put(single) for c, single in zip(self._choices, singles, strict=True)]
        shown = [piece for piece in pieces if piece is not None]
        if output.error is not None:
            return Chunk(shown, ErrorBody(message=_utf8(output.error), type=REQUEST_FAILED))
        prompt_logprobs, embedding = output.prompt_logprob_json_strs, output.embedding
        if not shown and prompt_logprobs is None:
            return None
        return Chunk(shown, prompt_logprobs=prompt_logprobs, embedding=embedding)

    def _usage(self, usage_json: str) -> str:
        """The usage, with the tokens of the thoughts."""
        tokens = sum(choice.reasoning_tokens for choice in self._choices)
        details = {"completion_tokens_details": {"reasoning_tokens": tokens}}
        return json.dumps({**json.loads(usage_json), **details})


def refusal_chunks(error: Exception) -> list[Chunk]:
    """All chunks of a request that is refused: one choice with an error, whose text is the reason,
    and a usage of zeros."""
    body = ErrorResponse.of(error).error
    body = body.model_copy(update={"message": _utf8(body.message or type(error).__name__)})
    reason = ChoicePiece(0, body.message, "error", None)
    return [Chunk([reason], body), Chunk((), None, zero_usage_json())]


class _Choice:
    def __init__(self, tokenizer: Tokenizer, index: int, make_reader: MakeReader) -> None:
        self._index = index
        self._sequence = SequenceText(tokenizer)
        self._logprobs: list[str] | None = None
        self._make_reader: MakeReader | None = make_reader
        self._reader: AnswerReader | None = None
        self.reasoning_tokens = 0

    def put(self, single: SingleRequestStreamOutput) -> ChoicePiece | None:
        """None if there is nothing to show. Then log-probabilities wait for the next piece."""
        if single.delta_logprob_json_strs is not None:
            self._logprobs = (self._logprobs or []) + single.delta_logprob_json_strs
        if self._make_reader is not None:
            self._reader, self._make_reader = self._make_reader(), None
        reason = single.finish_reason
        if self._reader is None or reason == "error":
            found = Reading(self._sequence.put(single))
        else:
            found = self._read(self._reader, single)
            reason = "tool_calls" if reason == "stop" and self._reader.has_called else reason
        if reason == "error":
            found = Reading(single.error or "the request failed")
        if not any(found) and reason is None:
            return None
        logprobs = self._logprobs
        self._logprobs = None if logprobs is None else []
        return ChoicePiece(
            self._index,
            found.text,
            reason,
            logprobs,
            found.reasoning,
            found.calls,
            single.stop_str,
        )

    def _read(self, reader: AnswerReader, single: SingleRequestStreamOutput) -> Reading:
        """Token by token while the model thinks, to count the tokens of the thoughts. What is cut
        off for a stop string is a part of the last token."""
        found, ids = Reading(), single.delta_token_ids
        last = 0 if single.finish_reason is None else 1
        while len(ids) > last and reader.may_think:
            one = SingleRequestStreamOutput(ids[:1], None, None, None, "")
            found, ids = joined(found, self._counted(reader, one)), ids[1:]
        has_ended = self._sequence.finish_reason is not None
        found = joined(found, self._counted(reader, replace(single, delta_token_ids=ids)))
        if has_ended or single.finish_reason is None:
            return found
        is_cut = single.finish_reason != "stop" or single.stop_str is not None
        return joined(found, reader.finish(is_cut=is_cut))

    def _counted(self, reader: AnswerReader, single: SingleRequestStreamOutput) -> Reading:
        """The news of one token, which may be a thought's; or of more, or none, which are not."""
        counts = reader.may_think and len(single.delta_token_ids) == 1
        before = reader.is_thinking
        found = reader.put(self._sequence.put(single))
        self.reasoning_tokens += counts and (before or reader.is_thinking)
        return found


def _utf8(text: str) -> str:
    """The text with "?" for a lone surrogate, which a user's text may have and UTF-8 cannot
    write."""
    return text.encode("utf-8", "replace").decode()
