"""From logits to tokens: log-probabilities, edits and the draw, a compiled function each.

Rows of logits stay on the device; only ids and the log-probabilities that were asked for come back.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_
from typing import TYPE_CHECKING, NamedTuple

from mlc_llm.library.signatures import (
    CHOSEN_LOGITS,
    EDIT_LOGITS,
    KEEP_LOGITS,
    MASK_BITS,
    NO_TOKEN,
    SAMPLE,
    TOP_TOKENS,
)
from mlc_llm.runtime.batch import Sampled, Sampling
from mlc_llm.runtime.library import Library
from mlc_llm.runtime.logit_bias import PreparedBias
from mlc_llm.runtime.logit_processor import Edits
from mlc_llm.runtime.tables import table

if TYPE_CHECKING:
    from mlc_llm.backends.base import Device, DeviceTensor, Table

NOT_FINITE = "the model produced logits that are not finite"
BELOW_ONE = 1 - 2**-24
"""The largest float32 below 1: random numbers above it would be rounded to 1."""


@dataclass(slots=True)
class Choice:
    """How tokens are chosen from rows of logits, ready for compiled code before these exist."""

    samplings: Sequence[Sampling]
    tables: list[Table]
    """`sample`'s options and top_k; rows for `top_tokens` if any; `edit_logits`' if any."""
    asked: Sequence[int]
    """Rows of which log-probabilities are wanted."""
    biases: list[tuple[int, PreparedBias]]
    """By row; carried out before the other edits."""
    is_edited: bool
    """There are others."""

    @classmethod
    def of(cls, samplings: Sequence[Sampling], vocab_size: int, device: Device) -> Choice:
        """Raises RequestError for an edit of a token that is not in the vocabulary."""
        options, top_k, asked = array("f"), array("i"), array("i")
        for i, one in enumerate(samplings):
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
        return cls(samplings, tables, asked, biases, bool(edits.rows))

    def is_for(self, samplings: Sequence[Sampling]) -> bool:
        """Whether these are the very samplings that it was made of."""
        return len(samplings) == len(self.samplings) and all(map(is_, samplings, self.samplings))


class Drawn(NamedTuple):
    """Tensors on the device, which may still be computed."""

    tokens: DeviceTensor | None
    """int32, a row; None where nothing was sampled."""
    top: Sequence[DeviceTensor] | None
    """What `top_tokens` gave for the rows that were asked for; None where there are none."""
    logits: DeviceTensor | None
    """float32, of the chosen token of each of these rows, as the model gave it."""


class Sampler:
    """The functions of a model library that choose tokens."""

    def __init__(self, library: Library) -> None:
        self._vocab_size = vocab_size = library.metadata.vocab_size
        words = -(-vocab_size // MASK_BITS)
        self._no_masks = [library.device.zeros(shape, "int32") for shape in ((0,), (0, words))]
        self._top_tokens, self._edit = library[TOP_TOKENS], library[EDIT_LOGITS]
        self._keep, self._chosen = library[KEEP_LOGITS], library[CHOSEN_LOGITS]
        self._sample, self._read = library[SAMPLE], library.device.read

    def draw(self, logits: DeviceTensor, choice: Choice, tensors: Sequence[DeviceTensor]) -> Drawn:
        """Choose a token for each row of logits [s, padded_vocab], which are edited in place.

        tensors: those of `choice.tables`.
        """
        if not choice.samplings:
            return Drawn(None, None, None)
        options, top_k, *rest = tensors
        if not choice.asked:
            self._change(logits, choice, rest)
            return Drawn(self._sample(logits, options, top_k), None, None)
        # Log-probabilities are those of the raw logits, so they are taken before any edit.
        rows = rest.pop(0)
        top, kept = self._top_tokens(logits, rows), self._keep(logits, rows)
        self._change(logits, choice, rest)
        tokens = self._sample(logits, options, top_k)
        return Drawn(tokens, top, self._chosen(kept, rows, tokens))

    def _change(self, logits: DeviceTensor, choice: Choice, edits: Sequence[DeviceTensor]) -> None:
        for row, bias in choice.biases:
            self._edit(*bias.tensors(row), *self._no_masks, logits)
        if choice.is_edited:
            self._edit(*edits, logits)

    def read(self, choice: Choice, drawn: Drawn) -> list[Sampled]:
        """What was drawn, in the order of the samplings. Nothing that compiled code says is used as
        an index unchecked."""
        if drawn.tokens is None:
            return []
        sampled = [self._sampled(token) for token in self._read(drawn.tokens).tolist()]
        if drawn.top is not None:
            self._add_logprobs(sampled, choice, drawn)
        return sampled

    def _add_logprobs(self, sampled: list[Sampled], choice: Choice, drawn: Drawn) -> None:
        assert drawn.top is not None
        ids, logprobs, total = map(self._read, drawn.top)
        found = (ids, logprobs, self._read(drawn.logits) - total)
        lists = (values.tolist() for values in found)
        for i, ids, logprobs, logprob in zip(choice.asked, *lists, strict=True):
            one, count = sampled[i], choice.samplings[i].top_logprobs
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
