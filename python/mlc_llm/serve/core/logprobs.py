"""The JSON text of one token's log-probability."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from mlc_llm.runtime.batch import Sampled

LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot write."""


def logprob_json(sampled: Sampled, token_bytes: Callable[[int], bytes]) -> str:
    """`{"token", "logprob", "bytes", "top_logprobs": [...]}`; `token` is `bytes` as text.

    The value is the log-softmax of the raw logits: sampling settings do not change it.
    """
    assert sampled.logprob is not None, "the runner was asked for log-probabilities"
    entry = _entry(sampled.token_id, sampled.logprob, token_bytes)
    entry["top_logprobs"] = [_entry(token, value, token_bytes) for token, value in sampled.top]
    return json.dumps(entry)


def _entry(token_id: int, logprob: float, token_bytes: Callable[[int], bytes]) -> dict[str, Any]:
    raw = token_bytes(token_id)
    text = raw.decode("utf-8", errors="replace")
    return {"token": text, "logprob": max(logprob, LOWEST_LOGPROB), "bytes": list(raw)}
