"""From a request's `GenerationConfig` to the `Sampling` of one row."""

from __future__ import annotations

from mlc_llm.runtime.batch import GREEDY, Sampling
from mlc_llm.serve.core.request_state import Branch


def sampling_of(branch: Branch) -> Sampling:
    """How the branch's next token is chosen; the same until that token is committed.

    A greedy choice without grammar or penalties is the same for every token, and the same object.
    """
    if branch.lasting_sampling is not None:
        return branch.lasting_sampling
    request, grammar = branch.request, branch.grammar
    config = request.config
    sampling = Sampling(
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        min_p=config.min_p,
        uniform=branch.uniform(),
        logit_bias=request.logit_bias,
        presence_penalty=config.presence_penalty,
        frequency_penalty=config.frequency_penalty,
        repetition_penalty=config.repetition_penalty,
        token_counts=branch.token_counts,
        allowed=None if grammar is None else grammar.mask(),
        top_logprobs=config.top_logprobs if config.logprobs else -1,
    )
    if config.temperature <= GREEDY and grammar is None and not request.counts_tokens:
        branch.lasting_sampling = sampling
    return sampling
