"""`Request`: a prompt, how to continue it, and the name its outputs carry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlc_llm.errors import InvalidField
from mlc_llm.protocol import checks
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.data import Data

MAX_REQUEST_ID_CHARS = 256


@dataclass(frozen=True)
class Request:
    """Made by an engine's `create_request`, checked here, never changed afterwards.

    Raises `InvalidField` for an empty or over-long id, no input, or an input that is no `Data`.
    """

    request_id: str
    inputs: Sequence[Data]
    """At least one, unless it is a special request, which needs none."""
    generation_config: GenerationConfig
    """Complete: the model's defaults are already merged under it."""
    load_id: int | None = None
    """Which opened model (`OpenEngine.load_id`) it was made for: its tokens and defaults may mean
    something else to another, which refuses it. None: made for none, and taken by any."""

    def __post_init__(self) -> None:
        checks.string("request_id", self.request_id, MAX_REQUEST_ID_CHARS, min_chars=1)
        object.__setattr__(self, "inputs", _input_list(self.inputs))
        if not isinstance(self.generation_config, GenerationConfig):
            raise checks.wrong_type(
                "generation_config", self.generation_config, "should be a GenerationConfig"
            )
        if not self.inputs and not self.is_special:
            raise InvalidField("inputs", self.inputs, "should hold at least one Data")

    @property
    def is_special(self) -> bool:
        """True for a question to the engine itself; no model runs for it."""
        return self.generation_config.is_special

    @property
    def n(self) -> int:
        """How many branches continue the prompt."""
        return self.generation_config.n


def _input_list(inputs: object) -> list[Data]:
    items = [inputs] if isinstance(inputs, Data) else inputs
    if not isinstance(items, (list, tuple)):
        raise checks.wrong_type("inputs", inputs, "should be a Data or a list of Data")
    for i, item in enumerate(items):
        if not isinstance(item, Data):
            raise checks.wrong_type(f"inputs[{i}]", item, "should be a Data")
    return list(items)
