"""The whole answer to a chat request, collected from the chunks of its stream."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlc_llm.protocol.error_protocol import ErrorBody
from mlc_llm.protocol.openai_api_protocol import (
    ChatCompletionMessage,
    ChatCompletionResponse,
    ChatCompletionResponseChoice,
    ChatFunctionCall,
    ChatToolCall,
    LogProbs,
    LogProbsContent,
    UsageInfo,
)
from mlc_llm.serve.data import FinishReason
from mlc_llm.serve.openai.chunks import ChoicePiece, Chunk


class WholeAnswer:
    """Collects the chunks of one request with `n` choices."""

    def __init__(self, n: int) -> None:
        self._choices = [GatheredChoice() for _ in range(n)]
        self._usage_json: str | None = None
        self.error: ErrorBody | None = None
        """Why the request failed. Then the texts of its choices are no answers."""

    @property
    def is_whole(self) -> bool:
        """Whether the usage has come. Nothing comes after it."""
        return self._usage_json is not None

    def put(self, chunk: Chunk) -> None:
        """Add one chunk."""
        for piece in chunk.pieces:
            self._choices[piece.choice].put(piece)
        self.error = self.error or chunk.error
        self._usage_json = chunk.usage_json or self._usage_json

    def response(
        self, request_id: str, model: str, fingerprint: str = ""
    ) -> ChatCompletionResponse:
        """The answer in OpenAI's shape, with all `n` choices. `is_whole` must be true."""
        assert self._usage_json is not None
        return ChatCompletionResponse(
            id=request_id,
            model=model,
            system_fingerprint=fingerprint,
            choices=[_chat_choice(i, one) for i, one in enumerate(self._choices)],
            usage=UsageInfo.model_validate_json(self._usage_json),
        )


class GatheredChoice:
    """What the pieces of one choice say together, of a chat or a completion."""

    def __init__(self, text: str = "") -> None:
        """text: what stands before the answer."""
        self._pieces = [text]
        self._thoughts: list[str] = []
        self._calls: list[_GatheredCall] = []
        self.finish_reason: FinishReason | None = None
        self.logprobs: list[str] | None = None
        """JSON texts, one for each token; None if they were not asked for."""

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def message(self) -> ChatCompletionMessage:
        """The message of the assistant. Beside calls, no text is null."""
        text, thoughts = self.text, "".join(self._thoughts)
        calls = [call.made() for call in self._calls]
        return ChatCompletionMessage(
            role="assistant",
            content=text or (None if calls else ""),
            reasoning_content=thoughts or None,
            tool_calls=calls or None,
        )

    def put(self, piece: ChoicePiece) -> None:
        """Add the next piece."""
        self._pieces.append(piece.text)
        self._thoughts.append(piece.reasoning)
        self.finish_reason = piece.finish_reason
        if piece.logprobs is not None:
            self.logprobs = self.logprobs or []
            self.logprobs += piece.logprobs
        for call in piece.calls:
            if call.index == len(self._calls):
                self._calls.append(_GatheredCall(call.id or "", call.name or ""))
            self._calls[call.index].arguments.append(call.arguments)


@dataclass
class _GatheredCall:
    """One call, and the pieces of its arguments."""

    id: str
    name: str
    arguments: list[str] = field(default_factory=list)

    def made(self) -> ChatToolCall:
        function = ChatFunctionCall(name=self.name, arguments="".join(self.arguments))
        return ChatToolCall(id=self.id, function=function)


def _chat_choice(index: int, choice: GatheredChoice) -> ChatCompletionResponseChoice:
    return ChatCompletionResponseChoice(
        index=index,
        finish_reason=choice.finish_reason,
        message=choice.message,
        logprobs=None if choice.logprobs is None else chat_logprobs(choice.logprobs),
    )


def chat_logprobs(tokens: list[str]) -> LogProbs:
    """The log-probabilities of tokens. tokens: JSON texts, as the engine writes them."""
    return LogProbs(content=[LogProbsContent.model_validate_json(token) for token in tokens])
