"""From a request's `GenerationConfig` to the `Sampling` of one row."""

from __future__ import annotations

from mlc_llm.runtime.batch import GREEDY, Sampling
from mlc_llm.serve.core.sequence import Sequence


def sampling_of(sequence: Sequence, ahead: int = 0) -> Sampling:
    """How the sequence's next token is chosen; the same until that token is committed. ahead: of a
    token behind it, if nothing but a random number depends on the tokens between.

    A greedy choice without grammar or penalties is the same for every token, and the same object.
    """
    state = sequence.sampling
    if state.lasting is not None:
        return state.lasting
    request, grammar = sequence.request, sequence.grammar
    config = request.config
    sampling = Sampling(
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        min_p=config.min_p,
        uniform=state.uniform(ahead),
        logit_bias=request.logit_bias,
        presence_penalty=config.presence_penalty,
        frequency_penalty=config.frequency_penalty,
        repetition_penalty=config.repetition_penalty,
        token_counts=state.token_counts,
        allowed=None if grammar is None else grammar.mask(),
        top_logprobs=config.top_logprobs if config.logprobs else -1,
        wants_hidden=request.wants_hidden,
    )
    if config.temperature <= GREEDY and grammar is None and not request.counts_tokens:
        state.lasting = sampling
    return sampling
