"""How the fake runner makes logits of tokens, and chooses among them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mlc_llm.runtime.batch import Sampled, Sampling


def fake_logits(tokens: Sequence[int], vocab_size: int) -> npt.NDArray[np.float64]:
    """Pseudo-random logits float64 [vocab_size] that depend on the tokens alone."""
    seed = zlib.crc32(np.asarray(tokens, dtype=np.int32).tobytes())
    return np.random.default_rng(seed).standard_normal(vocab_size)


def sample(logits: npt.NDArray[np.float64], sampling: Sampling) -> Sampled:
    """Apply bias, mask and temperature, and draw a token. Other settings are ignored here."""
    scores = logits.copy()
    for token, bias in sampling.logit_bias.items():
        scores[token] += bias
    if sampling.allowed is not None:
        scores[~_allowed(sampling.allowed, len(scores))] = -np.inf
    if scores.max() == -np.inf:
        return Sampled(-1, error="no token is allowed")
    if sampling.temperature <= 1e-5:
        token_id = int(scores.argmax())
    else:
        mass = np.cumsum(np.exp((scores - scores.max()) / sampling.temperature))
        token_id = int(np.searchsorted(mass, sampling.uniform * mass[-1], side="right"))
    if sampling.top_logprobs < 0:
        return Sampled(token_id)
    logprobs = log_softmax(logits)
    best = np.argsort(-logprobs, kind="stable")[: sampling.top_logprobs]
    top = tuple((int(i), float(logprobs[i])) for i in best)
    return Sampled(token_id, float(logprobs[token_id]), top)


def log_softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Log-probabilities float64 of small logits."""
    return np.asarray(logits - np.log(np.exp(logits).sum()))


def _allowed(mask: bytes, vocab_size: int) -> npt.NDArray[np.bool_]:
    assert len(mask) == 4 * -(-vocab_size // 32), "a mask needs a bit for each token"
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
    return bits[:vocab_size].astype(bool)
