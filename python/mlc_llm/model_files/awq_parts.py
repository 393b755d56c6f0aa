"""The words, zero points and scales of a matrix that AWQ has quantised, as the files have them."""

from __future__ import annotations

from typing import NamedTuple

from mlc_llm.loader.tensor import Tensor
from mlc_llm.model_files.packed_views import AwqView, Words, floats_of, words_of
from mlc_llm.model_files.tensor_views import Floats, RowsView

_IN_WORD = 8


class AwqParts(NamedTuple):
    """Of a matrix [rows, columns]. Words have eight numbers of neighbouring rows."""

    of: AwqView
    words: Words
    """[columns, rows / 8]."""
    zeros: Words
    """[groups, rows / 8]."""
    scales: Floats
    """[groups, rows]."""

    def give_back(self) -> None:
        """See `Tensor`."""
        self.of.give_back()


def awq_parts(tensor: Tensor) -> AwqParts | None:
    """None for a tensor that is none of AWQ, or whose rows are not in whole words."""
    if isinstance(tensor, AwqView):
        return _rows(tensor, 0, tensor.shape[0])
    if isinstance(tensor, RowsView) and isinstance(tensor.of, AwqView):
        return _rows(tensor.of, tensor.start, tensor.shape[0])
    return None


def _rows(view: AwqView, start: int, rows: int) -> AwqParts | None:
    if start % _IN_WORD or rows % _IN_WORD or view.zeros is None:
        return None
    words = slice(start // _IN_WORD, (start + rows) // _IN_WORD)
    scales = floats_of(view.scales)[:, start : start + rows]
    return AwqParts(view, words_of(view.of)[:, words], words_of(view.zeros)[:, words], scales)
