"""Switches for tests and measurements. Servers ignore them unless debugging is on."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator, model_validator

from mlc_llm.protocol import checks

SPECIAL_REQUESTS = ("query_engine_metrics",)
DISAGG_KINDS = ("prepare_receive", "remote_send", "start_generation")
DISAGG_FIELDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "prepare_receive": (("kv_window_end",), ()),
    "remote_send": (("kv_append_metadata", "kv_window_end"), ("kv_window_begin",)),
    "start_generation": (("kv_window_begin",), ("kv_append_metadata",)),
}
"""Of each kind, the fields that it needs, and those that it may have."""
MAX_METADATA_CHARS = 1 << 30
GRAMMAR_EXECUTION_MODES = ("constraint", "jump_forward")


class DisaggConfig(BaseModel):
    """One of the three requests by which a prompt is computed on one engine and answered on
    another one. Windows are places in the tokens of the prompt; below 0 they count from its end."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["prepare_receive", "remote_send", "start_generation"]
    """`prepare_receive`, to the engine of the answer: `usage.extra` says in `prefix_matched_length`
    how many tokens it has, and in `kv_append_metadata` what `remote_send` needs. `remote_send`, to
    another engine: it computes the tokens, and `kv_append_metadata` of its `usage.extra` has their
    pages. `start_generation`, to the engine of the answer again, with these pages."""
    kv_append_metadata: str | None = None
    """Base64, as the request before has given it."""
    kv_window_begin: int | None = None
    """`remote_send`: tokens that the engine of the answer has; if it has all, no pages are made.
    `start_generation`: tokens that it has or gets."""
    kv_window_end: int | None = None
    """`prepare_receive` and `remote_send`: tokens that are computed before the answer begins. At
    most all but the last one: -1."""
    dst_group_offset: int | None = None
    """Pages do not go to a certain GPU: only 0."""

    @field_validator("kind", mode="before")
    @classmethod
    def _kind(cls, value: object) -> str:
        return checks.one_of("kind", value, DISAGG_KINDS)

    @field_validator("kv_append_metadata", mode="before")
    @classmethod
    def _metadata(cls, value: object) -> str | None:
        name = "kv_append_metadata"
        return None if value is None else checks.string(name, value, MAX_METADATA_CHARS)

    @field_validator("kv_window_begin", "kv_window_end", mode="before")
    @classmethod
    def _place(cls, value: object, info: ValidationInfo) -> int | None:
        name, most = str(info.field_name), checks.MAX_INT32
        return None if value is None else checks.integer(name, value, -most, most)

    @field_validator("dst_group_offset", mode="before")
    @classmethod
    def _offset(cls, value: object) -> int | None:
        name = "dst_group_offset"
        return None if value is None else checks.integer(name, value, 0, 0)

    @model_validator(mode="after")
    def _together(self) -> DisaggConfig:
        needed, more = DISAGG_FIELDS[self.kind]
        for name in ("kv_append_metadata", "kv_window_begin", "kv_window_end"):
            value = getattr(self, name)
            if value is None and name in needed:
                raise checks.refuse(name, None, f"{self.kind} needs it")
            if value is not None and name not in needed + more:
                raise checks.refuse(name, value, f"{self.kind} has no use for it")
        return self


class DebugConfig(BaseModel):
    """Special behaviour of one request. In every field, null means the default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ignore_eos: bool = False
    """Stop tokens and stop strings do not end the answer."""
    pinned_system_prompt: bool = False
    """The prefix cache keeps the prompt until a reset. It does not keep the answer."""
    special_request: Literal["query_engine_metrics"] | None = None
    """The answer comes at once: one usage item. Its `extra` holds the metrics of the engine."""
    grammar_execution_mode: Literal["constraint", "jump_forward"] = "jump_forward"
    """`jump_forward`: text that a grammar forces is added without a call of the model (except
    where log-probabilities are wanted). `constraint`: the model computes every token. The tokens
    are the same: forced tokens are those that the tokenizer makes of the text, and they use no
    random number."""
    disagg_config: DisaggConfig | None = None
    """Prefill and decode on different engines."""

    @field_validator("ignore_eos", "pinned_system_prompt", mode="before")
    @classmethod
    def _flag(cls, value: object, info: ValidationInfo) -> bool:
        return False if value is None else checks.boolean(str(info.field_name), value)

    @field_validator("special_request", mode="before")
    @classmethod
    def _special_request(cls, value: object) -> object:
        if value is not None and value not in SPECIAL_REQUESTS:
            raise checks.refuse(
                "special_request",
                value,
                f"Unknown special request {checks.shown(str(value))}; "
                f"known: {', '.join(SPECIAL_REQUESTS)}",
            )
        return value

    @field_validator("grammar_execution_mode", mode="before")
    @classmethod
    def _grammar_execution_mode(cls, value: object) -> object:
        if value is None:
            return "jump_forward"
        if value not in GRAMMAR_EXECUTION_MODES:
            raise checks.refuse(
                "grammar_execution_mode",
                value,
                f"Unknown grammar execution mode {checks.shown(str(value))}; "
                f"known: {', '.join(GRAMMAR_EXECUTION_MODES)}",
            )
        return value
