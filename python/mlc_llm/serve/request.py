"""`Request`: a prompt, how it is continued, and the id of its outputs."""

from __future__ import annotations

from collections.abc import Sequence

from mlc_llm.errors import InvalidField
from mlc_llm.protocol import checks
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.record import record
from mlc_llm.serve.data import Data

MAX_REQUEST_ID_CHARS = 256
NO_TEXT = "this model is an encoder, which writes no text: ask it for embeddings"
RANKS_ONLY = "this model ranks documents, and writes no text: ask it for a reranking"
NO_SCORES = "this model compares no texts: reranking needs one that was trained for it"


@record()
class Request:
    """A request. `create_request` of an engine makes it. It is checked here and never changes.

    Raises `InvalidField` for an id that is empty or too long, for no input, and for an input that
    is no `Data`.
    """

    request_id: str
    inputs: Sequence[Data]
    """At least one. Only a special request needs none."""
    generation_config: GenerationConfig
    """The complete config: the model's defaults have filled its open fields."""
    load_id: int | None = None
    """The opened model that it was made for (`OpenEngine.load_id`). Another model refuses it, since
    tokens and defaults may have another meaning there. None: every model accepts it."""
    cache_salt: str = ""
    """It shares the prefix cache with requests of the same salt alone, so that the time of an
    answer says nothing about the prompts of others."""
    prompt_logprobs: int | None = None
    """The log-probability of each token of the prompt is wanted, and those of so many of the most
    likely tokens (0 to 20). Then the prompt is computed anew, and exactly."""
    is_embedding: bool = False
    """The embedding of the prompt is wanted, and no answer."""
    second_at: int = 0
    """The prompt is a pair of texts, with the second one from this token on: an encoder gives its
    scores in place of the embedding. 0: it is one text."""
    adapter: str = ""
    """The name of a LoRA adapter of the engine, which changes the model for this request; "": the
    model itself answers."""
    arrived: float = 0.0
    """When it began to wait, on the clock of the engine (`time.perf_counter`); 0: when its prompt
    is token ids. The times of its metrics begin then."""

    def __post_init__(self) -> None:
        checks.string("request_id", self.request_id, MAX_REQUEST_ID_CHARS, min_chars=1)
        object.__setattr__(self, "inputs", _input_list(self.inputs))
        checks.string("adapter", self.adapter, MAX_REQUEST_ID_CHARS)
        if not isinstance(self.generation_config, GenerationConfig):
            raise checks.wrong_type(
                "generation_config", self.generation_config, "should be a GenerationConfig"
            )
        if not self.inputs and not self.is_special:
            raise InvalidField("inputs", self.inputs, "should hold at least one Data")

    @property
    def is_special(self) -> bool:
        """True for a question to the engine itself. No model runs for it."""
        return self.generation_config.is_special

    @property
    def n(self) -> int:
        """How many sequences continue the prompt."""
        return self.generation_config.n


def checked_request(request: object) -> Request:
    """What `create_request` has made. Raises InvalidField for anything else."""
    if not isinstance(request, Request):
        raise checks.wrong_type("request", request, "should be what create_request returns")
    return request


def _input_list(inputs: object) -> list[Data]:
    items = [inputs] if isinstance(inputs, Data) else inputs
    if not isinstance(items, (list, tuple)):
        raise checks.wrong_type("inputs", inputs, "should be a Data or a list of Data")
    for i, item in enumerate(items):
        if not isinstance(item, Data):
            raise checks.wrong_type(f"inputs[{i}]", item, "should be a Data")
    return list(items)
