"""Tokens that were added to the vocabulary of tokenizer.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlc_llm.tokenizers import Tokenizer
from mlc_llm.tokenizers.streamer import TextStreamer

LLAMA_NORMALIZER = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ],
}
LLAMA_DECODER = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}
PLAIN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def llama(folder: Path, *added: Mapping[str, Any]) -> Tokenizer:
    letters = ["<unk>", "<s>", "</s>", "▁", *"abcdefghijklmnopqrstuvwxyz<>"]
    entries = [{**PLAIN, "special": False, **one, "id": len(letters) + i}
               for i, one in enumerate(added)]  # fmt: skip
    spec = {
        "version": "1.0",
        "added_tokens": entries,
        "normalizer": LLAMA_NORMALIZER,
        "decoder": LLAMA_DECODER,
        "model": {
            "type": "BPE",
            "vocab": {text: i for i, text in enumerate(letters)},
            "merges": [],
            "unk_token": "<unk>",
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    return Tokenizer(folder)


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
