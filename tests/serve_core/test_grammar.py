"""Compiling response formats, and following them token by token."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import pytest
from grammar_tools import (
    PADDED,
    EndlessTokenizer,
    allowed_ids,
    compiler,
    fits,
    matcher_of,
    random_tokens,
    response_format,
    schemas,
    tokenizer,
)
from hostile_grammars import gbnf, lark, regex, schema
from hypothesis import given
from hypothesis import strategies as st

from mlc_llm.errors import InvalidField, RequestError
from mlc_llm.serve.core.grammar import compiler as grammar_compiler
from mlc_llm.serve.core.grammar import library as grammar_library
from mlc_llm.serve.core.grammar.compiler import GrammarCompiler
from mlc_llm.testing.byte_tokenizer import IM_END, IM_START, VOCABULARY_SIZE

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def text_of(tokens: list[int]) -> str:
    return tokenizer().decode(tokens)


def next_bytes(value: dict[str, Any], so_far: str) -> set[bytes]:
    """The single bytes that may follow a text."""
    matcher = matcher_of(value)
    for token in so_far.encode():
        matcher.accept(token)
    return {bytes([i]) for i in allowed_ids(matcher.mask()) if i < 256}


@given(schemas(), st.integers(0, 2**32))
def test_what_is_drawn_under_a_schema_always_parses_and_fits(value: Any, seed: int) -> None:
    tokens = random_tokens(matcher_of(schema(value)), seed)
    if tokens is not None:
        assert fits(json.loads(text_of(tokens)), value)


@given(schemas(), st.integers(0, 2**32))
def test_forced_tokens_are_what_the_mask_allows_and_what_the_tokenizer_writes(
    value: Any, seed: int
) -> None:
    matcher, plain = (matcher_of(schema(value)) for _ in range(2))
    tokens = random_tokens(matcher_of(schema(value)), seed)
    for token in tokens or []:
        matcher.accept(token)
        plain.accept(token)
        forced = matcher.forced_tokens()
        if forced:
            for one in forced:
                assert one in allowed_ids(plain.mask())
                assert not plain.ends(one)
                plain.accept(one)
            if not text_of(forced).startswith("\ufffd"):  # else it begins inside a character
                assert tokenizer().encode(text_of(forced)) == forced
            break


def test_forced_tokens_are_remembered_as_long_as_they_hold() -> None:
    """A matcher that was asked before says the same as one that never was."""
    value = regex("[xy]the hello there of the then[xy] and another")
    matcher, rng, tokens = matcher_of(value), np.random.default_rng(1), []
    while not matcher.is_finished:
        fresh = matcher_of(value)
        for token in tokens:
            fresh.accept(token)
        forced, expected = matcher.forced_tokens(), fresh.forced_tokens()
        assert expected[: len(forced)] == forced and bool(forced) == bool(expected)
        choices = allowed_ids(matcher.mask())
        assert not forced or choices == forced[:1]
        tokens.append(int(rng.choice(choices)))
        matcher.accept(tokens[-1])


def test_json_stands_on_one_line_and_most_of_it_is_forced() -> None:
    matcher = matcher_of(schema(PERSON))
    matcher.accept(ord("{"))
    written = text_of(matcher.forced_tokens())
    assert '{"name": "'.startswith("{" + written) and len(written) >= 5


def test_white_space_is_free_for_a_schema_that_asks_for_it() -> None:
    free = schema({**PERSON, "x-guidance": {"whitespace_flexible": True}})
    assert b"\n" in next_bytes(free, "{")
    assert b"\n" not in next_bytes(schema(PERSON), "{")


def test_json_object_without_a_schema_is_any_object() -> None:
    assert next_bytes({"type": "json_object"}, "") == {b"{"}
    tokens = random_tokens(matcher_of({"type": "json_object"}), 3)
    assert tokens is not None and isinstance(json.loads(text_of(tokens)), dict)


def test_true_is_any_json() -> None:
    assert {b"{", b"[", b'"', b"1", b"n", b"t"} <= next_bytes(
        {"type": "json_object", "schema": "true"}, ""
    )


def test_the_token_that_completes_a_text_finishes_it() -> None:
    matcher = matcher_of(schema(PERSON))
    for token in b'{"name": "Bo", "age": 3':
        matcher.accept(token)
        assert not matcher.is_finished
    assert set(allowed_ids(matcher.mask())) >= {ord("}"), ord("0")}
    assert IM_END not in allowed_ids(matcher.mask())
    matcher.accept(ord("}"))
    assert matcher.is_finished


def test_a_text_that_may_go_on_can_be_ended_by_the_end_token_alone() -> None:
    matcher = matcher_of(schema({"type": "integer"}))
    assert IM_END not in allowed_ids(matcher.mask())
    matcher.accept(ord("7"))
    assert not matcher.is_finished
    assert IM_END in allowed_ids(matcher.mask())
    assert matcher.ends(IM_END) and not matcher.ends(ord("7"))


@pytest.mark.parametrize("value", [schema(PERSON), regex("(.|\n)*"), lark('start: "a"*')])
def test_padding_and_control_tokens_are_forbidden(value: dict[str, Any]) -> None:
    mask = matcher_of(value).mask()
    assert len(mask) == 4 * -(-PADDED // 32)
    ids = allowed_ids(mask)
    assert max(ids) < VOCABULARY_SIZE
    control = set(tokenizer().special_tokens.values())
    assert IM_START in control and not control & set(ids) - tokenizer().eos_token_ids


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (regex("[a-c]{3}-\\d+x"), "abc-12x"),
        (regex("a/b"), "a/b"),
        (lark('start: greeting " " NAME "!"\ngreeting: "hi" | "ho"\nNAME: /[a-z]{2}/'), "ho du!"),
        (gbnf('root ::= item+ "."\nitem ::= "x" | [0-9]'), "x3x."),
        (gbnf('root ::= "(" root ")" | "é"'), "((é))"),
    ],
)
def test_other_languages(value: dict[str, Any], text: str) -> None:
    matcher = matcher_of(value)
    for token in text.encode():
        assert token in allowed_ids(matcher.mask())
        matcher.accept(token)
    assert matcher.is_finished or IM_END in allowed_ids(matcher.mask())
    assert ord("?") not in allowed_ids(matcher_of(value).mask())


CALL = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<f=add>", "schema": {"type": "integer"}, "end": "</f>"},
        {"begin": "<f=say>", "schema": {"type": "string"}, "end": "</f>"},
        {"begin": "<|tool|>", "schema": {"type": "boolean"}, "end": "<|im_end|>"},
    ],
    "triggers": ["<f=", "<|tool|>"],
}


def test_tags_leave_the_text_around_them_free() -> None:
    assert {b"H", b"<", b"\n"} <= next_bytes(CALL, "")
    assert next_bytes(CALL, "Hi <f=") == {b"a", b"s"}
    assert next_bytes(CALL, "Hi <f=a") == {b"d"}
    assert b"0" in next_bytes(CALL, "Hi <f=add>")
    assert b"<" in next_bytes(CALL, "Hi <f=add>12")
    assert b"H" in next_bytes(CALL, "Hi <f=add>12</f>")


def test_a_control_token_can_start_a_tag() -> None:
    matcher, tool = matcher_of(CALL), tokenizer().special_tokens["<|tool|>"]
    assert tool in allowed_ids(matcher.mask())
    matcher.accept(tool)
    assert set(b"tf") >= {i for i in allowed_ids(matcher.mask()) if i < 256}
    for token in b"true":
        matcher.accept(token)
    assert allowed_ids(matcher.mask()) == [IM_END]


def test_a_control_token_inside_a_trigger_is_refused() -> None:
    tags = [{"begin": "x<|tool|>", "schema": {}}]
    value = {"type": "structural_tag", "structures": tags, "triggers": ["x<|tool|>"]}
    with pytest.raises(InvalidField, match="trigger of its own"):
        matcher_of(value)


def test_a_token_that_is_not_allowed_fails() -> None:
    for token in (ord("x"), IM_END, VOCABULARY_SIZE + 1, PADDED + 1):
        matcher = matcher_of(schema(PERSON))
        with pytest.raises(RequestError, match="the grammar cannot be used"):
            matcher.accept(token)


def test_matchers_of_one_grammar_do_not_disturb_each_other() -> None:
    found = compiler().compile(response_format(schema(PERSON)))
    first, second = found.matcher(), found.matcher()
    with pytest.raises(RequestError):
        first.accept(ord("x"))
    second.accept(ord("{"))
    assert ord('"') in allowed_ids(second.mask())
    assert found.matcher().mask() == found.first_mask


def test_what_others_made_of_a_shared_lexer_does_not_end_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grammar_library, "MAX_LEXER_STATES", 3000)
    one = GrammarCompiler(tokenizer(), PADDED, [IM_END])
    wanted = response_format(regex("(a|b)*a(a|b){60}c"))
    found = one.compile(wanted)

    def drawn(seed: int) -> int:
        matcher, count = found.matcher(), 0
        tokens = (int(c) for c in f"{seed * 7919 + 12345:b}" * 9)
        for bit in tokens:
            matcher.accept(ord("ab"[bit]))
            matcher.mask()
            count += 1
        return count

    assert {drawn(seed) for seed in range(40)} >= {9 * 14}
    assert one.compile(wanted) is not found, "a worn grammar is not given out again"


def test_a_grammar_is_compiled_once() -> None:
    one = GrammarCompiler(tokenizer(), PADDED, [IM_END])
    assert one.compile(response_format(schema(PERSON))) is one.compile(
        response_format(schema(PERSON))
    )


def test_threads_share_what_one_of_them_compiles() -> None:
    one = GrammarCompiler(tokenizer(), PADDED, [IM_END])
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda: found.append(one.compile(response_format(schema(PERSON)))))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(map(id, found))) == 1


def test_refusals_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    one = GrammarCompiler(tokenizer(), PADDED, [IM_END])
    wanted = response_format(schema({"$ref": "#"}))
    with pytest.raises(InvalidField) as first:
        one.compile(wanted)
    monkeypatch.setattr(grammar_compiler, "library_text", None)
    with pytest.raises(InvalidField) as second:
        one.compile(wanted)
    assert str(first.value) == str(second.value)
    assert "response_format.schema" in str(first.value)


def test_the_cache_is_bounded_in_bytes_and_keeps_what_was_used_last() -> None:
    one = GrammarCompiler(tokenizer(), PADDED, [IM_END], max_cache_bytes=2**20)
    wanted = [response_format(schema({"const": f"value {i}"})) for i in range(20)]
    kept = one.compile(wanted[0])
    for other in wanted[1:]:
        one.compile(other)
        assert one.compile(wanted[0]) is kept
        assert one.cache_cost <= 2**20
    assert one.compile(wanted[0]) is kept


def test_a_grammar_that_grows_with_its_use_is_dropped() -> None:
    one = GrammarCompiler(tokenizer(), PADDED, [IM_END], max_cache_bytes=2**20)
    grown = one.compile(response_format(schema(PERSON)))
    grown.charge(seconds=1.0)
    one.compile(response_format(schema({"const": 1})))
    assert one.cache_cost <= 2**20
    assert one.compile(response_format(schema(PERSON))) is not grown


def test_a_vocabulary_without_an_end_token() -> None:
    """Then a text ends where nothing can follow."""
    one = GrammarCompiler(EndlessTokenizer(), 310, [])  # type: ignore[arg-type]
    matcher = one.compile(response_format(lark('start: "ab" "c"?'))).matcher()
    matcher.accept(ord("a"))
    matcher.accept(ord("b"))
    assert not matcher.is_finished
    assert allowed_ids(matcher.mask()) == [ord("c")]
    matcher.accept(ord("c"))
    assert matcher.is_finished
