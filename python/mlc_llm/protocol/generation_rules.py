"""The check of each field of `GenerationConfig`. Requests and model files use the same checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mlc_llm.protocol import checks
from mlc_llm.protocol.checks import MAX_INT32

MAX_N = 128
MAX_TOP_LOGPROBS = 20
MAX_STOP_STRINGS = 64
MAX_STOP_STRING_CHARS = 1024
MAX_STOP_TOKENS = 1024
MAX_LOGIT_BIAS = 16384
MIN_REPETITION_PENALTY = 1e-6


def request_part(field: str, value: object) -> Any:
    """The pydantic model of a field that has one. Raises `UserError`."""
    from mlc_llm.protocol import request_parts

    return request_parts.CHECKED[field](field, value)


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


def _number(name: str, allowed: str = "") -> Callable[[str, object], float]:
    low, high = RANGES[name]
    return lambda field, value: checks.number(field, value, low, high, allowed)


def _integer(name: str, allowed: str = "") -> Callable[[str, object], int]:
    low, high = map(int, RANGES[name])
    return lambda field, value: checks.integer(field, value, low, high, allowed)


RANGES: dict[str, tuple[float, float]] = {
    "n": (1, MAX_N),
    "temperature": (0, 100),
    "top_p": (0, 1),
    "top_k": (0, MAX_INT32),
    "min_p": (0, 1),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
    "repetition_penalty": (MIN_REPETITION_PENALTY, 100),
    "top_logprobs": (0, MAX_TOP_LOGPROBS),
    "max_tokens": (-1, MAX_INT32),
    "seed": (-(2**63), 2**63 - 1),
}
"""The least and the greatest value of each number."""

RULES: dict[str, Callable[[str, object], Any]] = {
    "n": _integer("n", f'"n" should be at least 1 and at most {MAX_N}'),
    "temperature": _number("temperature", "should be non-negative and at most 100"),
    "top_p": _number("top_p"),
    "top_k": _integer("top_k"),
    "min_p": _number("min_p"),
    "frequency_penalty": _number("frequency_penalty"),
    "presence_penalty": _number("presence_penalty"),
    "repetition_penalty": _number(
        "repetition_penalty",
        f"should be greater than 0 (at least {MIN_REPETITION_PENALTY:g}) and at most 100",
    ),
    "logprobs": checks.boolean,
    "top_logprobs": _integer(
        "top_logprobs", f"At most {MAX_TOP_LOGPROBS} top logprobs can be asked for (0 to 20)"
    ),
    "logit_bias": _logit_bias,
    "max_tokens": _integer(
        "max_tokens", f"should be -1 (no limit) or an integer in range [0, {MAX_INT32}]"
    ),
    "seed": _integer("seed", "should be an integer in range [-2^63, 2^63 - 1]"),
    "stop_strs": _stop_strs,
    "stop_token_ids": lambda field, value: checks.token_ids(field, value, MAX_STOP_TOKENS),
    "response_format": request_part,
    "debug_config": request_part,
}
"""Field -> what makes its one form of a value, or raises `InvalidField`."""
