"""Tokens that were added to the vocabulary of tokenizer.json."""

from __future__ import annotations

from pathlib import Path

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
