"""The two fields of `GenerationConfig` that are pydantic models; loaded when one is first used."""

from __future__ import annotations

from collections.abc import Callable

from mlc_llm.protocol.debug_protocol import DebugConfig
from mlc_llm.protocol.error_protocol import validated
from mlc_llm.protocol.response_format import RequestResponseFormat


def _response_format(field: str, value: object) -> RequestResponseFormat:
    return validated(RequestResponseFormat, value, field)


def _debug_config(field: str, value: object) -> DebugConfig:
    return validated(DebugConfig, value, field)


CHECKED: dict[str, Callable[[str, object], RequestResponseFormat | DebugConfig]] = {
    "response_format": _response_format,
    "debug_config": _debug_config,
}
"""Field -> the function that makes its model of a mapping, or raises `UserError` of one line."""
