"""`GenerationConfig`: how one request is sampled and when it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from mlc_llm.protocol import checks
from mlc_llm.protocol.checks import MAX_INT32
from mlc_llm.protocol.debug_protocol import DebugConfig
from mlc_llm.protocol.error_protocol import validated
from mlc_llm.protocol.json_text import parse_json_object
from mlc_llm.protocol.response_format import RequestResponseFormat

MAX_N = 128
MAX_TOP_LOGPROBS = 20
MAX_STOP_STRINGS = 64
MAX_STOP_STRING_CHARS = 1024
MAX_STOP_TOKENS = 1024
MAX_LOGIT_BIAS = 16384
MIN_REPETITION_PENALTY = 1e-6


class GenerationConfig(BaseModel):
    """Sampling and stopping of one request; frozen, every field checked when it is made.

    A field that was not given (or given as None) holds its default and does not count as set, so
    the model's own defaults can be put under it with `merged_over`. Raises `InvalidField` naming
    field, value and range.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    n: int = 1
    """Answers per prompt, 1 to 128."""
    temperature: float = 1.0
    """0 to 100; at or below 1e-5 the most likely token is taken."""
    top_p: float = 1.0
    """Keep the smallest set of tokens with this much probability, 0 to 1."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    min_p: float = 0.0
    """Keep tokens at least this share as likely as the likeliest, 0 to 1."""
    frequency_penalty: float = 0.0
    """-2 to 2, taken off a token's logit once for each time it was generated."""
    presence_penalty: float = 0.0
    """-2 to 2, taken off the logit of every token generated before."""
    repetition_penalty: float = 1.0
    """Above 0, at most 100; 1 changes nothing."""
    logprobs: bool = False
    """Report the log-probability of each token."""
    top_logprobs: int = 0
    """Report this many of the likeliest tokens too, 0 to 20; needs `logprobs`."""
    logit_bias: dict[int, float] = Field(default_factory=dict)
    """Added to the logits: token id to -100..100."""
    max_tokens: int = -1
    """Most tokens to generate; -1 has no limit but the context window, 0 generates none."""
    seed: int | None = None
    """A 64-bit signed number; None draws one at random."""
    stop_strs: list[str] = Field(default_factory=list)
    """The answer ends before any of these; none may be empty."""
    stop_token_ids: list[int] = Field(default_factory=list)
    """The answer ends before any of these tokens."""
    response_format: RequestResponseFormat = Field(default_factory=RequestResponseFormat)
    debug_config: DebugConfig = Field(default_factory=DebugConfig)

    if not TYPE_CHECKING:  # the type checker keeps pydantic's own signature, with field names

        def __init__(self, **values: Any) -> None:
            super().__init__(**_checked(values))
            self._check_together()

    def validate_ranges(self) -> None:
        """Check every field again (a copy made around the constructor may hold anything)."""
        for name, rule in RULES.items():
            value = getattr(self, name)
            if value is not None:
                rule(name, value)
        self._check_together()

    @property
    def given(self) -> dict[str, Any]:
        """The fields that were set, with their values."""
        return {name: getattr(self, name) for name in type(self).model_fields if self._is_set(name)}

    def merged_over(self, defaults: GenerationConfig | Mapping[str, Any]) -> GenerationConfig:
        """A new config: what is set here, else what is set in `defaults`, else the default.

        A mapping counts as defaults as read from a file: it is checked like everything else.
        """
        under = defaults if isinstance(defaults, GenerationConfig) else _from_mapping(defaults)
        return GenerationConfig(**{**under.given, **self.given})

    def asjson(self) -> str:
        """The fields that are set, as JSON; `from_json` gives an equal config back."""
        return self.model_dump_json(exclude_unset=True, by_alias=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> GenerationConfig:
        """Read `asjson`'s text. Raises `UserError` on bad JSON, `InvalidField` on a bad field."""
        return _from_mapping(parse_json_object(text, "the generation config"))

    def _is_set(self, name: str) -> bool:
        return name in self.model_fields_set

    def _check_together(self) -> None:
        if self.top_logprobs and not self.logprobs:
            raise checks.refuse("top_logprobs", self.top_logprobs, "it needs logprobs = true")


def _from_mapping(values: Mapping[str, Any]) -> GenerationConfig:
    return GenerationConfig(**{str(name): value for name, value in values.items()})


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    """Every value in its one form; None means not given."""
    for name, value in values.items():
        checks.known_field(name, value, RULES)
    return {name: RULES[name](name, value) for name, value in values.items() if value is not None}


def _logit_bias(field: str, value: object) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise checks.wrong_type(field, value, "should map token ids to biases")
    if len(value) > MAX_LOGIT_BIAS:
        raise checks.refuse(field, f"<{len(value)} items>", f"at most {MAX_LOGIT_BIAS} items")
    return {
        checks.token_id_key(field, key): checks.number(f"{field}[{str(key)[:20]}]", bias, -100, 100)
        for key, bias in value.items()
    }


def _stop_strs(field: str, value: object) -> list[str]:
    items = checks.listing(field, value, MAX_STOP_STRINGS)
    return [
        checks.string(f"{field}[{i}]", item, MAX_STOP_STRING_CHARS, min_chars=1)
        for i, item in enumerate(items)
    ]


def _number(low: float, high: float, allowed: str = "") -> Callable[[str, object], float]:
    return lambda field, value: checks.number(field, value, low, high, allowed)


def _integer(low: int, high: int, allowed: str = "") -> Callable[[str, object], int]:
    return lambda field, value: checks.integer(field, value, low, high, allowed)


RULES: dict[str, Callable[[str, object], Any]] = {
    "n": _integer(1, MAX_N, f'"n" should be at least 1 and at most {MAX_N}'),
    "temperature": _number(0, 100, "should be non-negative and at most 100"),
    "top_p": _number(0, 1),
    "top_k": _integer(0, MAX_INT32),
    "min_p": _number(0, 1),
    "frequency_penalty": _number(-2, 2),
    "presence_penalty": _number(-2, 2),
    "repetition_penalty": _number(
        MIN_REPETITION_PENALTY,
        100,
        f"should be greater than 0 (at least {MIN_REPETITION_PENALTY:g}) and at most 100",
    ),
    "logprobs": checks.boolean,
    "top_logprobs": _integer(
        0, MAX_TOP_LOGPROBS, f"At most {MAX_TOP_LOGPROBS} top logprobs can be asked for (0 to 20)"
    ),
    "logit_bias": _logit_bias,
    "max_tokens": _integer(
        -1, MAX_INT32, f"should be -1 (no limit) or an integer in range [0, {MAX_INT32}]"
    ),
    "seed": _integer(-(2**63), 2**63 - 1, "should be an integer in range [-2^63, 2^63 - 1]"),
    "stop_strs": _stop_strs,
    "stop_token_ids": lambda field, value: checks.token_ids(field, value, MAX_STOP_TOKENS),
    "response_format": lambda field, value: validated(RequestResponseFormat, value, field),
    "debug_config": lambda field, value: validated(DebugConfig, value, field),
}
