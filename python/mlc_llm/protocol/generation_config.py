"""`GenerationConfig`: how one request is sampled and when it ends.

It is no pydantic model, because pydantic takes as long to load as the rest of a short run of the
command line. It has those methods of a pydantic model that callers use.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from mlc_llm.protocol import checks
from mlc_llm.protocol.field_docs import with_field_docs
from mlc_llm.protocol.generation_rules import RULES, request_part
from mlc_llm.protocol.json_text import parse_json_object

if TYPE_CHECKING:
    from typing_extensions import Self, dataclass_transform

    from mlc_llm.protocol.debug_protocol import DebugConfig, DisaggConfig
    from mlc_llm.protocol.response_format import RequestResponseFormat
else:
    DebugConfig = RequestResponseFormat = Any  # for whoever asks for the types of the fields

    def dataclass_transform(**how: object) -> object:
        return lambda cls: cls


def _made_later(name: str) -> Any:
    """A default that is made when it is first read, because that loads pydantic."""
    return cached_property(lambda config: request_part(name, {}))


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class _Checked:
    """A frozen object that checks its fields by `RULES` and knows which of them were given."""

    model_fields: ClassVar[Mapping[str, object]] = RULES
    """The name of each field, with its check."""
    model_fields_set: frozenset[str] = field(init=False)
    """The names of the fields that were given."""

    def __init__(self, **values: object) -> None:
        for name, value in values.items():
            checks.known_field(name, value, RULES)
        given = {name: value for name, value in values.items() if value is not None}
        self._hold({name: RULES[name](name, value) for name, value in given.items()})
        self._check_together()

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise ValueError(f"GenerationConfig is frozen: {name} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise ValueError(f"GenerationConfig is frozen: {name} cannot be deleted")

    def _hold(self, values: Mapping[str, object]) -> None:
        """Take checked values. A default that can be changed is made for this object alone."""
        self.__dict__.update(logit_bias={}, stop_strs=[], stop_token_ids=[])
        self.__dict__.update(values, model_fields_set=frozenset(values))

    def _check_together(self) -> None:
        """Check the fields that depend on each other."""


@with_field_docs
class GenerationConfig(_Checked):
    """Sampling and stopping of one request. It is frozen, and every field is checked.

    A field that was not given (or given as None) has its default and does not count as set. So
    `merged_over` can put the model's own defaults in its place. Raises `InvalidField` that names
    field, value and range.
    """

    n: int = 1
    """Answers for each prompt, 1 to 128."""
    temperature: float = 1.0
    """0 to 100. At or below 1e-5, the most likely token is chosen."""
    top_p: float = 1.0
    """Keep the smallest set of tokens with this much probability, 0 to 1."""
    top_k: int = 0
    """Keep the k most likely tokens, 0 to 2147483647. 0 keeps all."""
    min_p: float = 0.0
    """Keep tokens with at least this share of the likeliest token's probability, 0 to 1."""
    frequency_penalty: float = 0.0
    """-2 to 2. It is subtracted from a token's logit once for each time it was generated."""
    presence_penalty: float = 0.0
    """-2 to 2. It is subtracted once from the logit of each token that was generated before."""
    repetition_penalty: float = 1.0
    """1e-06 to 100. Of tokens that occurred before, a logit above 0 is divided by it, and any other
    is multiplied. 1 changes nothing."""
    logprobs: bool = False
    """Report the log-probability of each token."""
    top_logprobs: int = 0
    """Report this many of the likeliest tokens too, 0 to 20. It needs `logprobs`."""
    logit_bias: dict[int, float] = field(default_factory=dict)
    """Token id -> the number that is added to its logit, -100 to 100; at most 16384 tokens."""
    max_tokens: int = -1
    """The most tokens to generate, -1 to 2147483647. 0 generates none. -1 sets no limit: the answer
    may fill the context window, which can take minutes, or with a sliding window 2^24 tokens,
    which take hours."""
    seed: int | None = None
    """-9223372036854775808 to 9223372036854775807. None draws a random one. The same seed gives the
    same answer."""
    stop_strs: list[str] = field(default_factory=list)
    """The answer ends before any of these texts. At most 64, each of 1 to 1024 characters."""
    stop_token_ids: list[int] = field(default_factory=list)
    """The answer ends before any of these tokens. At most 1024."""
    response_format: RequestResponseFormat = _made_later("response_format")
    """What the answer must be, as a dict: {"type": "json_object", "schema": a JSON schema or none},
    {"type": "regex", "regex": ...}, {"type": "ebnf", "ebnf": ...} (also `gbnf`, `lark`),
    {"type": "structural_tag", "structures": [{"begin", "schema", "end"}], "triggers": [...]}.
    {} is free text."""
    debug_config: DebugConfig = _made_later("debug_config")
    """For tests and measurements, as a dict: `ignore_eos`, `pinned_system_prompt`,
    `special_request`, `grammar_execution_mode`. {} is normal behaviour."""

    if TYPE_CHECKING:
        # The types of what may be given. `_Checked.__init__` takes it.
        def __init__(
            self,
            *,
            n: int | None = None,
            temperature: float | None = None,
            top_p: float | None = None,
            top_k: int | None = None,
            min_p: float | None = None,
            frequency_penalty: float | None = None,
            presence_penalty: float | None = None,
            repetition_penalty: float | None = None,
            logprobs: bool | None = None,
            top_logprobs: int | None = None,
            logit_bias: Mapping[int, float] | None = None,
            max_tokens: int | None = None,
            seed: int | None = None,
            stop_strs: Sequence[str] | None = None,
            stop_token_ids: Sequence[int] | None = None,
            response_format: RequestResponseFormat | Mapping[str, object] | None = None,
            debug_config: DebugConfig | Mapping[str, object] | None = None,
        ) -> None: ...

    def validate_ranges(self) -> None:
        """Check every field again. A copy of `model_copy` may have wrong values."""
        for name, rule in RULES.items():
            value = getattr(self, name)
            if value is not None:
                rule(name, value)
        self._check_together()

    @property
    def given(self) -> dict[str, object]:
        """The fields that were set, with their values."""
        return {name: getattr(self, name) for name in RULES if name in self.model_fields_set}

    @property
    def needs_grammar(self) -> bool:
        """Whether some texts are not allowed as an answer."""
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
    def disagg(self) -> DisaggConfig | None:
        """`debug_config.disagg_config`."""
        return self.debug_config.disagg_config if self._was_given("debug_config") else None

    @property
    def is_special(self) -> bool:
        """Whether there is a `debug_config.special_request`."""
        return self._was_given("debug_config") and self.debug_config.special_request is not None

    def merged_over(self, defaults: GenerationConfig | Mapping[str, object]) -> GenerationConfig:
        """A new config. A field has the value that is set here, else the one that is set in
        `defaults`, else its default.

        `defaults` may be a mapping, for example out of a file. It is checked too.
        """
        under = defaults if isinstance(defaults, GenerationConfig) else _from_mapping(defaults)
        return GenerationConfig.model_validate({**under.given, **self.given})

    def for_chat(self, defaults: GenerationConfig | Mapping[str, object]) -> GenerationConfig:
        """`merged_over`, with the stop strings of both: an answer ends where the chat template of
        the model says, whatever else the caller names."""
        under = defaults if isinstance(defaults, GenerationConfig) else _from_mapping(defaults)
        merged = self.merged_over(under)
        stops = list(dict.fromkeys([*under.stop_strs, *self.stop_strs]))
        return merged.model_copy(update={"stop_strs": stops}) if stops else merged

    def asjson(self) -> str:
        """The fields that are set, as JSON. `from_json` makes an equal config of it."""
        return self.model_dump_json(exclude_unset=True, by_alias=True)

    @classmethod
    def of(
        cls,
        config: GenerationConfig | Mapping[str, object] | None,
        field: str = "generation_config",
    ) -> GenerationConfig:
        """`config` itself, or a config of the fields of a mapping. Raises `InvalidField`."""
        if isinstance(config, GenerationConfig):
            return config
        if config is not None and not isinstance(config, Mapping):
            allowed = "should be a GenerationConfig, or a dict of its fields"
            raise checks.wrong_type(field, config, allowed)
        return _from_mapping(config or {})

    @classmethod
    def from_json(cls, text: str | bytes) -> GenerationConfig:
        """Read the text of `asjson`. Raises `UserError` for bad JSON, `InvalidField` for a bad
        field."""
        return _from_mapping(parse_json_object(text, "the generation config"))

    @classmethod
    def model_validate(cls, values: Mapping[str, object]) -> Self:
        """A config of these fields. Raises `InvalidField`."""
        checked_when_made: dict[str, Any] = {str(name): value for name, value in values.items()}
        return cls(**checked_when_made)

    def model_copy(self, *, update: Mapping[str, object] | None = None) -> Self:
        """A copy with other values. They are not checked (see `validate_ranges`)."""
        made = type(self).__new__(type(self))
        made._hold({**self.given, **(update or {})})
        return made

    def model_dump(self, *, exclude_unset: bool = False, **how: Any) -> dict[str, Any]:
        """Fields and values. `how` (mode, by_alias) goes to the two pydantic models."""
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

    def _was_given(self, name: str) -> bool:
        return name in self.model_fields_set

    def _check_together(self) -> None:
        if self.top_logprobs and not self.logprobs:
            raise checks.refuse("top_logprobs", self.top_logprobs, "it needs logprobs = true")


def _from_mapping(values: Mapping[str, object]) -> GenerationConfig:
    return GenerationConfig.model_validate(values)
