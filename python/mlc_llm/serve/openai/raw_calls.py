"""Requests without a protocol: a prompt with a config, and the engine's metrics."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from mlc_llm.errors import MLCError
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.record import record
from mlc_llm.serve.data import Data, FinishReason, TextData, TokenData
from mlc_llm.serve.metrics import EngineMetrics
from mlc_llm.serve.openai.calls import Part
from mlc_llm.serve.openai.chunks import Chunk
from mlc_llm.serve.openai.requests import ChatModel
from mlc_llm.serve.request import Request


@record()
class DeltaOutput:
    """The news of one choice, or the usage of the request."""

    delta_text: str
    delta_logprob_json_strs: list[str] | None
    finish_reason: FinishReason | None
    request_final_usage_json_str: str | None


def prompt_part(
    prompt: str | Sequence[int], config: GenerationConfig, request_id: str, model: ChatModel
) -> Part:
    """A request that continues a text or token ids; the model's defaults fill the config."""
    complete = config.merged_over(model.defaults)
    data: Data = TextData(prompt) if isinstance(prompt, str) else TokenData(prompt)
    return Part(
        request_id, complete.n, lambda: Request(request_id, [data], complete, model.load_id)
    )


class Deltas:
    """Makes the outputs of a request with `n` choices: always one for each choice, or one with the
    usage."""

    def __init__(self, n: int) -> None:
        self._n = n

    def of(self, _part: int, chunk: Chunk) -> Iterator[list[DeltaOutput]]:
        if chunk.usage_json is not None:
            yield [DeltaOutput("", None, None, chunk.usage_json)]
            return
        found = [DeltaOutput("", None, None, None)] * self._n
        for piece in chunk.pieces:
            found[piece.choice] = DeltaOutput(piece.text, piece.logprobs, piece.finish_reason, None)
        yield found


def metrics_in(chunks: Iterable[Chunk]) -> EngineMetrics:
    """The metrics in the answer to a request for them. Raises `MLCError` if it was refused."""
    refusal = "the engine did not answer"
    for chunk in chunks:
        if chunk.error is not None:
            refusal = chunk.error.message
        elif chunk.usage_json is not None:
            extra = json.loads(chunk.usage_json).get("extra")
            if extra is not None:
                return EngineMetrics(extra)
    raise MLCError(f"no metrics: {refusal}")
