"""Thoughts, text and calls are found however the text is cut, and nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest
from answer_tools import THINK, cut_at, function, read, reader_of
from hypothesis import given
from hypothesis import strategies as st

from mlc_llm.serve.openai.tools.families import RULES
from mlc_llm.serve.openai.tools.family import Family
from mlc_llm.serve.openai.tools.json_families import HERMES, LLAMA_3, MISTRAL
from mlc_llm.serve.openai.tools.layout_family import LayoutFamily
from mlc_llm.serve.openai.tools.thinking import Opening

FUNCTIONS = [
    function("get", {"city": {"type": "string"}, "n": {"type": "integer"}}),
    function("get_more", {"list": {"type": "array"}}),
    function("now"),
]
CALLS: list[tuple[str, str]] = [
    ("get", '{"city": "Köln \\"}]\\\\", "n": 3}'),
    ("get_more", '{"list": [{"a": "</tool_call>"}, []]}'),
    ("now", "{}"),
    ("get", '{"city": "\\n a\\n\\n"}'),
    ("get", '{"city": ""}'),
]
FAMILIES = {family.name: family for _, family in RULES if family.name != "harmony"}
CUTS = st.lists(st.integers(0, 10_000), max_size=12)


def taken(family: Family) -> list[tuple[str, str]]:
    """As many calls as an answer may have."""
    several = family.layout.again  # type: ignore[attr-defined]
    return CALLS if several else CALLS[:1]


@pytest.mark.one_of(3)
@pytest.mark.parametrize("name", FAMILIES)
@given(cuts=CUTS, text=st.sampled_from(["", "Let me see: <tool, [TOOL, {x\n\n"]))
def test_any_cutting_gives_the_same_calls(name: str, cuts: list[int], text: str) -> None:
    family = FAMILIES[name]
    if family.layout.only_at_start:  # type: ignore[attr-defined]
        text = ""
    calls = taken(family)
    whole = text + family.written(calls)
    for pieces in (cut_at(whole, cuts), list(whole)):
        found = read(reader_of(family, FUNCTIONS), pieces)
        assert found.text == text.rstrip() and found.calls == calls


@pytest.mark.parametrize("name", FAMILIES)
@given(cuts=CUTS, place=st.integers(0, 10_000), junk=st.sampled_from(["@", "<", "{", "\n~\n", "é"]))
def test_what_only_looks_like_a_call_is_text(
    name: str, cuts: list[int], place: int, junk: str
) -> None:
    """A head with something wrong in it is text, all of it."""
    family = FAMILIES[name]
    if not isinstance(family, LayoutFamily):
        return
    layout, (first, _) = family.layout, CALLS[0]
    head = layout.mark + layout.first + layout.spelled(first) + layout.middle
    at = place % len(head)
    text = " ok: \n" + head[:at] + junk + head[at:] + "and so on {}"
    if "get" not in text or text.replace(junk, "") != " ok: \n" + head + "and so on {}":
        return
    found = read(reader_of(family, FUNCTIONS), cut_at(text, cuts))
    assert (found.text, found.calls) == (text, [])


PIECES = st.sampled_from(
    ["<tool_call>", "\n", '{"name": "', "get", '", "arguments": ', "{", "}", "</tool_call>", "x ",
     "[TOOL_CALLS]", "[ARGS]", "<think>", "</think>", '"', "</", "<"]
)  # fmt: skip


@given(
    parts=st.lists(PIECES, max_size=12), cuts=CUTS, kind=st.sampled_from([HERMES, MISTRAL, LLAMA_3])
)
def test_cutting_changes_nothing_in_any_text(parts: list[str], cuts: list[int], kind: Any) -> None:
    text = "".join(parts)
    whole = read(reader_of(kind, FUNCTIONS, THINK), [text])
    assert read(reader_of(kind, FUNCTIONS, THINK), cut_at(text, cuts)) == whole
    if not whole.calls and not text.lstrip().startswith("<think>"):
        assert whole.text == text


@pytest.mark.parametrize(
    ("opening", "text", "reasoning", "rest"),
    [
        (Opening.BEFORE, "<think>\na b\n</think>\n\nc\n", "a b", "c\n"),
        (Opening.BEFORE, "\n <think>a</think>b", "a", "b"),
        (Opening.BEFORE, "\n a <think>b</think>", "", "\n a <think>b</think>"),
        (Opening.BEFORE, "<think", "", "<think"),
        (Opening.BEFORE, " \n", "", " \n"),
        (Opening.BEFORE, "<think>a </thin", "a </thin", ""),
        (Opening.INSIDE, "\na\n\n</think>\n\nb", "a", "b"),
        (Opening.INSIDE, "<think>", "<think>", ""),
        (Opening.INSIDE, "</think>a", "", "a"),
        (Opening.BEHIND, "<think>a</think>", "", "<think>a</think>"),
        (Opening.BEHIND, "\n\na", "", "a"),
    ],
)
@given(cuts=CUTS)
def test_thoughts_are_apart(
    opening: Opening, text: str, reasoning: str, rest: str, cuts: list[int]
) -> None:
    found = read(reader_of(None, [], THINK, opening), cut_at(text, cuts))
    assert (found.reasoning, found.text) == (reasoning, rest)


@given(cuts=CUTS)
def test_calls_behind_thoughts_and_not_inside_them(cuts: list[int]) -> None:
    call = HERMES.written(CALLS[:1])
    text = f"<think>\nI could {call}\n</think>\n\n{call}"
    found = read(reader_of(HERMES, FUNCTIONS, THINK), cut_at(text, cuts))
    assert (found.reasoning, found.text, found.calls) == (f"I could {call}", "", CALLS[:1])


@pytest.mark.parametrize("space", ["", " ", "\n", "\n  "])
def test_white_space_is_free_between_the_parts_of_a_call(space: str) -> None:
    text = '<tool_call>{"name":"get","arguments":{"n": 1}}</tool_call>'
    text = (
        text.replace(">{", f">{space}{{")
        .replace(":", f"{space}:{space}")
        .replace("}<", f"}}{space}<")
    )
    found = read(reader_of(HERMES, FUNCTIONS), list(text))
    assert found.values == [("get", {"n": 1})] and found.text == ""


def test_an_answer_that_is_cut() -> None:
    text = "x\n" + HERMES.written(CALLS[:1])
    for end in range(len(text)):
        found = read(reader_of(HERMES, FUNCTIONS), list(text[:end]), is_cut=True)
        begun = '"arguments": {' in text[:end]
        assert found.text == (text[:end] if end < len("x\n<tool_call>") else "x")
        assert [name for name, _ in found.calls] == (["get"] if begun else [])
        assert not begun or CALLS[0][1].startswith(found.calls[0][1])
