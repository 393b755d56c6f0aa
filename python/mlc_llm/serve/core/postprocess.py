"""What one sampled token means for its sequence: which tokens may be shown, and whether it ends."""

from __future__ import annotations

from collections import abc
from typing import TYPE_CHECKING

from mlc_llm.runtime.batch import BatchRow, Sampled
from mlc_llm.serve.core.logprobs import logprob_json
from mlc_llm.serve.core.policy import RequestPolicy
from mlc_llm.serve.core.sequence import RequestState, Sequence
from mlc_llm.serve.core.sequence_state import Status
from mlc_llm.serve.data import RequestStreamOutput
from mlc_llm.tokenizers import Tokenizer

if TYPE_CHECKING:
    from mlc_llm.serve.core.grammar.matcher import GrammarMatcher

MAX_JUMP = 32
"""Most tokens that a grammar adds at once: more work would delay the other streams."""


class Postprocessor:
    """The rules that end a sequence: stop token, stop string, policy, `max_tokens`, length.

    A stop token is never shown; the token that completes a grammar's text is. A stop string may
    begin inside a token; then the bytes from there on are cut (`cut_bytes`). Tokens that may still
    turn out to begin one are held back.
    """

    def __init__(
        self, tokenizer: Tokenizer, max_single_sequence_length: int, policy: RequestPolicy
    ) -> None:
        self._tokenizer, self._vocab_size = tokenizer, tokenizer.vocab_size
        self._policy = policy
        self.max_single_sequence_length = max_single_sequence_length

    def fault(self, sampled: Sampled) -> str | None:
        """Why the request cannot go on with this sample; None if it can.

        Models often have more rows than their tokenizer has tokens; the other rows mean nothing.
        """
        if sampled.error is None and not 0 <= sampled.token_id < self._vocab_size:
            return f"the model chose token {sampled.token_id}, which its tokenizer does not have"
        return sampled.error

    def knows(self, token_ids: abc.Sequence[int]) -> bool:
        """None of them is a fault."""
        return min(token_ids) >= 0 and max(token_ids) < self._vocab_size

    def take_scores(
        self, sequence: Sequence, row: BatchRow, found: abc.Sequence[Sampled]
    ) -> tuple[str | None, abc.Sequence[Sampled]]:
        """Take in the scores at the start of what was found for a row. Returns why the request
        cannot go on, if it cannot, and the other samples."""
        if row.scoring is None:
            return (self.fault(found[0]) if found else None), found
        count = len(row.scoring.next_ids)
        error = next((one.error for one in found[:count] if one.error is not None), None)
        if error is not None:
            return error, ()
        assert sequence.scores is not None
        sequence.scores.put(found[:count])
        return (self.fault(found[count]) if found[count:] else None), found[count:]

    def commit_row(
        self,
        sequence: Sequence,
        draft_tokens: abc.Sequence[int],
        samples: abc.Sequence[Sampled],
    ) -> Status | None:
        """Take in a row's samples, until one differs from the draft token at its position.

        The first sample has no fault. A later one with a fault is left to a later step, since a
        wrong draft token may be the cause. Returns and raises as `commit`.
        """
        if draft_tokens and self._shows_tokens(sequence):
            return self._commit_shown(sequence, self._said(draft_tokens, samples))
        for expected, sampled, following in zip(draft_tokens, samples, samples[1:], strict=False):
            known = sequence.known
            end = self.commit(sequence, sampled)
            is_next = sampled.token_id == expected and sequence.known == known + 1
            if end is not None or not is_next or self.fault(following) is not None:
                return end
        return self.commit(sequence, samples[-1])

    def commit(self, sequence: Sequence, sampled: Sampled) -> Status | None:
        """Take in the token, and the tokens that the grammar forces behind it.

        Returns how the sequence ends, if it does. Raises `RequestError` when its grammar cannot be
        followed any further.
        """
        end = self._take(sequence, sampled)
        grammar = sequence.grammar
        if end is None and grammar is not None and sequence.request.may_jump:
            end = self._jump(sequence, grammar)
        if end is None and grammar is not None:
            grammar.mask()  # raises here, where it is known whose grammar fails
        return end

    def _shows_tokens(self, sequence: Sequence) -> bool:
        """Its tokens are shown at once, and nothing else depends on them but how it ends."""
        request = sequence.request
        is_plain = request.is_free and sequence.output.stops is None
        return is_plain and self._policy.by_tokens and not request.config.logprobs

    def _said(
        self, draft_tokens: abc.Sequence[int], samples: abc.Sequence[Sampled]
    ) -> abc.Sequence[int]:
        """The samples' tokens up to the first that differs from the draft or is before a fault."""
        tokens = [one.token_id for one in samples]
        for i, expected in enumerate(draft_tokens, 1):
            if tokens[i - 1] != expected or self.fault(samples[i]) is not None:
                return tokens[:i]
        return tokens

    def _commit_shown(self, sequence: Sequence, tokens: abc.Sequence[int]) -> Status | None:
        """As `commit` for each of the tokens, of a sequence that shows its tokens."""
        left = sequence.left(self.max_single_sequence_length)
        shown = tokens = tokens[:left]
        end = Status.LENGTH if len(tokens) == left else None
        stops = sequence.request.stop_token_ids
        if not stops.isdisjoint(tokens):
            at = next(i for i, token in enumerate(tokens) if token in stops)
            shown, tokens, end = tokens[:at], tokens[: at + 1], Status.STOPPED
        sequence.generated += tokens
        sequence.output.delta_ids += shown
        return end

    def release_all(self, sequence: Sequence) -> None:
        """Show what was held back: no stop string can follow any more."""
        stops = sequence.output.stops
        if stops is not None:
            _show(sequence, stops.finish())

    def _jump(self, sequence: Sequence, grammar: GrammarMatcher) -> Status | None:
        """Take in at most `MAX_JUMP` tokens that come next whatever the model says.

        They are known and not computed, as the tokens of a prompt are.
        """
        for _ in range(MAX_JUMP):
            token_id = grammar.forced_token()
            if token_id is None:
                return None
            sequence.request.metrics.jump_forward_tokens += 1
            end = self._take(sequence, Sampled(token_id))
            if end is not None:
                return end
        return None

    def _take(self, sequence: Sequence, sampled: Sampled) -> Status | None:
        token_id, request = sampled.token_id, sequence.request
        sequence.commit(token_id)
        grammar = sequence.grammar
        # The model may end a grammar's text with a token even where stop tokens do not count.
        if token_id in request.stop_token_ids or (grammar is not None and grammar.ends(token_id)):
            self.release_all(sequence)
            return Status.STOPPED
        if grammar is not None:
            grammar.accept(token_id)
        if request.config.logprobs:
            sequence.output.held_logprobs.append(logprob_json(sampled, self._tokenizer))
        if self._completes_stop(sequence, token_id):
            return Status.STOPPED
        end = self._other_end(sequence)
        if end is not None:
            self.release_all(sequence)
        return end

    def _completes_stop(self, sequence: Sequence, token_id: int) -> bool:
        """Show what can be shown by now; True when a stop string is complete."""
        output = sequence.output
        if output.stops is None:
            _show(sequence, [token_id])
            return False
        _show(sequence, output.stops.put(token_id))
        output.cut_bytes = output.stops.cut_bytes
        return output.stops.stop_triggered

    def _other_end(self, sequence: Sequence) -> Status | None:
        if self._policy.is_complete(sequence):
            return Status.STOPPED
        max_tokens = sequence.request.config.max_tokens
        if 0 <= max_tokens <= len(sequence.generated):
            return Status.LENGTH
        is_full = sequence.known >= self.max_single_sequence_length
        return Status.LENGTH if is_full else None


def take_output(request: RequestState) -> RequestStreamOutput | None:
    """What the sequences have to show since the last call; None when that is nothing."""
    tokens, logprobs, reasons, cut, stops = [], [], [], [], []
    prompt_logprobs = None if request.scores is None else request.scores.take()
    has_news = prompt_logprobs is not None
    for sequence in request.sequences:
        output, is_over = sequence.output, sequence.progress.status.is_end
        has_ended = is_over and not output.is_reported
        has_news = has_news or has_ended or bool(output.delta_ids)
        tokens.append(output.delta_ids)
        logprobs.append(output.delta_logprobs)
        reasons.append(sequence.finish_reason if has_ended else None)
        cut.append(output.cut_bytes if has_ended else 0)
        stops.append(output.stop_str if has_ended else None)
        output.delta_ids, output.delta_logprobs, output.is_reported = [], [], is_over
    if not has_news:
        return None
    return RequestStreamOutput(
        request.request_id,
        group_delta_token_ids=tokens,
        group_delta_logprob_json_strs=logprobs if request.config.logprobs else None,
        group_finish_reason=reasons,
        group_cut_bytes=cut,
        group_stop_strs=stops,
        error=request.error,
        prompt_logprob_json_strs=prompt_logprobs,
        embedding=request.embedding,
    )


def _show(sequence: Sequence, token_ids: abc.Sequence[int]) -> None:
    """Put tokens into the next output, with the log-probabilities that are held for them."""
    output = sequence.output
    output.delta_ids.extend(token_ids)
    if sequence.request.config.logprobs:
        output.delta_logprobs.extend(output.held_logprobs.popleft() for _ in token_ids)
