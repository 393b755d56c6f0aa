"""tekken.json: ids behind those of control tokens, and files that are wrong. `test_makers_files.py`
compares ids with those of the package mistral-common."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.tokenizers import Tokenizer

PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+"
SPECIAL, MERGED = 20, [b"he", b"ll", b"hell", b"hello", b" hello"]
UNUSED = 3
"""Tokens at the end that are beyond the number of ids."""


def entry(rank: int, data: bytes) -> dict[str, Any]:
    text = base64.b64encode(data).decode("ascii")
    return {"rank": rank, "token_bytes": text, "token_str": data.decode("utf-8", "replace")}


def tekken(**changes: Any) -> dict[str, Any]:
    data = [bytes([i]) for i in range(256)] + MERGED + [b"xx", b"yy", b"zz"][:UNUSED]
    config = {
        "pattern": PATTERN, "num_vocab_tokens": len(data), "version": "v7",
        "default_vocab_size": SPECIAL + len(data) - UNUSED,
        "default_num_special_tokens": SPECIAL,
    }  # fmt: skip
    named = ["<unk>", "<s>", "</s>", "[INST]"]
    special = [{"rank": i, "token_str": text, "is_control": True} for i, text in enumerate(named)]
    made = {"config": config, "vocab": [entry(i, one) for i, one in enumerate(data)]}
    return {**made, "special_tokens": special, **changes}


def opened(folder: Path, values: dict[str, Any]) -> Tokenizer:
    (folder / "tekken.json").write_text(json.dumps(values), encoding="utf-8")
    return Tokenizer(folder)


def test_ids_begin_behind_the_control_tokens(tmp_path: Path) -> None:
    made = opened(tmp_path, tekken())
    first = SPECIAL + 256
    assert made.vocab_size == first + len(MERGED)
    assert made.encode("hello hello!") == [first + 3, first + 4, SPECIAL + ord("!")]
    assert made.encode("xx") == [SPECIAL + ord("x")] * 2, "it is beyond the number of ids"
    assert made.encode("[INST]", special=True) == [3] and 3 not in made.encode("[INST]")
    assert made.encode("<SPECIAL_19>", special=True) == [19]
    assert (made.bos_token_id, made.eos_token_ids, made.add_bos) == (1, {2}, True)
    assert made.decode([first + 3, first + 4]) == "hello hello"


def test_old_files_do_not_name_control_tokens(tmp_path: Path) -> None:
    values = tekken()
    del values["special_tokens"]
    made = opened(tmp_path, values)
    assert made.encode("[TOOL_CALLS][SUFFIX][TOOL_CONTENT]", special=True) == [9, 16, 19]
    values["config"]["version"] = "v11"
    with pytest.raises(ModelFileError, match="special_tokens should be tokens"):
        opened(tmp_path, values)


def config_with(**changes: Any) -> dict[str, Any]:
    return {"config": tekken()["config"] | changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"config": None}, "config.version = 'None' should be v and a number"),
        (config_with(pattern=3), "config.pattern should be an expression"),
        (config_with(default_vocab_size=10), "config.default_vocab_size = '10' and"),
        (config_with(default_num_special_tokens=True), "default_num_special_tokens = 'True'"),
        (config_with(default_vocab_size=999), "vocab has 264 tokens; config names 979"),
        ({"vocab": 3}, "vocab has 0 tokens"),
        ({"vocab": [entry(1, b"a"), *tekken()["vocab"][1:]]}, r"vocab\[0\] should be bytes"),
        ({"vocab": [{"rank": 0, "token_bytes": "?"}, *tekken()["vocab"][1:]]}, r"vocab\[0\]"),
        ({"vocab": [entry(0, b"a"), *tekken()["vocab"][1:]]}, "the first 256 are the bytes in"),
        (
            {"vocab": [*tekken()["vocab"][:256], *(entry(i, b"he") for i in range(256, 264))]},
            "a token is there twice",
        ),
        ({"special_tokens": [{"rank": 99, "token_str": "x"}]}, "'x' has rank 99 of 20"),
        ({"special_tokens": [3]}, "tokens with ranks of their own"),
        ({"special_tokens": [{"rank": i, "token_str": "x"} for i in (0, 1)]}, "one is there twice"),
        ({"special_tokens": [{"rank": 0, "token_str": "hello"}]}, "'hello' is a token of the text"),
    ],
)
def test_wrong_files_are_named(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises((ModelFileError, UnsupportedModel), match=words):
        opened(tmp_path, tekken(**changes))
