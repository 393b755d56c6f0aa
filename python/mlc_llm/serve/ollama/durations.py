"""Lengths of time as Ollama's API has them: a number of seconds, or a text such as "1h30m".

Source: https://pkg.go.dev/time#ParseDuration, which reads the texts there.
"""

from __future__ import annotations

import math
import re

from mlc_llm.protocol import checks

UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
ALLOWED = 'should be seconds, or a text such as "5m" or "1h30m"; a negative one means for good'
MAX_CHARS = 64
_PART = re.compile(r"([0-9]{1,15}(?:\.[0-9]{0,15})?|\.[0-9]{1,15})(ns|us|µs|ms|s|m|h)")


def seconds_of(value: object) -> float | None:
    """Seconds; infinite for a negative length, None for None. Raises `InvalidField` that names
    `keep_alive`."""
    if value is None:
        return None
    if isinstance(value, str):
        found = _parsed(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        found = float(value)
    else:
        raise checks.wrong_type("keep_alive", value, ALLOWED)
    if found is None or math.isnan(found):
        raise checks.refuse("keep_alive", value, ALLOWED)
    return math.inf if found < 0 else found


def _parsed(text: str) -> float | None:
    """The seconds of a text, which may be a number without a unit; None: it is neither."""
    if len(text) > MAX_CHARS:
        return None
    is_negative = text.startswith("-")
    rest = text[1:] if text[:1] in ("-", "+") else text
    if re.fullmatch(r"[0-9]{1,15}(?:\.[0-9]{1,15})?", rest):
        found = float(rest)
    elif rest and not _PART.sub("", rest):
        found = sum(float(number) * UNITS[unit] for number, unit in _PART.findall(rest))
    else:
        return None
    return -found if is_negative else found
