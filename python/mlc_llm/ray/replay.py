"""What of a request has been given out, so that another replica can go on with it.

Another replica computes the request from its beginning, with the same seed. The same version of
the same model chooses the same tokens, so what comes first has been seen already. It is compared
and left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mlc_llm.serve.data import FinishReason, RequestStreamOutput
from mlc_llm.serve.metrics import counted_usage_json, zero_usage_json

Outputs = list[RequestStreamOutput]


class NotTheSame(Exception):
    """The other replica chose other tokens."""


@dataclass
class _Sequence:
    given: list[int] = field(default_factory=list)
    """Tokens that the reader has."""
    seen: int = 0
    """Tokens of this attempt that the reader had before."""
    is_over: bool = False


class Replay:
    """The outputs of one request, whatever number of replicas computes it."""

    def __init__(self, request_id: str, n: int, prompt_tokens: int) -> None:
        """n: its sequences."""
        self._request_id, self._prompt_tokens = request_id, prompt_tokens
        self._sequences = [_Sequence() for _ in range(n)]
        self._has_prompt_scores = False
        self.is_over = False
        """The usage has been given out."""

    @property
    def has_begun(self) -> bool:
        """Something has been given out."""
        return self._has_prompt_scores or any(one.given or one.is_over for one in self._sequences)

    def begin_again(self) -> None:
        """Another replica computes it now."""
        for one in self._sequences:
            one.seen = 0

    def fresh(self, outputs: Outputs) -> Outputs:
        """What of these outputs the reader does not have. Raises `NotTheSame`."""
        found = []
        for output in outputs:
            output.request_id = self._request_id
            if output.request_final_usage_json_str is not None:
                self.is_over = True
                found.append(output)
            elif self._take(output):
                found.append(output)
        return found

    def end(self, reason: FinishReason, error: str | None = None) -> Outputs:
        """The end of a request that no replica ends. Its tokens so far are counted."""
        if self.is_over:
            return []
        self.is_over = True
        name, sequences = self._request_id, self._sequences
        last = RequestStreamOutput.finished(name, len(sequences), reason, error)
        last.group_finish_reason = [None if one.is_over else reason for one in sequences]
        usage = zero_usage_json()
        if self.has_begun:
            given = sum(len(one.given) for one in sequences)
            usage = counted_usage_json(self._prompt_tokens, given)
        return [last, RequestStreamOutput.usage(name, usage)]

    def _take(self, output: RequestStreamOutput) -> bool:
        """Leave out what the reader has. False: there is nothing else."""
        is_new = output.embedding is not None
        if output.prompt_logprob_json_strs is not None:
            if self._has_prompt_scores:
                output.prompt_logprob_json_strs = None
            else:
                self._has_prompt_scores = is_new = True
        for number, one in enumerate(self._sequences):
            is_new |= self._take_tokens(output, number, one)
        return is_new

    def _take_tokens(self, output: RequestStreamOutput, number: int, one: _Sequence) -> bool:
        tokens = output.group_delta_token_ids[number]
        known = min(len(tokens), len(one.given) - one.seen)
        if tokens[:known] != one.given[one.seen : one.seen + known]:
            raise NotTheSame("another replica chose other tokens; the answer cannot go on")
        one.seen += known
        if known:
            output.group_delta_token_ids[number] = tokens[known:]
            scores = output.group_delta_logprob_json_strs
            if scores is not None:
                scores[number] = scores[number][known:]
        one.given += tokens[known:]
        one.seen += len(tokens) - known
        reason = output.group_finish_reason[number]
        if reason is not None and one.is_over:
            output.group_finish_reason[number] = None
            return len(tokens) > known
        one.is_over |= reason is not None
        return len(tokens) > known or reason is not None
