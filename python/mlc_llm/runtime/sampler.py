"""From logits to tokens: log-probabilities, edits and the draw, a compiled function each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlc_llm.model_lib import EDIT_LOGITS, SAMPLE, TOP_TOKENS
from mlc_llm.runtime.batch import Sampled, Sampling
from mlc_llm.runtime.executable import Executable
from mlc_llm.runtime.logit_processor import Edits
from mlc_llm.runtime.staging import Staging

Floats = npt.NDArray[np.float32]
NOT_FINITE = "the model produced logits that are not finite"


class Sampler:
    """The functions of a model library that choose tokens."""

    def __init__(self, executable: Executable, staging: Staging) -> None:
        self._top_tokens, self._edit = executable[TOP_TOKENS], executable[EDIT_LOGITS]
        self._sample = executable[SAMPLE]
        self._vocab_size = executable.metadata.vocab_size
        self._staging = staging

    def choose(self, logits: Any, wanted: Sequence[Sampling]) -> list[Sampled]:
        """A token for each row of logits [s, padded_vocab], which are edited in place."""
        edits = Edits.of(wanted)
        # Log-probabilities are those of the raw logits, so they are taken before any edit.
        raw = self._raw(logits, wanted, edits.rows)
        if edits.rows:
            self._edit(*self._staging.tensors(*edits.arrays(self._vocab_size)), logits)
        options = [(s.temperature, s.top_p, s.min_p, s.uniform) for s in wanted]
        top_k = np.asarray([s.top_k for s in wanted], np.int32)
        tensors = self._staging.tensors(np.asarray(options, np.float32), top_k)
        tokens, status = (np.from_dlpack(out).tolist() for out in self._sample(logits, *tensors))
        return [
            _sampled(token, bad, raw.get(i))
            for i, (token, bad) in enumerate(zip(tokens, status, strict=True))
        ]

    def _raw(self, logits: Any, wanted: Sequence[Sampling], edited: set[int]) -> dict[int, _Raw]:
        """By row, where log-probabilities are asked for."""
        asked = [i for i, sampling in enumerate(wanted) if sampling.top_logprobs >= 0]
        if not asked:
            return {}
        (rows,) = self._staging.tensors(np.asarray(asked, np.int32))
        found = (np.from_dlpack(out) for out in self._top_tokens(logits, rows))
        raw, values = {}, np.from_dlpack(logits)
        for i, tokens, logprobs, total in zip(asked, *found, strict=True):
            count = min(wanted[i].top_logprobs, self._vocab_size)
            top = zip(tokens[:count].tolist(), logprobs[:count].tolist(), strict=True)
            row = values[i].copy() if i in edited else values[i]
            raw[i] = _Raw(row, total, tuple(top))
        return raw


@dataclass(frozen=True)
class _Raw:
    """A row of logits as the model gave them, with what they are relative to."""

    logits: Floats
    log_total: np.float32
    top: tuple[tuple[int, float], ...]


def _sampled(token_id: int, bad: int, raw: _Raw | None) -> Sampled:
    if bad:
        return Sampled(token_id, error=NOT_FINITE)
    if raw is None:
        return Sampled(token_id)
    return Sampled(token_id, float(raw.logits[token_id] - raw.log_total), raw.top)
