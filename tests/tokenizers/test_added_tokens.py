"""Tokens that were added to the vocabulary of tokenizer.json."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers as hf
from json_tokenizers import llama

from mlc_llm.tokenizers.streamer import TextStreamer


def test_tokens_of_normalised_text_keep_the_space_before_them(tmp_path: Path) -> None:
    made = llama(tmp_path, {"content": "<think>", "normalized": True}, {"content": "<raw>"})
    for text in ("go <think> now", "<think>", "a <think>b <think> <think>"):
        ids = made.encode(text)
        assert made.decode(ids) == text
        streamer = TextStreamer(made)
        assert "".join([*(streamer.put([one]) for one in ids), streamer.finish()]) == text
    assert made.token_bytes(made.encode("go <think>")[-1]) == b" <think>"
    assert made.token_bytes(made.encode("go<raw>")[-1]) == b"<raw>"


def test_control_tokens_keep_their_names(tmp_path: Path) -> None:
    made = llama(tmp_path, {"content": "<end>", "normalized": True, "special": True})
    assert made.decode([made.special_tokens["<end>"]]) == "<end>"


@pytest.mark.parametrize(
    "text",
    ["a<w>b", "a <w> b", "a<w>", "<w>b", "<w>", "<<w>>", "<w><w>", "a<e><w> <w>b<e>", "é<w>"],
)
def test_whole_words_are_no_parts_of_words(text: str, tmp_path: Path) -> None:
    word = {"content": "<w>", "special": True, "single_word": True}
    made = llama(tmp_path, word, {"content": "<e>", "special": True})
    library = hf.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    pieces = made.split_control(text)
    assert made.encode_segments(pieces) == made.encode(text, special=True)
    assert made.encode_segments(pieces) == library.encode(text).ids
    assert pieces.count(made.special_tokens["<w>"]) == library.encode(text).tokens.count("<w>")


def test_names_in_words_are_names_to_the_guard(tmp_path: Path) -> None:
    """A template may cut the word off."""
    made = llama(tmp_path, {"content": "<w>", "special": True, "single_word": True})
    assert made.control_spans("a<w>b") == [(1, 4)]
