"""Edits a row's logits before sampling: only the entries that a request names are touched."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from mlc_llm.runtime.batch import Sampling

Floats = npt.NDArray[np.float32]


_BITS = np.arange(256, dtype=np.uint8)[:, None] >> np.arange(8, dtype=np.uint8) & 1
_ADDED = np.where(_BITS == 1, np.float32(0), np.float32(-np.inf))
"""[256, 8]: what eight bits of a mask add to their logits."""


def edit_row(row: Floats, sampling: Sampling) -> None:
    """Bias, then penalties (repetition; presence and frequency), then the mask, in place.

    row [vocab]. What is not finite stays so, or becomes NaN, whatever the mask says of it.
    """
    _bias_and_penalties(row, sampling)
    if sampling.allowed is not None:
        _mask(row, sampling.allowed)


def _mask(row: Floats, allowed: bytes) -> None:
    # Adding keeps NaN and makes +inf NaN: a mask must not hide that the model failed.
    with np.errstate(invalid="ignore"):
        row += _ADDED.take(np.frombuffer(allowed, np.uint8), axis=0).reshape(-1)[: len(row)]


def _bias_and_penalties(row: Floats, sampling: Sampling) -> None:
    if sampling.logit_bias:
        ids, bias = _columns(sampling.logit_bias.items())
        row[ids] += bias
    if not _penalised(sampling):
        return
    ids, counts = _columns(sampling.token_counts.items())
    values = row[ids]
    values = np.where(
        values < 0, values * sampling.repetition_penalty, values / sampling.repetition_penalty
    )
    row[ids] = values - sampling.presence_penalty - sampling.frequency_penalty * counts


def needs_edit(sampling: Sampling) -> bool:
    """Whether `edit_row` would change anything."""
    return bool(sampling.logit_bias) or sampling.allowed is not None or _penalised(sampling)


def top_tokens(row: Floats, log_total: float, k: int) -> tuple[tuple[int, float], ...]:
    """The k most likely (token id, log-probability), most likely first, ties by id."""
    if k == 0:
        return ()
    cut = np.partition(row, -k)[-k] if k < len(row) else -np.inf
    candidates = np.flatnonzero(row >= cut)
    order = candidates[np.lexsort((candidates, -row[candidates]))][:k]
    return tuple((int(i), float(row[i]) - log_total) for i in order)


def _penalised(sampling: Sampling) -> bool:
    active = (
        sampling.presence_penalty != 0
        or sampling.frequency_penalty != 0
        or sampling.repetition_penalty != 1
    )
    return active and bool(sampling.token_counts)


def _columns(
    items: Iterable[tuple[int, float]],
) -> tuple[npt.NDArray[np.int64], Floats]:
    ids, values = zip(*items, strict=True)
    return np.asarray(ids, np.int64), np.asarray(values, np.float32)
