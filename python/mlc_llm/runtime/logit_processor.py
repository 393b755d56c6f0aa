"""What is to be done to logits before sampling, as arrays for the compiled `edit_logits`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from mlc_llm.runtime.batch import LogitBias, Sampling
from mlc_llm.runtime.logit_bias import check_tokens

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    from mlc_llm.later_numpy import np

Array: TypeAlias = "npt.NDArray[np.generic]"


@dataclass
class Edits:
    """Changes to rows of logits; see `library/signatures.py`."""

    tokens: list[Array] = field(default_factory=list)
    """int64 [n, 2] each: row and token."""
    numbers: list[Array] = field(default_factory=list)
    """float32 [n, 3] each."""
    masks: dict[int, bytes] = field(default_factory=dict)
    """By row."""
    biases: list[tuple[int, LogitBias]] = field(default_factory=list)
    """By row: those that are prepared once a request; carried out before all else."""

    @classmethod
    def of(cls, samplings: Sequence[Sampling]) -> Edits:
        """Of each row: bias, then penalties (repetition; presence and frequency), then its mask."""
        edits = cls()
        for row, sampling in enumerate(samplings):
            if isinstance(sampling.logit_bias, LogitBias):
                if sampling.logit_bias:
                    edits.biases.append((row, sampling.logit_bias))
            elif sampling.logit_bias:
                edits._bias(row, sampling)
            if _is_penalised(sampling):
                edits._penalties(row, sampling)
            if sampling.allowed is not None:
                edits.masks[row] = sampling.allowed
        return edits

    @property
    def rows(self) -> set[int]:
        """Rows that change by anything but `biases`."""
        return {int(place[0, 0]) for place in self.tokens} | self.masks.keys()

    def arrays(self, vocab_size: int) -> list[Array]:
        """`edit_logits`' arguments but the logits. Raises RequestError for unknown token ids."""
        place = np.concatenate([np.zeros((0, 2), np.int64), *self.tokens])
        check_tokens(place[:, 1], vocab_size)
        return [
            place.astype(np.int32),
            np.concatenate([np.zeros((0, 3), np.float32), *self.numbers]),
            np.asarray([*self.masks], np.int32),
            np.frombuffer(b"".join(self.masks.values()), np.int32).reshape(
                len(self.masks), -(-vocab_size // 32)
            ),
        ]

    def _bias(self, row: int, sampling: Sampling) -> None:
        number = self._add(row, sampling.logit_bias)
        number[:, 0] = _array(sampling.logit_bias.values())
        number[:, 1] = 1

    def _penalties(self, row: int, sampling: Sampling) -> None:
        counts = sampling.token_counts
        number = self._add(row, counts)
        number[:, 1] = sampling.repetition_penalty
        number[:, 2] = _array(counts.values()) * np.float32(sampling.frequency_penalty)
        number[:, 2] += np.float32(sampling.presence_penalty)

    def _add(self, row: int, tokens: Collection[int]) -> npt.NDArray[np.float32]:
        """Room for the numbers of so many edits, zero so far."""
        place = np.full((len(tokens), 2), row, np.int64)
        place[:, 1] = np.fromiter(tokens, np.int64, len(tokens))
        self.tokens.append(place)
        number = np.zeros((len(tokens), 3), np.float32)
        self.numbers.append(number)
        return number


def _is_penalised(sampling: Sampling) -> bool:
    return bool(sampling.token_counts) and (
        sampling.presence_penalty != 0
        or sampling.frequency_penalty != 0
        or sampling.repetition_penalty != 1
    )


def _array(values: Collection[float]) -> npt.NDArray[np.float32]:
    return np.fromiter(values, np.float32, len(values))
