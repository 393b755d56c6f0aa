"""`GenerationConfig`: how one request is sampled and when it ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from mlc_llm.protocol import checks
from mlc_llm.protocol.checks import MAX_INT32
from mlc_llm.protocol.field_docs import with_field_docs
from mlc_llm.protocol.json_text import parse_json_object

if TYPE_CHECKING:
    from typing_extensions import Self, dataclass_transform

    from mlc_llm.protocol.debug_protocol import DebugConfig
    from mlc_llm.protocol.response_format import RequestResponseFormat

    @dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
    class _Fields:
        """Gives the type checker the constructor with the names of the fields."""

else:
    _Fields = object

MAX_N = 128
MAX_TOP_LOGPROBS = 20
MAX_STOP_STRINGS = 64
MAX_STOP_STRING_CHARS = 1024
MAX_STOP_TOKENS = 1024
MAX_LOGIT_BIAS = 16384
MIN_REPETITION_PENALTY = 1e-6


@with_field_docs
class GenerationConfig(_Fields):
    """Sampling and stopping of one request; frozen, every field checked when it is made.

    A field that was not given (or given as None) holds its default and does not count as set, so
    the model's own defaults can be put under it with `merged_over`. Raises `InvalidField` naming
    field, value and range.

    It is no pydantic model, for pydantic takes as long to load as the rest of a short run of the
    command line, but offers the methods of one that callers use.
    """

    model_fields: ClassVar[Mapping[str, Any]]
    """Each field's name, with what checks it."""
    model_fields_set: frozenset[str] = field(init=False)
    """The names of those that were given."""

    n: int = 1
    """Answers per prompt, 1 to 128."""
    temperature: float = 1.0
    """0 to 100; at or below 1e-5 the most likely token is taken."""
    top_p: float = 1.0
    """Keep the smallest set of tokens with this much probability, 0 to 1."""
    top_k: int = 0
    """Keep the k most likely tokens, 0 to 2147483647; 0 keeps all."""
    min_p: float = 0.0
    """Keep tokens at least this share as likely as the likeliest, 0 to 1."""
    frequency_penalty: float = 0.0
    """-2 to 2, taken off a token's logit once for each time it was generated."""
    presence_penalty: float = 0.0
    """-2 to 2, taken off the logit of every token generated before."""
    repetition_penalty: float = 1.0
    """1e-06 to 100; the logits of tokens that occurred before are divided by it if they are above 0
    and multiplied if not. 1 changes nothing."""
    logprobs: bool = False
    """Report the log-probability of each token."""
    top_logprobs: int = 0
    """Report this many of the likeliest tokens too, 0 to 20; needs `logprobs`."""
    logit_bias: dict[int, float] = field(default_factory=dict)
    """Token id to what is added to its logit, -100 to 100; at most 16384 tokens."""
    max_tokens: int = -1
    """Most tokens to generate, -1 to 2147483647; -1 has no limit but the context window, which may
    take minutes, or with a sliding window 2^24 tokens, which take hours; 0 generates none."""
    seed: int | None = None
    """-9223372036854775808 to 9223372036854775807; None draws one at random. The same seed gives
    the same answer."""
    stop_strs: list[str] = field(default_factory=list)
    """The answer ends before any of these; at most 64 of 1 to 1024 characters each."""
    stop_token_ids: list[int] = field(default_factory=list)
    """The answer ends before any of these tokens; at most 1024."""
    if TYPE_CHECKING:
        response_format: RequestResponseFormat = field(default_factory=RequestResponseFormat)
        """What the answer must be, as a dict: {"type": "json_object", "schema": a JSON schema or
        none}, {"type": "regex", "regex": ...}, {"type": "ebnf", "ebnf": ...} (also `gbnf`, `lark`),
        {"type": "structural_tag", "structures": [{"begin", "schema", "end"}], "triggers": [...]}.
        {} is free text."""
        debug_config: DebugConfig = field(default_factory=DebugConfig)
        """For tests and measurements, as a dict: `ignore_eos`, `pinned_system_prompt`,
        `special_request`, `grammar_execution_mode`. {} is nothing out of the ordinary."""
    else:

        def __init__(self, **values: Any) -> None:
            self._hold(_checked(values))
            self._check_together()

        @cached_property
        def response_format(self) -> RequestResponseFormat:
            """Free text if it was not given."""
            return _request_part("response_format", {})

        @cached_property
        def debug_config(self) -> DebugConfig:
            """Nothing out of the ordinary if it was not given."""
            return _request_part("debug_config", {})

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
        return {name: getattr(self, name) for name in RULES if name in self.model_fields_set}

    @property
    def needs_grammar(self) -> bool:
        """Not every text will do as an answer."""
        return self._was_given("response_format") and self.response_format.needs_grammar

    @property
    def ignores_eos(self) -> bool:
        """`debug_config.ignore_eos`."""
        return self._was_given("debug_config") and self.debug_config.ignore_eos

    @property
    def pins_prompt(self) -> bool:
        """`debug_config.pinned_system_prompt`."""
        return self._was_given("debug_config") and self.debug_config.pinned_system_prompt

    @property
    def is_special(self) -> bool:
        """There is a `debug_config.special_request`."""
        return self._was_given("debug_config") and self.debug_config.special_request is not None

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
    def of(
        cls,
        config: GenerationConfig | Mapping[str, Any] | None,
        field: str = "generation_config",
    ) -> GenerationConfig:
        """The config itself, or the one of a mapping's fields. Raises `InvalidField`."""
        if isinstance(config, GenerationConfig):
            return config
        if config is not None and not isinstance(config, Mapping):
            allowed = "should be a GenerationConfig, or a dict of its fields"
            raise checks.wrong_type(field, config, allowed)
        return _from_mapping(config or {})

    @classmethod
    def from_json(cls, text: str | bytes) -> GenerationConfig:
        """Read `asjson`'s text. Raises `UserError` on bad JSON, `InvalidField` on a bad field."""
        return _from_mapping(parse_json_object(text, "the generation config"))

    @classmethod
    def model_validate(cls, values: Mapping[str, Any]) -> Self:
        """A config of these fields. Raises `InvalidField`."""
        return cls(**{str(name): value for name, value in values.items()})

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self:
        """A copy with other values, which are not checked (see `validate_ranges`)."""
        made = type(self).__new__(type(self))
        made._hold({**self.given, **(update or {})})
        return made

    def model_dump(self, *, exclude_unset: bool = False, **how: Any) -> dict[str, Any]:
        """Fields and values; `how` (mode, by_alias) is for the two that are pydantic models."""
        names = [name for name in RULES if name in self.model_fields_set or not exclude_unset]
        values = {name: getattr(self, name) for name in names}
        for name in ("response_format", "debug_config"):
            if name in values:
                values[name] = values[name].model_dump(exclude_unset=exclude_unset, **how)
        if how.get("mode") == "json" and "logit_bias" in values:
            values["logit_bias"] = {str(i): bias for i, bias in self.logit_bias.items()}
        return values

    def model_dump_json(self, **how: Any) -> str:
        """`model_dump` as JSON."""
        dumped = self.model_dump(mode="json", **how)
        return json.dumps(dumped, ensure_ascii=False, separators=(",", ":"))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GenerationConfig):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in RULES)

    __hash__ = None  # type: ignore[assignment]  # some fields are lists

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.given.items())
        return f"GenerationConfig({given})"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise ValueError(f"GenerationConfig is frozen: {name} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise ValueError(f"GenerationConfig is frozen: {name} cannot be deleted")

    def _hold(self, values: dict[str, Any]) -> None:
        """Take checked values, and defaults of its own for what has a changeable one."""
        fresh = {name: make() for name, make in _FRESH.items() if name not in values}
        self.__dict__.update(fresh, **values, model_fields_set=frozenset(values))

    def _was_given(self, name: str) -> bool:
        return name in self.model_fields_set

    def _check_together(self) -> None:
        if self.top_logprobs and not self.logprobs:
            raise checks.refuse("top_logprobs", self.top_logprobs, "it needs logprobs = true")


def _from_mapping(values: Mapping[str, Any]) -> GenerationConfig:
    return GenerationConfig.model_validate(values)


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


def _request_part(field: str, value: object) -> Any:
    from mlc_llm.protocol import request_parts

    return request_parts.CHECKED[field](field, value)


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
    "response_format": _request_part,
    "debug_config": _request_part,
}
GenerationConfig.model_fields = RULES

_FRESH: dict[str, Callable[[], Any]] = {
    "logit_bias": dict,
    "stop_strs": list,
    "stop_token_ids": list,
}
"""Defaults that could be changed, so that each config has its own."""
