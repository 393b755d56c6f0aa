"""The parallel lists of the older API."""

from __future__ import annotations

import json

import pytest

from mlc_llm.serve.openai.completion_logprobs import TokenLists, joined


def token(raw: bytes, logprob: float | None, *top: tuple[bytes, float]) -> str:
    others = [{"token": "?", "logprob": value, "bytes": list(one)} for one, value in top]
    shown = raw.decode(errors="replace")
    first = None if logprob is None else others
    return json.dumps(
        {"token": shown, "logprob": logprob, "bytes": list(raw), "top_logprobs": first}
    )


def test_the_first_token_of_a_prompt_has_no_probability() -> None:
    lists = TokenLists()
    prompt = lists.of_prompt([token(b"ab", None), token(b"c", -1.0, (b"d", -0.5))], "abc")
    assert prompt.token_logprobs == [None, -1.0]
    assert prompt.top_logprobs == [None, {"d": -0.5, "c": -1.0}]
    found = joined(prompt, lists.of_tokens([token(b"ef", -2.0)]))
    assert found.tokens == ["ab", "c", "ef"] and found.text_offset == [0, 2, 3]
    assert found.top_logprobs[2] == {"ef": -2.0}


@pytest.mark.parametrize(
    ("tokens", "shown", "expected"),
    [
        ([b"<s>", b" a", b"b"], "ab", [0, 0, 1]),
        ([b"<s>", b"a", b"b"], "<s>ab", [0, 3, 4]),
        (["é".encode()[:1], "é".encode()[1:], b"z"], "éz", [0, 0, 1]),
        ([b"a", "\U0001f600".encode()[:3], "\U0001f600".encode()[3:] + b"b"], "a\U0001f600b",
         [0, 1, 1]),
    ],
)  # fmt: skip
def test_offsets_count_characters_of_the_text(
    tokens: list[bytes], shown: str, expected: list[int]
) -> None:
    lists = TokenLists()
    found = lists.of_prompt([token(one, None) for one in tokens], shown)
    assert found.text_offset == expected
    assert lists.of_tokens([token(b"x", -1.0)]).text_offset == [len(shown)]


def test_two_parts_of_characters_have_two_names() -> None:
    one, other = b"\xf0\x9f", b"\xf0\x90"
    found = TokenLists().of_tokens([token(one, -1.0, (other, -0.1), (one, -1.0))])
    assert found.tokens == ["bytes:\\xf0\\x9f"]
    assert found.top_logprobs == [{"bytes:\\xf0\\x90": -0.1, "bytes:\\xf0\\x9f": -1.0}]
