"""The JSON text of one token's log-probability."""

from __future__ import annotations

import json

from mlc_llm.protocol.json_value import JsonValue
from mlc_llm.runtime.batch import Sampled
from mlc_llm.tokenizers import Tokenizer

LOWEST_LOGPROB = -9999.0
"""Written instead of minus infinity, which JSON does not have."""


def logprob_json(sampled: Sampled, tokenizer: Tokenizer) -> str:
    """`{"token", "logprob", "bytes", "top_logprobs": [...]}`; `token` is `bytes` as text.

    The value is the log-softmax of the raw logits: sampling settings do not change it.
    """
    assert sampled.logprob is not None, "the runner was asked for log-probabilities"
    entry = _entry(sampled.token_id, sampled.logprob, tokenizer)
    entry["top_logprobs"] = [_entry(token, value, tokenizer) for token, value in sampled.top]
    return json.dumps(entry)


def unscored_json(token_id: int, tokenizer: Tokenizer) -> str:
    """The same of a token with nothing before it: its `logprob` and `top_logprobs` are null."""
    entry = _entry(token_id, 0.0, tokenizer)
    return json.dumps({**entry, "logprob": None, "top_logprobs": None})


def _entry(token_id: int, logprob: float, tokenizer: Tokenizer) -> dict[str, JsonValue]:
    # A row of the model without a token has no bytes.
    raw = tokenizer.token_bytes(token_id) if token_id < tokenizer.vocab_size else b""
    text = raw.decode("utf-8", errors="replace")
    return {"token": text, "logprob": max(logprob, LOWEST_LOGPROB), "bytes": list(raw)}
