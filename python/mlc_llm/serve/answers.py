"""What `SyncMLCEngine` returns: texts, the reason of each end, tokens and times."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import field
from typing import Any

from mlc_llm.errors import RequestError
from mlc_llm.record import record
from mlc_llm.serve.data import FinishReason, RequestStreamOutput
from mlc_llm.serve.request import Request
from mlc_llm.serve.stream import SequenceText
from mlc_llm.tokenizers import Tokenizer

LONG_ANSWER = 2000
"""Tokens after which the log mentions an answer without `max_tokens`."""

Texts = list[list[str]]
Logprobs = list[list[list[str]] | None]

_log = logging.getLogger(__name__)
_said: set[str] = set()
"""Log lines that this process does not write again."""


@record()
class Usage:
    """The tokens of one request, all its sequences together."""

    prompt_tokens: int
    """Tokens of the prompt, which all sequences share; also those from the prefix cache."""
    completion_tokens: int
    """Tokens that all sequences generated."""
    total_tokens: int
    """The sum of the two."""
    cached_tokens: int = 0
    """Tokens of the prompt that came from the prefix cache."""
    extra: dict[str, Any] = field(default_factory=dict)
    """The metrics of the request: times in seconds, rates in tokens a second."""

    @classmethod
    def from_json(cls, text: str) -> Usage:
        """Read the last output of a request."""
        values = json.loads(text)
        return cls(
            values["prompt_tokens"],
            values["completion_tokens"],
            values["total_tokens"],
            (values.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
            values.get("extra") or {},
        )


class Generated(tuple[Texts, Logprobs]):
    """`texts, logprobs = engine.generate(...)`, with more attributes.

    texts: for each prompt, the texts of its `n` sequences.
    logprobs: for each prompt None, or for each sequence the JSON strings of its tokens.
    finish_reasons: one for each text. `stop`: the answer is whole. `length`: a limit cut it.
    usages: one `Usage` for each prompt.
    """

    finish_reasons: list[list[FinishReason]]
    usages: list[Usage]

    def __new__(
        cls,
        texts: Texts,
        logprobs: Logprobs,
        finish_reasons: list[list[FinishReason]],
        usages: list[Usage],
    ) -> Generated:
        made = super().__new__(cls, (texts, logprobs))
        made.finish_reasons, made.usages = finish_reasons, usages
        return made

    @property
    def texts(self) -> Texts:
        """The first of the two items."""
        return self[0]

    @property
    def logprobs(self) -> Logprobs:
        """The second of the two items."""
        return self[1]

    def __getnewargs__(self) -> tuple[object, ...]:
        return (*self, self.finish_reasons, self.usages)

    def __repr__(self) -> str:
        names = ("texts", "logprobs", "finish_reasons", "usages")
        return f"Generated({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


@record()
class ChatAnswer:
    """The answer to a conversation. Lists have one entry for each of the `n` choices."""

    texts: list[str]
    """The text of each choice."""
    finish_reasons: list[FinishReason]
    """The reason why each choice ended."""
    usage: Usage
    """The tokens and times of all choices together."""
    logprobs: list[list[str]] | None = None
    """JSON strings, one for each token. None if they were not asked for."""

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return self.texts[0]

    @property
    def finish_reason(self) -> FinishReason:
        """The finish reason of the first choice. `stop`: it is whole. `length`: a limit cut it."""
        return self.finish_reasons[0]

    @property
    def message(self) -> dict[str, str]:
        """The first choice as a message. Append it to the conversation."""
        return {"role": "assistant", "content": self.text}


class RequestTexts:
    """A stream callback that collects the outputs of some requests.

    Outputs of other requests go to `others`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        requests: list[Request],
        *,
        context: int,
        others: Callable[[list[RequestStreamOutput]], None] | None,
    ) -> None:
        """context: the most tokens of a prompt and its answer together."""
        self._context = context
        self._others = others
        self._gathered = {one.request_id: _Gathered(one, tokenizer) for one in requests}

    def put(self, outputs: Iterable[RequestStreamOutput]) -> None:
        """Take the outputs of one step."""
        foreign = []
        for output in outputs:
            gathered = self._gathered.get(output.request_id)
            if gathered is None:
                foreign.append(output)
            else:
                gathered.put(output)
                if gathered.is_long:
                    _note_long_answer(self._context)
        if foreign and self._others is not None:
            self._others(foreign)

    def results(self) -> Generated:
        """The results in the order of the requests. Raises `RequestError` if one failed."""
        all_of = list(self._gathered.values())
        for one in all_of:
            one.raise_error()
        return Generated(
            [["".join(sequence.pieces) for sequence in one.sequences] for one in all_of],
            [one.logprobs for one in all_of],
            [one.finish_reasons for one in all_of],
            [one.usage for one in all_of],
        )


class _Gathered:
    """What has come of one request."""

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        self.sequences = [SequenceText(tokenizer) for _ in range(request.n)]
        self.usage = Usage(0, 0, 0)
        self._request = request
        self._tokens = 0
        self._is_bounded = request.generation_config.max_tokens >= 0

    def put(self, output: RequestStreamOutput) -> None:
        if output.request_final_usage_json_str is not None:
            self.usage = Usage.from_json(output.request_final_usage_json_str)
            return
        for sequence, single in zip(self.sequences, output.unpack()[1], strict=True):
            sequence.put(single)
        self._tokens += len(output.group_delta_token_ids[0])

    @property
    def is_long(self) -> bool:
        """There is no limit, and the first sequence has many tokens."""
        return self._tokens >= LONG_ANSWER and not self._is_bounded

    @property
    def logprobs(self) -> list[list[str]] | None:
        wanted = self._request.generation_config.logprobs
        return [sequence.logprobs for sequence in self.sequences] if wanted else None

    @property
    def finish_reasons(self) -> list[FinishReason]:
        """Empty for a special request, since none of its sequences ends."""
        reasons = [sequence.finish_reason for sequence in self.sequences]
        return [reason for reason in reasons if reason is not None]

    def raise_error(self) -> None:
        for sequence in self.sequences:
            if sequence.error is not None:
                raise RequestError(f"request {self._request.request_id} failed: {sequence.error}")


def _note_long_answer(context: int) -> None:
    if "long answer" not in _said:
        _said.add("long answer")
        _log.warning(
            "an answer has %s tokens by now and no max_tokens: it ends when the model ends it, or "
            "at the context of %s tokens; GenerationConfig(max_tokens=...) sets a limit",
            f"{LONG_ANSWER:,}",
            f"{context:,}",
        )
