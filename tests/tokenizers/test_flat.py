"""A flat vocabulary: the same ids and bytes as the library's whole table gives, or none at all."""

from __future__ import annotations

import random
from typing import Any

import pytest
from test_tokenizer import KEY, byte_metadata

from mlc_llm.errors import InvalidField
from mlc_llm.tokenizers import Tokenizer
from mlc_llm.tokenizers.flat import MAX_TRIES, Texts, _list
from mlc_llm.tokenizers.from_gguf import flat_form
from mlc_llm.tokenizers.words import LONGEST_WORD, MOST_CHARACTERS, MOST_IN_ALL

TEXTS = (
    "", " ", "hello", " hello  hello\n\n", "日本😀", "don't 12345", "é\u0301\u200b",
    "a<|im_end|>b", "<think>hello", "x" * (LONGEST_WORD + 1), "hello " * MOST_CHARACTERS,
)  # fmt: skip


def flat_tokenizer(metadata: dict[str, Any]) -> Tokenizer:
    data = flat_form(metadata)
    assert data is not None
    return Tokenizer.from_flat(memoryview(data), metadata)


def test_ids_are_those_of_the_whole_table() -> None:
    whole = Tokenizer.from_gguf_metadata(byte_metadata())
    rng = random.Random(1)
    pieces = [*"helo wrd'\n1é<|_", "<|im_end|>", "<|im_", "_end|>", "<think>"]
    made = ["".join(rng.choice(pieces) for _ in range(30)) for _ in range(300)]
    flat = flat_tokenizer(byte_metadata())
    for text in (*TEXTS, *made):
        for special in (False, True):
            assert flat.encode(text, special=special) == whole.encode(text, special=special)
        segments: list[str | int] = [text, 3, text]
        assert flat.encode_segments(segments) == whole.encode_segments(segments)


def test_all_else_is_the_same() -> None:
    whole, flat = Tokenizer.from_gguf_metadata(byte_metadata()), flat_tokenizer(byte_metadata())
    names = ("vocab_size", "special_tokens", "bos_token_id", "eos_token_ids", "add_bos")
    assert [getattr(flat, n) for n in names] == [getattr(whole, n) for n in names]
    every = range(whole.vocab_size)
    assert [flat.token_bytes(i) for i in every] == [whole.token_bytes(i) for i in every]


def test_short_texts_need_no_table_and_many_do() -> None:
    tokenizer = flat_tokenizer(byte_metadata())
    words = tokenizer._parts.words
    assert words is not None
    assert words.encode(["hello"]) == [tokenizer.encode("hello")]
    assert not words.can_cut("<think>")  # a token that is found in ordinary text
    assert words.encode(["h" * (MOST_CHARACTERS + 1)]) is None
    for _ in range(MOST_IN_ALL // 5):
        words.encode(["hello"])
    assert words.encode(["hello"]) is None


def test_a_prompt_with_control_tokens_needs_no_table() -> None:
    prompt = "<|im_end|>hello<|im_end|> hello"
    wanted = Tokenizer.from_gguf_metadata(byte_metadata()).encode(prompt, special=True)
    tokenizer = flat_tokenizer(byte_metadata())
    object.__setattr__(tokenizer._parts, "backends", None)  # cannot be called
    assert tokenizer.encode(prompt, special=True) == wanted


def test_a_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(InvalidField, match="lone surrogate"):
        flat_tokenizer(byte_metadata()).encode("a\ud800")


@pytest.mark.parametrize("token", ["Ġ é", "日本"])
def test_a_vocabulary_spelled_otherwise_has_no_flat_form(token: str) -> None:
    tokens = [*byte_metadata()[KEY + "tokens"], token]
    kinds = [*byte_metadata()[KEY + "token_type"], 1]
    assert flat_form(byte_metadata(tokens=tokens, token_type=kinds)) is None


def test_of_equal_texts_the_last_is_found() -> None:
    parts = _list(["a", "b", "a", ""])
    assert parts is not None
    ends, places, text = map(memoryview, parts)
    texts = Texts(ends.cast("I"), places.cast("I"), text)
    assert [texts.find(one) for one in ("a", "b", "", "c")] == [2, 1, 3, None]
    assert list(texts) == ["a", "b", "a", ""]


def test_texts_made_to_collide_have_no_flat_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlc_llm.tokenizers.flat.crc32", lambda key: 7)
    assert _list([str(i) for i in range(MAX_TRIES)]) is not None
    assert _list([str(i) for i in range(MAX_TRIES + 1)]) is None


def test_cut_or_foreign_data_are_refused() -> None:
    data = flat_form(byte_metadata())
    assert data is not None
    for wrong in (data[:-4], data + bytes(4)):
        with pytest.raises((ValueError, TypeError)):
            Tokenizer.from_flat(memoryview(wrong), byte_metadata())
