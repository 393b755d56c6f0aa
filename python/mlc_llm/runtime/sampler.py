"""From logits to tokens: log-probabilities, edits and the draw, a compiled function each.

Rows of logits stay on the device; only ids and the log-probabilities that were asked for come back.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from mlc_llm.library.signatures import (
    CHOSEN_LOGITS,
    EDIT_LOGITS,
    KEEP_LOGITS,
    MASK_BITS,
    NO_TOKEN,
    SAMPLE,
    TOP_TOKENS,
)
from mlc_llm.runtime.batch import Sampled, Sampling, Scoring
from mlc_llm.runtime.decode_rows import Uniforms
from mlc_llm.runtime.library import Library, item
from mlc_llm.runtime.logit_bias import PreparedBias
from mlc_llm.runtime.logit_processor import Edits
from mlc_llm.runtime.tables import table

if TYPE_CHECKING:
    import numpy.typing as npt

    from mlc_llm.backends.device import Device, DeviceTensor, Fetched, Table

Values: TypeAlias = "npt.NDArray[Any]"
NOT_FINITE = "the model produced logits that are not finite"
BELOW_ONE = 1 - 2**-24
"""The largest float32 below 1: random numbers above it would be rounded to 1."""
LIKELY = 3
"""Tensors that `top_tokens` gives."""
EDIT_TABLES = 4
"""Tables that `edit_logits` takes, the logits apart."""
_SCORED = Sampling(temperature=0.0)
"""Of a row of logits from which nothing is drawn: it is only looked at whether they are finite."""


@dataclass(slots=True)
class Choice:
    """How tokens are chosen from rows of logits, ready for compiled code before these exist."""

    samplings: Sequence[Sampling]
    tables: list[Table]
    """`sample`'s options and top_k; rows for `top_tokens` if any; `edit_logits`' if any; rows and
    tokens that are scored if any; rows of which hidden vectors are wanted if any."""
    asked: Sequence[int]
    """Rows of which log-probabilities are wanted."""
    biases: list[tuple[int, PreparedBias]]
    """By row; carried out before the other edits."""
    is_edited: bool
    """There are others."""
    scored: Sequence[tuple[int, int]] = ()
    """The tokens that are scored, each with the number of likely ones that are wanted. Their rows
    of logits come behind those of the samplings."""
    hidden: Sequence[int] = ()
    """Rows of which hidden vectors are wanted."""
    is_plain: bool = field(init=False)
    """Tokens are drawn, and nothing else is done or asked."""

    def __post_init__(self) -> None:
        more = self.is_edited or self.biases or self.asked or self.scored or self.hidden
        self.is_plain = bool(self.samplings) and not more

    @classmethod
    def of(
        cls,
        samplings: Sequence[Sampling],
        vocab_size: int,
        device: Device,
        scorings: Sequence[Scoring] = (),
    ) -> Choice:
        """Raises RequestError for an edit of a token that is not in the vocabulary."""
        options, top_k, asked = array("f"), array("i"), array("i")
        scored = [(token, one.top) for one in scorings for token in one.next_ids]
        for i, one in enumerate([*samplings, *[_SCORED] * len(scored)]):
            options.extend((one.temperature, one.top_p, one.min_p, min(one.uniform, BELOW_ONE)))
            top_k.append(one.top_k)
            if one.top_logprobs >= 0:
                asked.append(i)
        edits = Edits.of(samplings)
        biases = [(row, PreparedBias.of(one, vocab_size, device)) for row, one in edits.biases]
        tables: list[Table] = [(options, 4), (top_k, 0)]
        if asked:
            tables.append((asked, 0))
        if edits.rows:
            tables += map(table, edits.arrays(vocab_size))
        hidden = array("i", [i for i, one in enumerate(samplings) if one.wants_hidden])
        if scored:
            tables += _score_tables(len(samplings), [token for token, _ in scored])
        if hidden:
            tables.append((hidden, 0))
        return cls(samplings, tables, asked, biases, bool(edits.rows), scored, hidden)

    def is_for(self, samplings: Sequence[Sampling]) -> bool:
        """Whether these are all that it was made of, the very same objects."""
        if self.scored or len(samplings) != len(self.samplings):
            return False
        return samplings is self.samplings or all(map(is_, samplings, self.samplings))

    def put(self, uniforms: Uniforms) -> None:
        """Other random numbers, one a row. They are of one step: a later one has others."""
        options, width = self.tables[0]
        numbers = array("f", [min(one, BELOW_ONE) for one in uniforms])
        cast("array[float]", options)[3::width] = numbers


def _score_tables(before: int, tokens: Sequence[int]) -> list[Table]:
    """Rows that are scored, behind `before` others; and of all rows a token, 0 if it is another."""
    rows = array("i", range(before, before + len(tokens)))
    return [(rows, 0), (array("i", [0] * before) + array("i", tokens), 0)]


class Sampler:
    """The functions of a model library that choose tokens."""

    def __init__(self, library: Library) -> None:
        self._vocab_size = vocab_size = library.metadata.vocab_size
        words = -(-vocab_size // MASK_BITS)
        self._no_masks = [library.device.zeros(shape, "int32") for shape in ((0,), (0, words))]
        self._top_tokens, self._edit = library[TOP_TOKENS], library[EDIT_LOGITS]
        self._keep, self._chosen = library[KEEP_LOGITS], library[CHOSEN_LOGITS]
        self._sample, self._fetch = library[SAMPLE], library.device.fetch

    def draw(
        self, logits: DeviceTensor, choice: Choice, tensors: Sequence[DeviceTensor]
    ) -> list[DeviceTensor]:
        """Choose a token for each row of logits [s, padded_vocab], which are edited in place.

        tensors: those of `choice.tables`. Returns what `sampled` reads, which may still be
        computed: the tokens, int32, one a row, if anything was chosen; then what is known of the
        chosen tokens, and of the scored ones, if that is wanted (`_likely`).
        """
        if choice.is_plain:
            return [self._sample(logits, *tensors)]
        if not choice.samplings and not choice.scored:
            return []
        options, top_k, *rest = tensors
        scored = self._likely(logits, rest[-2])(rest[-1]) if choice.scored else []
        # Log-probabilities are those of the raw logits, so they are taken before any edit.
        chosen = self._likely(logits, rest.pop(0)) if choice.asked else None
        self._change(logits, choice, rest)
        tokens = self._sample(logits, options, top_k)
        return [tokens, *([] if chosen is None else chosen(tokens)), *scored]

    def _likely(
        self, logits: DeviceTensor, rows: DeviceTensor
    ) -> Callable[[DeviceTensor], list[DeviceTensor]]:
        """Log-probabilities of some rows of logits, as these are now. Takes a token for each row of
        logits; gives what `top_tokens` gave for the rows, and of each the logit of its token."""
        top, kept = self._top_tokens(logits, rows), self._keep(logits, rows)
        return lambda tokens: [
            *(item(top, i) for i in range(LIKELY)),
            self._chosen(kept, rows, tokens),
        ]

    def _change(self, logits: DeviceTensor, choice: Choice, rest: Sequence[DeviceTensor]) -> None:
        """rest: the tensors of the edits, if there are any, and others behind them."""
        for row, bias in choice.biases:
            self._edit(*bias.tensors(row), *self._no_masks, logits)
        if choice.is_edited:
            self._edit(*rest[:EDIT_TABLES], logits)

    def read(
        self, choice: Choice, drawn: Sequence[DeviceTensor]
    ) -> tuple[list[Sampled], list[Sampled]]:
        """What was drawn, in the order of the samplings, and the scores, in the order of the
        scorings."""
        return self.sampled(choice, self._fetch(drawn))

    def sampled(self, choice: Choice, fetched: Fetched) -> tuple[list[Sampled], list[Sampled]]:
        """The same of what `draw` gave. Nothing that compiled code says is used as an index
        unchecked."""
        if not choice.samplings and not choice.scored:
            fetched.values()  # there are none, but who asks waits for the step
            return [], []
        count = len(choice.samplings) + len(choice.scored)  # a step may be filled up
        found = [self._sampled(token) for token in fetched.numbers()[:count]]
        sampled, scores = found[: len(choice.samplings)], found[len(choice.samplings) :]
        rest = fetched.values()[1:] if choice.asked or choice.scored else ()
        if choice.asked:
            self._add(
                [sampled[i] for i in choice.asked],
                [choice.samplings[i].top_logprobs for i in choice.asked],
                rest,
            )
            rest = rest[LIKELY + 1 :]
        if choice.scored:
            for one, (token, _) in zip(scores, choice.scored, strict=True):
                one.token_id = token
            self._add(scores, [count for _, count in choice.scored], rest)
        return sampled, scores

    def tokens(self, choice: Choice, fetched: Fetched) -> list[int] | None:
        """The tokens of the samplings, where nothing else was asked and all are sound."""
        if choice.asked or choice.scored or choice.hidden:
            return None
        found = fetched.numbers()
        if len(found) > len(choice.samplings):  # a step may be filled up
            del found[len(choice.samplings) :]
        return found if min(found) >= 0 and max(found) < self._vocab_size else None

    def _add(
        self, sampled: Sequence[Sampled], counts: Sequence[int], likely: Sequence[Values]
    ) -> None:
        """Adds the log-probabilities of rows. counts: how many likely tokens each wants. likely:
        ids, log-probabilities and the logs of sums of `top_tokens`, then logits."""
        ids, logprobs, total, logits = likely[: LIKELY + 1]
        found = (ids, logprobs, logits - total)
        lists = (values.tolist() for values in found)
        for one, count, ids, logprobs, logprob in zip(sampled, counts, *lists, strict=True):
            if one.error is None:
                pairs = zip(ids[:count], logprobs[:count], strict=True)
                one.top = tuple(pair for pair in pairs if 0 <= pair[0] < self._vocab_size)
                one.logprob = logprob

    def _sampled(self, token_id: int) -> Sampled:
        if token_id == NO_TOKEN:
            return Sampled(token_id, error=NOT_FINITE)
        if not 0 <= token_id < self._vocab_size:
            words = f"the kernels chose token {token_id} of {self._vocab_size} tokens"
            return Sampled(token_id, error=words)
        return Sampled(token_id)
