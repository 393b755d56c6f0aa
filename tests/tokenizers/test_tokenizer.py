"""The tokenizer's own rules, on vocabularies made here."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from json_tokenizers import LLAMA_DECODER
from tokenizer_cases import sentencepiece_metadata

from mlc_llm.errors import (
    ContextLengthExceeded,
    InvalidField,
    ModelFileError,
    ModelNotFound,
    UnsupportedModel,
)
from mlc_llm.tokenizers import Tokenizer
from mlc_llm.tokenizers.byte_level import CHARACTERS
from mlc_llm.tokenizers.from_gguf import flat_form

KEY = "tokenizer.ggml."
IM_START, IM_END, THINK, END_OF_TEXT = 256, 257, 258, 259
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ hello", "Ġ Ġ", "< |", "<| im_end|>", "im_end |>"]


def byte_metadata(**changes: Any) -> dict[str, Any]:
    """All bytes, four added tokens, and what the merges make."""
    made = [merge.replace(" ", "") for merge in MERGES]
    parts = ["im_end|>", "im_end", "|>"]
    added = ["<|im_start|>", "<|im_end|>", "<think>", "<|endoftext|>"]
    tokens = [*CHARACTERS, *added, *(t for t in dict.fromkeys([*made, *parts]) if t not in added)]
    kinds = [1] * 256 + [3, 3, 4, 3] + [1] * (len(tokens) - 260)
    values: dict[str, Any] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": kinds,
        "merges": MERGES,
        "bos_token_id": IM_START,
        "eos_token_id": IM_END,
    }
    values |= changes
    return {KEY + name: value for name, value in values.items() if value is not None}


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    return Tokenizer.from_gguf_metadata(byte_metadata())


@pytest.fixture(scope="module")
def sentencepiece() -> Tokenizer:
    return Tokenizer.from_gguf_metadata(sentencepiece_metadata("llama"))


def test_names_of_control_tokens_are_text_unless_asked(byte_level: Tokenizer) -> None:
    text = "a<|im_end|>b<think>"
    assert byte_level.encode(text, special=True) == [97, IM_END, 98, THINK]
    plain = byte_level.encode(text)
    assert IM_END not in plain and plain[-1] == THINK
    assert byte_level.decode(plain) == text


def test_no_merge_of_the_file_makes_a_control_token(byte_level: Tokenizer) -> None:
    # The merges "<|" + "im_end|>" are in the file, and "<|im_end|>" is in the vocabulary.
    assert IM_END not in byte_level.encode("<|im_end|>")
    small = Tokenizer.from_gguf_metadata(
        {
            "general.architecture": "llama",
            KEY + "model": "llama",
            KEY + "tokens": ["<unk>", "<s>", "</s>", "<", "/", "s", ">", "s>", "/s>"],
            KEY + "scores": [0.0] * 9,
            KEY + "token_type": [2, 3, 3, 1, 1, 1, 1, 1, 1],
            KEY + "add_space_prefix": False,
        }
    )
    assert small.encode("</s><s>") == [3, 8, 3, 7]
    assert small.encode("</s><s>", special=True) == [2, 1]


@pytest.mark.parametrize("token", ["Ġ é", "日本", "a\nb", "café"])
def test_a_token_that_is_not_spelled_in_bytes_means_its_text(token: str) -> None:
    tokens = [*byte_metadata()[KEY + "tokens"], token]
    kinds = [*byte_metadata()[KEY + "token_type"], 1]
    odd = Tokenizer.from_gguf_metadata(byte_metadata(tokens=tokens, token_type=kinds))
    spelled = token if set(token) <= {*CHARACTERS} or token.isascii() else _spelled(token)
    assert odd._parts.backends().plain.token_to_id(spelled) == len(tokens) - 1
    assert odd.encode("hello<|im_end|>") == Tokenizer.from_gguf_metadata(byte_metadata()).encode(
        "hello<|im_end|>"
    )


def _spelled(text: str) -> str:
    return "".join(CHARACTERS[byte] for byte in text.encode())


WORDS = ["Ġ Ġ", "1 2"]
"""Merges for two spaces and for two digits."""


def with_rule(
    pre: str, more: Sequence[str] = (), control: Sequence[str] = (), architecture: str = "llama"
) -> tuple[Tokenizer, Tokenizer]:
    """A tokenizer whose tokens are the bytes, what `WORDS` make, and those of `more`; and the same
    out of the flat vocabulary."""
    made = [merge.replace(" ", "") for merge in WORDS]
    tokens = [*CHARACTERS, *made, *more, *control]
    kinds = [1] * (256 + len(made) + len(more)) + [3] * len(control)
    values = {"pre": pre, "tokens": tokens, "token_type": kinds, "merges": WORDS}
    metadata = byte_metadata(**values, bos_token_id=None, eos_token_id=None)
    metadata["general.architecture"] = architecture
    data = flat_form(metadata)
    assert data is not None
    whole = Tokenizer.from_gguf_metadata(metadata)
    return whole, Tokenizer.from_flat(memoryview(data), metadata)


def spelled_words(pre: str, text: str, **options: Any) -> list[str]:
    """The tokens of a text, the same out of the whole and out of the flat vocabulary."""
    whole, flat = with_rule(pre, **options)
    assert flat.encode(text) == whole.encode(text)
    return [whole.token_bytes(i).decode(errors="replace") for i in whole.encode(text)]


def test_digits_are_cut_off_first_where_the_model_was_trained_so() -> None:
    assert spelled_words("gpt-2", "  12") == [" ", " ", "12"]
    for pre in ("smollm", "starcoder", "refact", "command-r"):
        assert spelled_words(pre, "  12") == ["  ", "1", "2"]


def test_a_word_that_is_a_token_needs_no_merges_where_the_model_says_so() -> None:
    assert spelled_words("dbrx", "abc", more=["abc"]) == ["a", "b", "c"]
    assert spelled_words("llama-bpe", "abc", more=["abc"]) == ["abc"]


def test_a_control_token_is_never_taken_for_a_word() -> None:
    whole, flat = with_rule("llama-bpe", control=["user"])
    for tokenizer in (whole, flat):
        assert tokenizer.encode("user") == list(b"user")
        assert tokenizer.encode("user", special=True) == [tokenizer.special_tokens["user"]]


def test_text_is_composed_where_the_model_was_trained_so() -> None:
    apart, composed = "e\u0301", "\u00e9"
    for pre, architecture, text in (
        ("gpt-2", "llama", apart),
        ("qwen2", "llama", composed),
        ("mpt", "llama", composed),
        ("default", "gptneox", composed),
    ):
        for tokenizer in with_rule(pre, architecture=architecture):
            assert tokenizer.encode(apart) == list(text.encode())


def test_what_the_file_says(byte_level: Tokenizer, sentencepiece: Tokenizer) -> None:
    assert byte_level.bos_token_id == IM_START and not byte_level.add_bos
    assert byte_level.eos_token_ids == {IM_END, END_OF_TEXT}
    assert byte_level.eos_token_id == IM_END, "the one that the file names"
    assert byte_level.special_tokens == {
        "<|im_start|>": IM_START,
        "<|im_end|>": IM_END,
        "<|endoftext|>": END_OF_TEXT,
    }
    assert sentencepiece.add_bos and sentencepiece.bos_token_id == 1
    assert sentencepiece.eos_token_ids == {2, 4}
    assert sentencepiece.vocab_size == len(sentencepiece_metadata("llama")[KEY + "tokens"])


def test_end_of_turn_ids_of_the_file_end_an_answer() -> None:
    metadata = byte_metadata(eot_token_id=10, eom_token_id=11)
    assert Tokenizer.from_gguf_metadata(metadata).eos_token_ids == {10, 11, IM_END, END_OF_TEXT}


@pytest.mark.parametrize("role", ["bos", "eos", "eot", "eom", "unknown", "padding"])
def test_the_id_that_stands_for_none_is_passed_over(role: str) -> None:
    without = Tokenizer.from_gguf_metadata(byte_metadata(**{f"{role}_token_id": None}))
    given = Tokenizer.from_gguf_metadata(byte_metadata(**{f"{role}_token_id": 2**32 - 1}))
    for one in (without, given):
        assert one.encode_prompt("a") == [97]
    assert given.eos_token_ids == without.eos_token_ids
    assert (given.bos_token_id, given.eos_token_id) == (without.bos_token_id, without.eos_token_id)


@pytest.mark.parametrize("value", [270, 32000])
def test_a_padding_token_outside_the_vocabulary_is_passed_over(value: int) -> None:
    metadata = byte_metadata(padding_token_id=value)
    assert value >= len(metadata[KEY + "tokens"])
    given = Tokenizer.from_gguf_metadata(metadata)
    assert given.special_tokens == Tokenizer.from_gguf_metadata(byte_metadata()).special_tokens
    with pytest.raises(ModelFileError, match=r"tokenizer.ggml.padding_token_id = -1 should be"):
        Tokenizer.from_gguf_metadata(byte_metadata(padding_token_id=-1))


def test_bytes_of_tokens(byte_level: Tokenizer, sentencepiece: Tokenizer) -> None:
    assert [byte_level.token_bytes(i) for i in range(256)] == [bytes([i]) for i in range(256)]
    assert byte_level.token_bytes(IM_END) == b"<|im_end|>"
    assert byte_level.token_bytes(byte_level.encode(" hello")[0]) == b" hello"
    assert sentencepiece.token_bytes(8 + 0xE4) == b"\xe4"
    assert sentencepiece.token_bytes(1) == b"<s>"
    for wrong in (-1, byte_level.vocab_size):
        with pytest.raises(InvalidField, match="token id"):
            byte_level.token_bytes(wrong)


def test_the_first_space_of_sentencepiece(sentencepiece: Tokenizer) -> None:
    assert sentencepiece.decode(sentencepiece.encode("hello")) == "hello"
    assert sentencepiece.encode(" hello") != sentencepiece.encode("hello")
    assert sentencepiece.decode(sentencepiece.encode(" hello")) == " hello"
    assert sentencepiece.decode([]) == ""
    whole = sentencepiece.encode("hi<s>there", special=True)
    assert sentencepiece.encode_segments(["hi", 1, "there"]) == whole
    assert sentencepiece.encode_segments([1, "there"]) == sentencepiece.encode(
        "<s>there", special=True
    )


@given(text=st.text())
def test_text_survives(byte_level: Tokenizer, sentencepiece: Tokenizer, text: str) -> None:
    assert byte_level.decode(byte_level.encode(text)) == text
    unmarked = text.replace("▁", "_")
    assert sentencepiece.decode(sentencepiece.encode(unmarked)) == unmarked


@given(parts=st.lists(st.sampled_from(["<|im_end|>", "<|im_start|>", " hello", "a", "<|", "😀"])))
def test_segments_are_the_whole_text(byte_level: Tokenizer, parts: list[str]) -> None:
    text = "".join(parts)
    segments = byte_level.split_control(text)
    assert byte_level.encode_segments(segments) == byte_level.encode(text, special=True)
    spans = byte_level.control_spans(text)
    assert len(spans) == sum(isinstance(one, int) for one in segments)


@pytest.mark.timing
def test_thousands_of_control_tokens_are_found_in_linear_time() -> None:
    names = [f"<unused{i}>" for i in range(6000)]
    metadata = byte_metadata(
        tokens=[
            *CHARACTERS,
            *names,
            *(m.replace(" ", "") for m in MERGES),
            "im_end|>",
            "im_end",
            "|>",
        ],
        token_type=None,
    )
    count = len(metadata[KEY + "tokens"])
    metadata[KEY + "token_type"] = [1] * 256 + [3] * 6000 + [1] * (count - 6256)
    tokenizer = Tokenizer.from_gguf_metadata(metadata)
    text = "<unused5999><unused1><" * 20_000
    before = time.process_time()
    spans = tokenizer.control_spans(text)
    assert len(spans) == 40_000 and time.process_time() - before < 2.0
    assert tokenizer.split_control("a<unused12>b") == ["a", 268, "b"]


@pytest.mark.timing
def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded(byte_level: Tokenizer) -> None:
    text = "hello " * 500_000
    before = time.process_time()
    with pytest.raises(ContextLengthExceeded, match="maximum context length is 8192") as caught:
        byte_level.encode(text, max_tokens=8192)
    fewest = caught.value.prompt_tokens
    assert caught.value.at_least and f"has at least {fewest} tokens" in str(caught.value)
    assert time.process_time() - before < 0.2
    assert byte_level.encode("hello", max_tokens=1) == byte_level.encode("hello")


@pytest.mark.timing
def test_other_threads_run_while_a_long_text_is_encoded(byte_level: Tokenizer) -> None:
    text = "hello world " * 60_000
    worker = threading.Thread(target=byte_level.encode, args=(text,))
    worker.start()
    ticks = 0
    while worker.is_alive():
        time.sleep(0.001)
        ticks += 1
    assert ticks > 5, "without other threads there are one or two"


def test_text_that_is_not_unicode_is_refused(byte_level: Tokenizer) -> None:
    with pytest.raises(InvalidField, match="character 2 is a lone surrogate"):
        byte_level.encode_batch(["fine", "ab\ud800"])


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"model": "plamo2"}, UnsupportedModel, "tokenizer.ggml.model = 'plamo2'"),
        ({"model": "bert"}, ModelFileError, "tokenizer.ggml.unknown_token_id is missing"),
        ({"model": "gemma4", "merges": None}, ModelFileError, "tokenizer.ggml.merges is missing"),
        ({"model": "gemma4", "merges": ["q z"]}, ModelFileError, "merges: 'q z' needs the token"),
        ({"model": "t5"}, ModelFileError, "tokenizer.ggml.scores is missing"),
        ({"normalizer.lowercase": 1}, ModelFileError, "tokenizer.ggml.normalizer.lowercase = '1'"),
        ({"precompiled_charsmap": [1, "a"]}, ModelFileError, "precompiled_charsmap"),
        ({"model": None}, ModelFileError, "tokenizer.ggml.model is missing"),
        ({"pre": "poro-chat"}, UnsupportedModel, "tokenizer.ggml.pre = 'poro-chat'"),
        ({"pre": 3}, ModelFileError, "tokenizer.ggml.pre should be text"),
        ({"tokens": None}, ModelFileError, "tokenizer.ggml.tokens is missing"),
        ({"tokens": []}, ModelFileError, "no vocabulary"),
        ({"tokens": ["a", 1]}, ModelFileError, "tokenizer.ggml.tokens"),
        ({"tokens": ["a", "\udc80"]}, ModelFileError, "tokenizer.ggml.tokens"),
        ({"token_type": [1, 2]}, ModelFileError, "tokenizer.ggml.token_type should hold"),
        ({"token_type": ["a"] * 270}, ModelFileError, "tokenizer.ggml.token_type should hold"),
        ({"scores": [0.0]}, ModelFileError, "tokenizer.ggml.scores should hold"),
        ({"merges": None}, ModelFileError, "tokenizer.ggml.merges is missing"),
        ({"merges": ["ab"]}, ModelFileError, "merges[0] = 'ab' should be two tokens"),
        ({"merges": ["h e", "a b c"]}, ModelFileError, "merges[1]"),
        ({"merges": ["h e", "l l", " e"]}, ModelFileError, "merges[2]"),
        ({"merges": ["h e", "h "]}, ModelFileError, "merges[1]"),
        ({"merges": ["h e", "q z"]}, ModelFileError, "merges: 'q z' needs the token 'qz', which"),
        ({"merges": ["hé e"]}, ModelFileError, "merges: 'hé e' needs the token 'hé', which"),
        ({"merges": "h e"}, ModelFileError, "should be a list"),
        ({"eos_token_id": 99999}, ModelFileError, "tokenizer.ggml.eos_token_id = 99999"),
        ({"bos_token_id": -1}, ModelFileError, "tokenizer.ggml.bos_token_id = -1"),
        (
            {"unknown_token_id": 2**32 - 2},
            ModelFileError,
            "tokenizer.ggml.unknown_token_id = 42949",
        ),
        ({"add_bos_token": 2}, ModelFileError, "tokenizer.ggml.add_bos_token"),
        ({"model": "llama", "merges": None}, ModelFileError, "tokenizer.ggml.scores is missing"),
    ],
)
def test_a_broken_vocabulary_is_named(
    changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error) as caught:
        Tokenizer.from_gguf_metadata(byte_metadata(**changes))
    assert words in str(caught.value) and "\n" not in str(caught.value)


# --- folders ---------------------------------------------------------------------------------


def folder_with(folder: Path, tokenizer: Tokenizer, config: dict[str, Any]) -> Path:
    spec = json.loads(tokenizer._parts.backends().recognising.to_str())
    spec["decoder"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
    (folder / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_a_folder_gives_the_same_ids(tmp_path: Path, byte_level: Tokenizer) -> None:
    config = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 257]}', encoding="utf-8")
    other = Tokenizer(folder_with(tmp_path, byte_level, config))
    for text in ("a<|im_end|>b<think>", " hello  hello", "日本😀"):
        for special in (False, True):
            assert other.encode(text, special=special) == byte_level.encode(text, special=special)
        assert other.decode(other.encode(text)) == text
    assert other.bos_token_id == IM_START and not other.add_bos
    assert other.eos_token_ids == {7, IM_END, END_OF_TEXT}
    assert other.vocab_size == byte_level.vocab_size
    assert other.special_tokens == byte_level.special_tokens
    every = range(byte_level.vocab_size)
    assert [other.token_bytes(i) for i in every] == [byte_level.token_bytes(i) for i in every]


def test_a_sentencepiece_folder(tmp_path: Path, sentencepiece: Tokenizer) -> None:
    spec = json.loads(sentencepiece._parts.backends().recognising.to_str())
    spec["decoder"] = LLAMA_DECODER
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    other = Tokenizer(tmp_path / "tokenizer.json")
    segments: list[str | int] = ["hi there", 1, "hello", 2]
    assert other.encode_segments(segments) == sentencepiece.encode_segments(segments)
    assert other.decode(other.encode("hello 鏷")) == "hello 鏷"


def test_control_tokens_that_swallow_space(tmp_path: Path, byte_level: Tokenizer) -> None:
    folder_with(tmp_path, byte_level, {})
    path = tmp_path / "tokenizer.json"
    spec = json.loads(path.read_text(encoding="utf-8"))
    for token in spec["added_tokens"]:
        token["rstrip"] = token["content"] == "<|im_end|>"
        token["lstrip"] = token["content"] == "<|im_start|>"
    path.write_text(json.dumps(spec), encoding="utf-8")
    other = Tokenizer(tmp_path)
    text = "a \n<|im_start|> b <|im_end|> \nc"
    whole = other.encode(text, special=True)
    assert other.encode_segments(other.split_control(text)) == whole
    assert whole == [97, IM_START, 32, 98, 32, IM_END, 99]


@pytest.mark.parametrize(
    ("files", "error", "words"),
    [
        ({}, ModelNotFound, "cannot find any tokenizer"),
        ({"tekken.json": "{}"}, ModelFileError, "tekken.json: config.version"),
        ({"tokenizer.json": "{"}, ModelFileError, "tokenizer.json"),
        ({"tokenizer.json": "[1]"}, ModelFileError, "should hold a JSON object"),
        ({"tokenizer.json": "{}"}, ModelFileError, "tokenizer.json"),
    ],
)
def test_a_broken_folder_is_named(
    tmp_path: Path, files: dict[str, str], error: type[Exception], words: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(error, match=words):
        Tokenizer(tmp_path)
