"""Where the numbers of a parameter stand in a model's files: tensors, or some of their rows."""

from __future__ import annotations

from typing import NamedTuple

from mlc_llm.record import record


class HeadPart(NamedTuple):
    """One of the parts that each head of a matrix consists of."""

    heads: int
    part: int
    parts: int


class PairedRows(NamedTuple):
    """Rows of query or key heads in a file that pairs neighbouring ones for the rotation.

    The first rows are `heads` heads of `head_dim` rows. In each, the pairs (2i, 2i+1) of the first
    `dim` rows become halves: rows 2i come first, then rows 2i+1.
    """

    heads: int
    head_dim: int
    dim: int


class Slice(NamedTuple):
    """Neighbouring rows or columns."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    def times(self, rows: int) -> Slice:
        """The same of what has so many rows in place of one."""
        return Slice(self.start * rows, self.stop * rows)


@record()
class Source:
    """One tensor of the model, in full or as part of a joined matrix."""

    tensor: str
    shape: tuple[int, ...]
    """As the spec wants it; [experts, rows, columns] is a matrix for each expert."""
    paired: PairedRows | None = None
    """Rows that are to be reordered."""
    first: int = 0
    """The rows from here on are meant,"""
    rows: int | None = None
    """so many of them; None: all."""
    part: HeadPart | None = None
    """Of all these rows, the ones that are meant."""
    kept: Slice | None = None
    """Of these rows, in their order, the ones of a rank; None: all."""
    columns: Slice | None = None
    """The columns of a matrix that a rank has; None: all."""

    @property
    def count(self) -> int:
        """Rows of a matrix, or numbers of a vector, that are meant."""
        if self.kept is not None:
            return self.kept.size
        if self.rows is not None:
            return self.rows
        if len(self.shape) == 1:
            return self.shape[0]
        return self.shape[-2] // (1 if self.part is None else self.part.parts)

    @property
    def width(self) -> int:
        """Columns of a matrix that are meant."""
        return self.shape[-1] if self.columns is None else self.columns.size
