"""Completion calls, the older API: a prompt is continued as it stands, without a chat template."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mlc_llm.errors import ContextLengthExceeded, InvalidField
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.protocol.openai_api_protocol import (
    CompletionLogProbs,
    CompletionRequest,
    CompletionResponse,
    CompletionResponseChoice,
    UsageInfo,
)
from mlc_llm.record import record
from mlc_llm.serve.data import FinishReason, TokenData
from mlc_llm.serve.openai.answers import GatheredChoice
from mlc_llm.serve.openai.calls import Call, Part
from mlc_llm.serve.openai.chunks import ChoicePiece, Chunk, check_failure
from mlc_llm.serve.openai.completion_logprobs import TokenLists, joined
from mlc_llm.serve.openai.requests import ChatModel, warn_of_ignored
from mlc_llm.serve.request import Request

Prompt = str | list[int]


def completion_call(
    request: CompletionRequest, request_id: str, model: ChatModel
) -> CompletionCall:
    """The call of a request. With several prompts, each is a request of its own to the engine, and
    its choices follow those of the prompt before. Raises `UserError`."""
    _check(request)
    config = request.generation_config().merged_over(model.defaults)
    prompts, model = request.prompts, model.named(request.model)
    ids = [request_id if len(prompts) == 1 else f"{request_id}-{i}" for i in range(len(prompts))]
    parts = [
        Part(one, config.n, _Making(one, prompt, config, model, request.prompt_logprobs))
        for one, prompt in zip(ids, prompts, strict=True)
    ]
    echoes = [_shown(prompt, model) if request.echo else "" for prompt in prompts]
    head = CompletionHead(request_id, request.model or "", config.n, echoes, model.fingerprint)
    streamed = CompletionChunks(head, include_usage=request.include_usage)
    counted = "n" if len(parts) == 1 else "prompt"
    return CompletionCall(parts, streamed, WholeCompletion(head), counted=counted)


def _check(request: CompletionRequest) -> None:
    """Raises `InvalidField` for what this version cannot do."""
    if request.suffix:
        raise InvalidField("suffix", request.suffix, "text cannot be inserted before a suffix")
    warn_of_ignored(request)


class _Making:
    """Makes the engine's request of one prompt."""

    def __init__(
        self,
        request_id: str,
        prompt: Prompt,
        config: GenerationConfig,
        model: ChatModel,
        prompt_logprobs: int | None,
    ) -> None:
        self._request_id, self._prompt = request_id, prompt
        self._config, self._model, self._prompt_logprobs = config, model, prompt_logprobs

    def __call__(self) -> Request:
        """Raises `InvalidField`, `ContextLengthExceeded`."""
        model, prompt = self._model, self._prompt
        if isinstance(prompt, str):
            model.tokenizer.check_size([prompt], model.context)
        ids = model.tokenizer.encode_prompt(prompt) if isinstance(prompt, str) else prompt
        if len(ids) >= model.context:
            raise ContextLengthExceeded(len(ids), model.context)
        return Request(
            self._request_id,
            [TokenData(ids)],
            self._config,
            model.load_id,
            prompt_logprobs=self._prompt_logprobs,
            adapter=model.adapter,
        )


def _shown(prompt: Prompt, model: ChatModel) -> str:
    return prompt if isinstance(prompt, str) else model.tokenizer.decode(prompt)


class CompletionHead:
    """What all chunks of a call have in common."""

    def __init__(
        self, request_id: str, model: str, n: int, echoes: Sequence[str], fingerprint: str
    ) -> None:
        """n: choices of a prompt. echoes: the text before the choices of each prompt. fingerprint:
        of the engine."""
        self._fingerprint = fingerprint
        self.request_id, self.n, self.echoes = request_id, n, echoes
        self._model, self.created = model, int(time.time())

    def response(
        self, choices: list[CompletionResponseChoice], usage: UsageInfo | None
    ) -> CompletionResponse:
        return CompletionResponse(
            id=self.request_id,
            choices=choices,
            created=self.created,
            model=self._model,
            system_fingerprint=self._fingerprint,
            usage=usage,
        )


class _Usages:
    """The sum of the usages of all parts."""

    def __init__(self, parts: int) -> None:
        self._left, self._sum = parts, UsageInfo()

    def put(self, usage_json: str) -> UsageInfo | None:
        """The sum, once all parts have ended."""
        one, total = UsageInfo.model_validate_json(usage_json), self._sum
        self._left -= 1
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            setattr(total, name, getattr(total, name) + getattr(one, name))
        details = one.prompt_tokens_details
        if details is not None:
            before = total.prompt_tokens_details
            cached = details.cached_tokens + (before.cached_tokens if before else 0)
            total.prompt_tokens_details = details.model_copy(update={"cached_tokens": cached})
        total.extra = one.extra  # the measurements of the last part
        return total if self._left == 0 else None


class CompletionPiece(NamedTuple):
    """The news of one choice."""

    choice: int
    text: str
    logprobs: CompletionLogProbs | None
    finish_reason: FinishReason | None


class CompletionChunks:
    """Makes the chunks of one call."""

    def __init__(self, head: CompletionHead, *, include_usage: bool) -> None:
        self.head, self._include_usage = head, include_usage
        self._usages = _Usages(len(head.echoes))
        self._prompt_logprobs: dict[int, Sequence[str]] = {}
        """Of each part that has them, until all its choices have begun."""
        self._lists: dict[int, TokenLists] = {}
        """Of each choice that has begun."""

    def of(self, part: int, chunk: Chunk) -> Iterator[CompletionResponse]:
        """Nothing for a usage that was not asked for. Raises `RequestError` for a failure."""
        pieces = self.pieces(part, chunk)
        if pieces:
            yield self.head.response([_response_choice(one) for one in pieces], None)
        usage = self.usage(chunk)
        if usage is not None:
            yield self.head.response([], usage)

    def pieces(self, part: int, chunk: Chunk) -> list[CompletionPiece]:
        """The news of the choices. Raises `RequestError` for a failure."""
        check_failure(chunk, self.head.request_id)
        if chunk.prompt_logprobs is not None:
            self._prompt_logprobs[part] = chunk.prompt_logprobs
        pieces = [self._piece(part, one) for one in chunk.pieces]
        first, n = part * self.head.n, self.head.n
        if part in self._prompt_logprobs and self._lists.keys() >= set(range(first, first + n)):
            del self._prompt_logprobs[part]
        return pieces

    def usage(self, chunk: Chunk) -> UsageInfo | None:
        """The sum, in the last chunk of all, if it was asked for."""
        total = None if chunk.usage_json is None else self._usages.put(chunk.usage_json)
        return total if self._include_usage else None

    def _piece(self, part: int, piece: ChoicePiece) -> CompletionPiece:
        index = part * self.head.n + piece.choice
        if index in self._lists:
            logprobs = _logprobs(self._lists[index], None, "", piece.logprobs)
            return CompletionPiece(index, piece.text, logprobs, piece.finish_reason)
        lists, echo = self._lists.setdefault(index, TokenLists()), self.head.echoes[part]
        logprobs = _logprobs(lists, self._prompt_logprobs.get(part), echo, piece.logprobs)
        return CompletionPiece(index, echo + piece.text, logprobs, piece.finish_reason)


def _response_choice(piece: CompletionPiece) -> CompletionResponseChoice:
    return CompletionResponseChoice(
        finish_reason=piece.finish_reason,
        index=piece.choice,
        text=piece.text,
        logprobs=piece.logprobs,
    )


@record()
class CompletionCall(Call[CompletionResponse, CompletionResponse]):
    """A call of the older API."""

    streamed: CompletionChunks


class WholeCompletion:
    """Collects the whole answer of one call."""

    def __init__(self, head: CompletionHead) -> None:
        self._head, self._usages = head, _Usages(len(head.echoes))
        self._choices = [GatheredChoice(echo) for echo in head.echoes for _ in range(head.n)]
        self._prompt_logprobs: dict[int, Sequence[str]] = {}
        self._usage: UsageInfo | None = None

    def put(self, part: int, chunk: Chunk) -> None:
        """Raises `RequestError` if a request failed."""
        check_failure(chunk, self._head.request_id)
        if chunk.prompt_logprobs is not None:
            self._prompt_logprobs[part] = chunk.prompt_logprobs
        for piece in chunk.pieces:
            self._choices[part * self._head.n + piece.choice].put(piece)
        if chunk.usage_json is not None:
            self._usage = self._usages.put(chunk.usage_json)

    def response(self) -> CompletionResponse:
        """The answer; all requests must have ended."""
        choices = [self._choice(i, choice) for i, choice in enumerate(self._choices)]
        return self._head.response(choices, self._usage)

    def _choice(self, index: int, choice: GatheredChoice) -> CompletionResponseChoice:
        part = index // self._head.n
        of_prompt, echo = self._prompt_logprobs.get(part), self._head.echoes[part]
        return CompletionResponseChoice(
            finish_reason=choice.finish_reason,
            index=index,
            text=choice.text,
            logprobs=_logprobs(TokenLists(), of_prompt, echo, choice.logprobs),
        )


def _logprobs(
    lists: TokenLists, of_prompt: Sequence[str] | None, echo: str, tokens: Sequence[str] | None
) -> CompletionLogProbs | None:
    """Those of the prompt, if it is echoed here with them, and of the tokens behind it."""
    if tokens is None and of_prompt is None:
        return None
    first = CompletionLogProbs() if of_prompt is None else lists.of_prompt(of_prompt, echo)
    return joined(first, lists.of_tokens(tokens or ()))
