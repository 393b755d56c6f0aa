"""Small tokenizers in tokenizer.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlc_llm.tokenizers import Tokenizer

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


def llama(folder: Path, *added: Mapping[str, Any], **config: object) -> Tokenizer:
    """Letters, and added tokens behind them. config: for tokenizer_config.json."""
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
    return opened(folder, spec, **config)


def opened(folder: Path, spec: Mapping[str, Any], **config: object) -> Tokenizer:
    for name, value in {"tokenizer.json": spec, "tokenizer_config.json": config}.items():
        (folder / name).write_text(json.dumps(value), encoding="utf-8")
    return Tokenizer(folder)
