"""Switches for tests and measurements; servers drop them unless debugging is on."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

from mlc_llm.protocol import checks

SPECIAL_REQUESTS = ("query_engine_metrics",)
GRAMMAR_EXECUTION_MODES = ("constraint", "jump_forward")


class DebugConfig(BaseModel):
    """How one request departs from the ordinary. Every field takes null for its default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ignore_eos: bool = False
    """Stop tokens and stop strings do not end the answer."""
    pinned_system_prompt: bool = False
    """The prompt stays in the prefix cache until reset; the answer does not."""
    special_request: Literal["query_engine_metrics"] | None = None
    """Answered at once with one usage item whose `extra` holds the engine's metrics."""
    grammar_execution_mode: Literal["constraint", "jump_forward"] = "jump_forward"
    """`jump_forward`: text that a grammar forces is added without asking the model for it (but
    asked for where log-probabilities are wanted). `constraint`: the model is asked for every token.
    The tokens are the same: forced ones are those that the tokenizer writes, and use no random
    number."""
    disagg_config: None = None
    """Prefill and decode on different machines: not supported, so only null is taken."""

    @field_validator("ignore_eos", "pinned_system_prompt", mode="before")
    @classmethod
    def _flag(cls, value: Any, info: ValidationInfo) -> bool:
        return False if value is None else checks.boolean(str(info.field_name), value)

    @field_validator("special_request", mode="before")
    @classmethod
    def _special_request(cls, value: Any) -> Any:
        if value is not None and value not in SPECIAL_REQUESTS:
            raise checks.refuse(
                "special_request",
                value,
                f"Unknown special request {str(value)[:64]}; known: {', '.join(SPECIAL_REQUESTS)}",
            )
        return value

    @field_validator("grammar_execution_mode", mode="before")
    @classmethod
    def _grammar_execution_mode(cls, value: Any) -> Any:
        if value is None:
            return "jump_forward"
        if value not in GRAMMAR_EXECUTION_MODES:
            raise checks.refuse(
                "grammar_execution_mode",
                value,
                f"Unknown grammar execution mode {str(value)[:64]}; "
                f"known: {', '.join(GRAMMAR_EXECUTION_MODES)}",
            )
        return value

    @field_validator("disagg_config", mode="before")
    @classmethod
    def _disagg_config(cls, value: Any) -> None:
        if value is not None:
            raise checks.refuse("disagg_config", value, "disaggregated serving is not supported")
