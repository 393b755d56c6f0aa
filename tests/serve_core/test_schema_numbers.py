"""Numbers of schemas: what the grammar library would change is refused, or moved inside."""

from __future__ import annotations

import json
from typing import Any

import pytest
from grammar_tools import allowed_ids, matcher_of, tokenizer
from hostile_grammars import Format, lark, schema
from hostile_runner import measured
from hypothesis import assume, given
from hypothesis import strategies as st

from mlc_llm.errors import InvalidField
from mlc_llm.testing.byte_tokenizer import IM_END

INT64 = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


def embedded(value: Any) -> Format:
    return lark(f"start: %json {json.dumps(value)}")


def accepts(form: Format, text: str) -> bool:
    matcher = matcher_of(form)
    for token in tokenizer().encode(text):
        if matcher.is_finished or token not in allowed_ids(matcher.mask()):
            return False
        matcher.accept(token)
    return matcher.is_finished or IM_END in allowed_ids(matcher.mask())


def is_allowed(value: dict[str, Any], number: float) -> bool:
    """The four bounds, as JSON Schema has them."""
    return (
        number >= value.get("minimum", number)
        and number > value.get("exclusiveMinimum", number - 1)
        and number <= value.get("maximum", number)
        and number < value.get("exclusiveMaximum", number + 1)
    )


@pytest.mark.parametrize("form", [schema, embedded], ids=["schema", "in a grammar"])
@pytest.mark.parametrize(
    ("value", "texts", "others"),
    [
        ({"exclusiveMinimum": 0, "maximum": 0.5}, ["0.1", "0.5"], ["0", "0.0", "0.51"]),
        ({"exclusiveMinimum": 10, "exclusiveMaximum": 10.5}, ["10.1"], ["10", "10.0", "10.5"]),
        ({"minimum": -1.5, "exclusiveMaximum": -1}, ["-1.5", "-1.01"], ["-1", "-1.0", "-1.6"]),
        ({"allOf": [{"exclusiveMinimum": 0}, {"maximum": 0.5}]}, ["0.1"], ["0", "0.6"]),
        ({"exclusiveMinimum": 1, "maximum": 3}, ["2", "3", "1.5"], ["1", "1.0", "4"]),
    ],
)
def test_an_excluded_bound_is_excluded(
    form: Any, value: dict[str, Any], texts: list[str], others: list[str]
) -> None:
    wanted = form({"type": "number", **value})
    assert [text for text in [*texts, *others] if accepts(wanted, text)] == texts
    whole = form({"type": ["integer", "null"], **value})
    found = [text for text in [*texts, *others] if "." not in text and accepts(whole, text)]
    assert found == [text for text in texts if "." not in text]


@given(
    st.dictionaries(
        st.sampled_from(BOUNDS),
        st.integers(-3, 3) | st.sampled_from([-1.5, -0.25, 0.25, 0.5, 1.5, 2.75]),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(["number", "integer", ["number", "null"]]),
    st.integers(-3, 3) | st.sampled_from([-1.5, -0.25, -1.01, 0.25, 0.5, 1.5, 2.75, 0.01]),
)
def test_no_number_outside_is_accepted(value: dict[str, Any], kind: Any, number: float) -> None:
    assume(kind != "integer" or number % 1 == 0)
    try:
        found = accepts(schema({"type": kind, **value}), json.dumps(number))
    except InvalidField:  # nothing is allowed
        return
    assert found == is_allowed(value, number)


@pytest.mark.parametrize("form", [schema, embedded], ids=["schema", "in a grammar"])
def test_the_bounds_of_64_bits_are_moved_inside(form: Any) -> None:
    inside, outside = ["0", "-9223372036854773760"], ["-9223372036854775809", str(2**63)]
    assert [text for text in [*inside, *outside] if accepts(form(INT64), text)] == inside
    assert accepts(form({"type": "integer", "minimum": 0, "maximum": 2**64 - 1}), "5")
    assert accepts(form({"type": "number", "minimum": -1e300, "maximum": 1e300}), "-0.5")


@pytest.mark.parametrize("kind", ["number", ["number", "null"], "integer"])
@pytest.mark.parametrize("power", [54, 60, 62])
def test_large_bounds_are_not_passed(kind: Any, power: int) -> None:
    """The library writes them with 17 digits."""
    value = {"type": kind, "minimum": 0, "maximum": 2**power}
    assert accepts(schema(value), str(2**power - 5000))
    for beyond in (1, 2, 5, 24, 100, 200):
        assert not accepts(schema(value), str(2**power + beyond))


@pytest.mark.parametrize("form", [schema, embedded], ids=["schema", "in a grammar"])
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"const": 2**53 + 1}, r"const = 9007199254740993 .*at most 9007199254740992 in size"),
        ({"const": -(2**63)}, "const.*at most 9007199254740992"),
        ({"const": {"a": [1, 1e300]}}, "const.*write a larger one as a string"),
        ({"type": "integer", "enum": [1, 1234567890123456789]}, "enum = 1234567890123456789"),
        ({"minimum": 2**53 + 1}, "minimum = 9007199254740993 .*a number that float64 has"),
        ({"exclusiveMaximum": 2**53 + 3}, "exclusiveMaximum.*float64"),
        ({"type": "integer", "maximum": -(2**63)}, "maximum.*numbers are from"),
        ({"minimum": 1e300}, "minimum.*numbers are from"),
        ({"items": {"anyOf": [{"const": 2**60}]}}, "const.*at most"),
    ],
)
def test_what_would_become_another_number_is_refused(
    form: Any, value: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidField, match=words):
        matcher_of(form(value))


def test_names_and_data_are_no_bounds() -> None:
    value = {
        "type": "object",
        "properties": {"const": {"type": "integer"}, "minimum": {"const": {"maximum": 5}}},
        "default": {"const": 2**70},
        "required": ["const", "minimum"],
    }
    assert accepts(schema(value), '{"const": 7, "minimum": {"maximum": 5}}')


def test_no_number_ends_the_process() -> None:
    """The library itself falls into endless recursion at the least number of 64 bits."""
    edges = [-(2**63) - 1, -(2**63), 1 - 2**63, -(2**63) + 2048, -1e300, -(2**62), 2**63, 1e300]
    forms = {}
    for edge in edges:
        forms[f"const {edge}"] = schema({"const": edge})
        forms[f"enum {edge}"] = embedded({"enum": [edge, 1]})
        for other in edges:
            bounds = {"minimum": edge, "maximum": other}
            forms[f"whole {edge} {other}"] = schema({"type": "integer", **bounds})
            excluded = {"exclusiveMinimum": edge, "exclusiveMaximum": other}
            forms[f"number {edge} {other}"] = schema({"type": "number", **excluded})
    for name, run in measured(forms).items():
        assert not run.died, name
