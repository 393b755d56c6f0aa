"""The log-probabilities of a prompt's own tokens, gathered while the prompt is computed."""

from __future__ import annotations

from collections.abc import Sequence

from mlc_llm.runtime.batch import Sampled, Scoring
from mlc_llm.serve.core.logprobs import logprob_json, unscored_json
from mlc_llm.tokenizers import Tokenizer


class PromptScores:
    """The scores of one request. The first token has none: nothing comes before it."""

    def __init__(self, prompt: Sequence[int], top: int, tokenizer: Tokenizer) -> None:
        """top: how many of the most likely tokens are reported at each place."""
        self._prompt, self._top, self._tokenizer = prompt, top, tokenizer
        self._texts = [unscored_json(prompt[0], tokenizer)]
        self._count = 1
        """Tokens that have their text, also when the texts were taken."""
        self._is_given = False

    @property
    def is_complete(self) -> bool:
        return self._count == len(self._prompt)

    def most_tokens(self, computed: int, scores: int) -> int:
        """How many tokens a row behind `computed` ones may have, so that it scores at most so
        many. Tokens that were scored before a preemption are not scored again."""
        if len(self._prompt) - self._count <= scores:
            return len(self._prompt)
        return max(self._count - 1 - computed, 0) + scores

    def scoring(self, computed: int, count: int) -> Scoring | None:
        """What a row of `count` tokens behind `computed` ones has to score."""
        first = max(self._count - 1 - computed, 0)
        next_ids = self._prompt[computed + first + 1 : computed + count + 1]
        return Scoring(first, next_ids, self._top) if next_ids else None

    def put(self, scores: Sequence[Sampled]) -> None:
        """Take in the scores of the next tokens."""
        self._texts += [logprob_json(one, self._tokenizer) for one in scores]
        self._count += len(scores)

    def take(self) -> list[str] | None:
        """All of them, as JSON texts: once, when they are complete. They are not kept."""
        if self._is_given or not self.is_complete:
            return None
        self._is_given = True
        taken, self._texts = self._texts, []
        return taken
