"""From a request's `GenerationConfig` to the `Sampling` of one row."""

from __future__ import annotations

from mlc_llm.runtime.batch import GREEDY, Sampling
from mlc_llm.serve.core.sequence import Sequence


def sampling_of(sequence: Sequence, ahead: int = 0) -> Sampling:
    """How the sequence's next token is chosen; the same until that token is committed. ahead: of a
    token behind it, if nothing but a random number depends on the tokens between.

    A greedy choice without grammar or penalties is the same for every token, and the same object.
    """
    request = sequence.request
    lasts = sequence.grammar is None and not request.counts_tokens
    if lasts and request.config.temperature <= GREEDY:
        return lasting_sampling(sequence)
    return _sampling(sequence, sequence.uniform(ahead))


def lasting_sampling(sequence: Sequence) -> Sampling:
    """The sampling of all tokens of a sequence without grammar and penalties, in which no random
    number stands yet; one object."""
    state = sequence.sampling
    if state.lasting is None:
        state.lasting = _sampling(sequence, 0.0)
    return state.lasting


def _sampling(sequence: Sequence, uniform: float) -> Sampling:
    request, grammar = sequence.request, sequence.grammar
    config = request.config
    return Sampling(
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        min_p=config.min_p,
        uniform=uniform,
        logit_bias=request.logit_bias,
        presence_penalty=config.presence_penalty,
        frequency_penalty=config.frequency_penalty,
        repetition_penalty=config.repetition_penalty,
        token_counts=sequence.sampling.token_counts,
        allowed=None if grammar is None else grammar.mask(),
        top_logprobs=config.top_logprobs if config.logprobs else -1,
        wants_hidden=request.wants_hidden,
    )
