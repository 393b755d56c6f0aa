"""The names of the echo engine: `mock://echo`, and `mock://echo?step_ms=20&prompt_ms=0.5` for one
that takes as long as a model would."""

from __future__ import annotations

from urllib.parse import parse_qsl

from mlc_llm.errors import InvalidField
from mlc_llm.protocol import checks
from mlc_llm.record import record

MOCK_ECHO = "mock://echo"
LONGEST_MS = 10_000
FIELDS = ("step_ms", "prompt_ms")


@record()
class EchoPace:
    """How long the echo engine takes."""

    step_s: float = 0.0
    """For a step."""
    prompt_s: float = 0.0
    """For a token of a prompt, in addition."""


def is_echo(model: str | None) -> bool:
    """The echo engine is meant. Its fields are not checked."""
    return model is not None and model.partition("?")[0] == MOCK_ECHO


def echo_pace(model: str) -> EchoPace:
    """The pace in a name of the echo engine. Raises `InvalidField`."""
    values = dict.fromkeys(FIELDS, 0.0)
    for name, text in parse_qsl(model.partition("?")[2], keep_blank_values=True):
        if name not in values:
            raise InvalidField("model", model, f"the echo engine knows {' and '.join(FIELDS)}")
        values[name] = checks.number(name, _number(text), 0, LONGEST_MS)
    return EchoPace(values["step_ms"] / 1e3, values["prompt_ms"] / 1e3)


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
