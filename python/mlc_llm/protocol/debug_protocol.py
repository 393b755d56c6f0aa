"""Switches for tests and measurements. Servers ignore them unless debugging is on."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

from mlc_llm.protocol import checks

SPECIAL_REQUESTS = ("query_engine_metrics",)
GRAMMAR_EXECUTION_MODES = ("constraint", "jump_forward")


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
    disagg_config: None = None
    """Prefill and decode on different machines. This is not supported: only null is allowed."""

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

    @field_validator("disagg_config", mode="before")
    @classmethod
    def _disagg_config(cls, value: object) -> None:
        if value is not None:
            raise checks.refuse("disagg_config", value, "disaggregated serving is not supported")
