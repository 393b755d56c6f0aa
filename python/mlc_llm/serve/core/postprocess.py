"""What one sampled token means for its branch: which tokens may be shown, and whether it ends."""

from __future__ import annotations

from collections.abc import Sequence

from mlc_llm.runtime.batch import Sampled
from mlc_llm.serve.core.logprobs import logprob_json
from mlc_llm.serve.core.request_state import Branch, RequestState, Status
from mlc_llm.serve.data import RequestStreamOutput
from mlc_llm.tokenizers import Tokenizer

MAX_JUMP = 32
"""Most tokens that a grammar adds at once: so much work stalls no other stream."""


class Postprocessor:
    """The finish rules: stop token, stop string, grammar, `max_tokens`, sequence length.

    A stop token is never shown; the token that completes a grammar's text is. Of the token in which
    a stop string begins, the bytes from there on are cut (`cut_bytes`); tokens that may still turn
    out to begin one are held back.
    """

    def __init__(self, tokenizer: Tokenizer, max_single_sequence_length: int) -> None:
        self._tokenizer, self._vocab_size = tokenizer, tokenizer.vocab_size
        self.max_single_sequence_length = max_single_sequence_length

    def fault(self, sampled: Sampled) -> str | None:
        """Why the request cannot go on with this, if it cannot.

        Models often have more rows than their tokenizer has tokens; the rest means nothing.
        """
        if sampled.error is None and not 0 <= sampled.token_id < self._vocab_size:
            return f"the model chose token {sampled.token_id}, which its tokenizer does not have"
        return sampled.error

    def commit_row(
        self, branch: Branch, drafts: Sequence[int], samples: Sequence[Sampled]
    ) -> Status | None:
        """Take in a row's samples, each as long as the draft before it came true.

        The first has no fault; one further on, which a wrong draft may have brought about, is left
        to a later step. Returns and raises as `commit`.
        """
        for draft, sampled, following in zip(drafts, samples, samples[1:], strict=False):
            known = branch.known
            end = self.commit(branch, sampled)
            is_next = sampled.token_id == draft and branch.known == known + 1
            if end is not None or not is_next or self.fault(following) is not None:
                return end
        return self.commit(branch, samples[-1])

    def commit(self, branch: Branch, sampled: Sampled) -> Status | None:
        """Take the token in, and those that the grammar forces behind it.

        Returns the end that the branch has come to, if it has. Raises `RequestError` when its
        grammar cannot be followed any further.
        """
        end = self._take(branch, sampled)
        if end is None and branch.request.may_jump:
            end = self._jump(branch)
        if end is None and branch.grammar is not None:
            branch.grammar.mask()  # a failure shows here, where it can be told whose it is
        return end

    def _jump(self, branch: Branch) -> Status | None:
        """Take in what follows whatever the model says, so that it need not be asked; bounded.

        These tokens are known and not computed, as those of a prompt are.
        """
        for _ in range(MAX_JUMP):
            token_id = None if branch.grammar is None else branch.grammar.forced_token()
            if token_id is None:
                return None
            branch.request.metrics.jump_forward_tokens += 1
            end = self._take(branch, Sampled(token_id))
            if end is not None:
                return end
        return None

    def _take(self, branch: Branch, sampled: Sampled) -> Status | None:
        token_id, request = sampled.token_id, branch.request
        branch.commit(token_id)
        grammar = branch.grammar
        # The model may end a grammar's text with a token even where stop tokens do not count.
        if token_id in request.stop_token_ids or (grammar is not None and grammar.ends(token_id)):
            self.release_all(branch)
            return Status.STOPPED
        if grammar is not None:
            grammar.accept(token_id)
        if request.config.logprobs:
            branch.held_logprobs.append(logprob_json(sampled, self._tokenizer))
        if self._show(branch, token_id):
            return Status.STOPPED
        end = self._other_end(branch)
        if end is not None:
            self.release_all(branch)
        return end

    def release_all(self, branch: Branch) -> None:
        """Show what was held back: no stop string can follow any more."""
        if branch.stops is not None:
            _release(branch, branch.stops.finish())

    def _show(self, branch: Branch, token_id: int) -> bool:
        """Show what can be shown by now; True when a stop string is complete."""
        if branch.stops is None:
            _release(branch, [token_id])
            return False
        _release(branch, branch.stops.put(token_id))
        branch.cut_bytes = branch.stops.cut_bytes
        return branch.stops.stop_triggered

    def _is_complete(self, branch: Branch) -> bool:
        """Whether the text is whole: nothing can follow in its grammar."""
        return branch.grammar is not None and branch.grammar.is_finished

    def _other_end(self, branch: Branch) -> Status | None:
        if self._is_complete(branch):
            return Status.STOPPED
        max_tokens = branch.request.config.max_tokens
        if 0 <= max_tokens <= len(branch.generated):
            return Status.LENGTH
        is_full = branch.known >= self.max_single_sequence_length
        return Status.LENGTH if is_full else None


def take_output(request: RequestState) -> RequestStreamOutput | None:
    """What the branches have to show since the last call; None when that is nothing."""
    tokens, logprobs, reasons, cut = [], [], [], []
    has_news = False
    for branch in request.branches:
        is_over = branch.status.is_end
        has_ended = is_over and not branch.is_reported
        has_news = has_news or has_ended or bool(branch.delta_ids)
        tokens.append(branch.delta_ids)
        logprobs.append(branch.delta_logprobs)
        reasons.append(branch.finish_reason if has_ended else None)
        cut.append(branch.cut_bytes if has_ended else 0)
        branch.delta_ids, branch.delta_logprobs, branch.is_reported = [], [], is_over
    if not has_news:
        return None
    return RequestStreamOutput(
        request.request_id,
        group_delta_token_ids=tokens,
        group_delta_logprob_json_strs=logprobs if request.config.logprobs else None,
        group_finish_reason=reasons,
        group_cut_bytes=cut,
        error=request.error,
    )


def _release(branch: Branch, token_ids: Sequence[int]) -> None:
    branch.delta_ids.extend(token_ids)
    if branch.request.config.logprobs:
        branch.delta_logprobs.extend(branch.held_logprobs.popleft() for _ in token_ids)
