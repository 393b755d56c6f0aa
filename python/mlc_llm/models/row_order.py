"""In which order the rows of a tensor make the rows of a parameter."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mlc_llm.models.sources import Source


def row_order(source: Source, rows: int) -> npt.NDArray[np.int64]:
    """The numbers of the rows that are meant, in the order of the kernels. rows: of the tensor."""
    count = rows - source.first if source.rows is None else source.rows
    order: npt.NDArray[np.int64] = np.arange(source.first, source.first + count)
    if source.paired is not None:
        heads, head_dim, dim = source.paired
        of_heads = order[: heads * head_dim].reshape(heads, head_dim)
        pairs = of_heads[:, :dim].reshape(heads, dim // 2, 2)
        of_heads[:, :dim] = pairs.transpose(0, 2, 1).reshape(heads, dim)
    if source.part is not None:
        heads, part, parts = source.part
        order = order.reshape(heads, parts, -1)[:, part].reshape(-1)
    return order if source.kept is None else order[slice(*source.kept)]
