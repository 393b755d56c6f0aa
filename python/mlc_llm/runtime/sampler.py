"""From logits to tokens: log-probabilities, edits and the draw, a compiled function each."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm_ffi

from mlc_llm.model_lib import EDIT_LOGITS, NO_TOKEN, SAMPLE, TOP_TOKENS
from mlc_llm.runtime.batch import Sampled, Sampling
from mlc_llm.runtime.executable import Executable
from mlc_llm.runtime.logit_bias import PreparedBias, aligned
from mlc_llm.runtime.logit_processor import Edits
from mlc_llm.runtime.staging import Table, table

Array = npt.NDArray[Any]
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
    has_edits: bool
    """Whether there are others."""
    edited: set[int]
    """Rows that change, by either."""

    @classmethod
    def of(cls, samplings: Sequence[Sampling], vocab_size: int) -> Choice:
        """Raises RequestError for an edit of a token that is not in the vocabulary."""
        options, top_k, asked = array("f"), array("i"), array("i")
        for i, one in enumerate(samplings):
            options.extend((one.temperature, one.top_p, one.min_p, min(one.uniform, BELOW_ONE)))
            top_k.append(one.top_k)
            if one.top_logprobs >= 0:
                asked.append(i)
        edits = Edits.of(samplings)
        biases = [(row, PreparedBias.of(bias, vocab_size)) for row, bias in edits.biases]
        edited = edits.rows
        tables: list[Table] = [(options, 4), (top_k, 0)]
        if asked:
            tables.append((asked, 0))
        if edited:
            tables += map(table, edits.arrays(vocab_size))
        changed = edited.union(row for row, _ in biases)
        return cls(samplings, tables, asked, biases, bool(edited), changed)

    def is_for(self, samplings: Sequence[Sampling]) -> bool:
        """Whether these are the very samplings that it was made of."""
        return len(samplings) == len(self.samplings) and all(map(is_, samplings, self.samplings))


class Sampler:
    """The functions of a model library that choose tokens."""

    def __init__(self, executable: Executable, vocab_size: int) -> None:
        """vocab_size: tokens that may be chosen."""
        self._vocab_size = vocab_size
        empty = aligned((0,), np.int32), aligned((0, -(-vocab_size // 32)), np.int32)
        self._no_masks = [tvm_ffi.from_dlpack(one) for one in empty]
        self._top_tokens, self._edit = executable[TOP_TOKENS], executable[EDIT_LOGITS]
        self._sample = executable[SAMPLE]

    def choose(self, logits: Any, choice: Choice, tensors: Sequence[Any]) -> list[Sampled]:
        """A token for each row of logits [s, padded_vocab], which are edited in place.

        tensors: those of `choice.tables`.
        """
        if not choice.samplings:
            return []
        options, top_k, *rest = tensors
        # Log-probabilities are those of the raw logits, so they are taken before any edit.
        raw = self._raw(logits, choice, rest.pop(0)) if choice.asked else {}
        for row, bias in choice.biases:
            self._edit(*bias.tensors(row), *self._no_masks, logits)
        if choice.has_edits:
            self._edit(*rest, logits)
        tokens = np.from_dlpack(self._sample(logits, options, top_k)).tolist()
        count = self._vocab_size
        return [_sampled(token, raw.get(i), count) for i, token in enumerate(tokens)]

    def _raw(self, logits: Any, choice: Choice, rows: Any) -> dict[int, _Raw]:
        """By row, where log-probabilities are asked for."""
        found = (np.from_dlpack(out) for out in self._top_tokens(logits, rows))
        raw, values = {}, np.from_dlpack(logits)
        for i, tokens, logprobs, total in zip(choice.asked, *found, strict=True):
            count = choice.samplings[i].top_logprobs
            top = zip(tokens[:count].tolist(), logprobs[:count].tolist(), strict=True)
            row = values[i].copy() if i in choice.edited else values[i]
            raw[i] = _Raw(
                row, total, tuple(pair for pair in top if 0 <= pair[0] < self._vocab_size)
            )
        return raw


@dataclass(frozen=True)
class _Raw:
    """A row of logits as the model gave them, with what they are relative to."""

    logits: Array
    log_total: np.float32
    top: tuple[tuple[int, float], ...]


def _sampled(token_id: int, raw: _Raw | None, vocab_size: int) -> Sampled:
    """What compiled code gave for a row: nothing that it says is used as an index unchecked."""
    if token_id == NO_TOKEN:
        return Sampled(token_id, error=NOT_FINITE)
    if not 0 <= token_id < vocab_size:
        return Sampled(token_id, error=f"the kernels chose token {token_id} of {vocab_size} tokens")
    if raw is None:
        return Sampled(token_id)
    return Sampled(token_id, float(raw.logits[token_id] - raw.log_total), raw.top)
