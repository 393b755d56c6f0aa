"""Rows that decode, by column, and their tokens: what costs the same for one row and for many.

Both are sequences, of rows and of samples, for everybody who asks row by row. Who knows the columns
makes no object for a row of which only the token is new. He asks by `type(rows) is DecodeRows`:
with an abstract class behind it, `isinstance` is a call of Python each time.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias, overload

from mlc_llm.runtime.batch import GREEDY, KNOWN, BatchRow, Sampled, Sampling

Numbers: TypeAlias = "array[int]"
Uniforms: TypeAlias = Sequence[float]
STAND_IN = (0,)
"""In place of a token that is not known yet."""


class SameRows:
    """What does not change from step to step. Whoever meets the same object again knows that."""

    __slots__ = ("adapters", "indices", "is_drawn", "samplings", "seq_ids", "sizes")

    def __init__(
        self, seq_ids: Sequence[int], samplings: Sequence[Sampling], adapters: Sequence[int]
    ) -> None:
        """samplings: those of every token, but for the random number."""
        self.seq_ids, self.samplings, self.adapters = seq_ids, samplings, array("i", adapters)
        self.sizes = [(seq_id, 1) for seq_id in seq_ids]
        """Of each sequence how many tokens it gets."""
        self.indices = array("i", range(len(seq_ids)))
        """Of the rows."""
        self.is_drawn = any(one.temperature > GREEDY for one in samplings)
        """Some choices read a random number."""


class DecodeRows(Sequence[BatchRow]):
    """Rows of a token and a sampling each."""

    __slots__ = ("chosen_by", "same", "tokens", "uniforms")

    def __init__(
        self,
        same: SameRows,
        uniforms: Uniforms | None,
        tokens: Sequence[int] | None = None,
        chosen_by: Numbers | None = None,
    ) -> None:
        """uniforms: the random number of each row; None: no choice reads one. Either the tokens are
        known, or the rows of the step before that choose them (`BatchRow.chosen_by`)."""
        assert (tokens is None) != (chosen_by is None)
        self.same, self.uniforms, self.tokens, self.chosen_by = same, uniforms, tokens, chosen_by

    def __len__(self) -> int:
        return len(self.same.seq_ids)

    @overload
    def __getitem__(self, index: int) -> BatchRow: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[BatchRow]: ...

    def __getitem__(self, index: int | slice) -> BatchRow | Sequence[BatchRow]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        same, chosen_by = self.same, self.chosen_by
        return BatchRow(
            same.seq_ids[index],
            STAND_IN if self.tokens is None else (self.tokens[index],),
            (self._sampling(index),),
            adapter=same.adapters[index],
            chosen_by=KNOWN if chosen_by is None else chosen_by[index],
        )

    def _sampling(self, index: int) -> Sampling:
        sampling = self.same.samplings[index]
        if self.uniforms is None or sampling.temperature <= GREEDY:
            return sampling
        return replace(sampling, uniform=self.uniforms[index])


class ChosenTokens(Sequence[Sequence[Sampled]]):
    """The samples of rows with one sampling each, all sound, of which only the token is asked."""

    __slots__ = ("ids",)

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> Sequence[Sampled]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Sequence[Sampled]]: ...

    def __getitem__(self, index: int | slice) -> Sequence[Sampled] | Sequence[Sequence[Sampled]]:
        if isinstance(index, slice):
            return [(Sampled(one),) for one in self.ids[index]]
        return (Sampled(self.ids[index]),)
