"""Tokenizers that take the longest token at each place (RWKV), against a plain search and against
the author's own, where its package is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_makers_files import package, texts

from mlc_llm.errors import ModelFileError
from mlc_llm.tokenizers import Tokenizer
from mlc_llm.tokenizers.longest_match import FILE

WORDS = [
    b"\n\n", b"th", b"the", b" the", b" th", b"'\"", b"\\", b"\\n", "é".encode(), "가".encode(),
    b"\xe2\x80", b"aaaa", b"aaaaaaaa", b"ing", b"<s>x",
]  # fmt: skip
TOKENS = [b"<s>", *(bytes([byte]) for byte in range(256)), *(w for w in WORDS if len(w) > 1)]


def metadata(**changes: Any) -> dict[str, Any]:
    """As llama.cpp's converter writes it."""
    shown = ["<s>", *(repr(one)[2:-1] for one in TOKENS[1:]), "[PAD]"]
    kinds = [3, *[1] * (len(TOKENS) - 1), 5]
    own = {
        "model": "rwkv",
        "tokens": shown,
        "token_type": kinds,
        "eot_token_id": TOKENS.index(b"\n\n"),
    }
    own |= {"bos_token_id": 0, "eos_token_id": 0}
    return {f"tokenizer.ggml.{key}": value for key, value in (own | changes).items()}


def write_file(folder: Path) -> Path:
    lines = []
    for i, token in enumerate(TOKENS[1:], start=1):
        try:
            literal = repr(token.decode())
        except UnicodeDecodeError:
            literal = repr(token)
        lines.append(f"{i} {literal} {len(token)}\n")
    (folder / FILE).write_text("".join(lines), encoding="utf-8")
    return folder / FILE


def longest(text: str) -> list[int]:
    """Each token tried at each place."""
    data, found, at = text.encode(), [], 0
    while at < len(data):
        fits = [one for one in TOKENS[1:] if data.startswith(one, at)]
        best = max(fits, key=len)
        found.append(TOKENS.index(best, 1))
        at += len(best)
    return found


def test_both_files_give_the_longest_token_at_each_place(tmp_path: Path) -> None:
    write_file(tmp_path)
    for made in (Tokenizer(tmp_path), Tokenizer.from_gguf_metadata(metadata())):
        for text in texts()[::5]:
            ids = made.encode(text)
            assert ids == longest(text)
            assert made.decode(ids) == text
        assert made.eos_token_ids == {0, TOKENS.index(b"\n\n")} and not made.add_bos
        assert made.encode("a<s>x", special=True)[1] == 0
        assert made.encode_segments(["a", 0, "the"]) == [*longest("a"), 0, *longest("the")]


def test_a_folder_may_name_the_token_that_ends_texts(tmp_path: Path) -> None:
    write_file(tmp_path)
    name = "<|rwkv_tokenizer_end_of_text|>"
    said = {"added_tokens_decoder": {"0": {"content": name, "special": True}}, "eos_token": name}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said), encoding="utf-8")
    made = Tokenizer(tmp_path)
    assert made.special_tokens == {name: 0} and made.eos_token_id == 0
    assert made.encode(f"a{name}", special=True) == [*longest("a"), 0]
    assert made.encode("<s>x") == longest("<s>x")


def test_ids_are_those_of_the_author(tmp_path: Path) -> None:
    theirs = package("rwkv.rwkv_tokenizer")
    path = Path(theirs.__file__).with_name(FILE)
    (tmp_path / FILE).write_bytes(path.read_bytes())
    made, other = Tokenizer(tmp_path), theirs.TRIE_TOKENIZER(str(path))
    for text in texts():
        assert made.encode(text) == other.encodeBytes(text.encode())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokens": ["<s>", "a"], "token_type": [3, 1]}, "no token is the byte 0"),
        ({"tokens": [*map(chr, range(128)), "x" * 2000], "token_type": None}, "is the byte 128"),
    ],
)
def test_vocabularies_that_are_refused(changes: dict[str, Any], words: str) -> None:
    given = {
        key: one for key, one in metadata(**changes, eot_token_id=0).items() if one is not None
    }
    with pytest.raises(ModelFileError, match=words):
        Tokenizer.from_gguf_metadata(given)


def test_a_token_that_is_too_long() -> None:
    given = metadata()
    given["tokenizer.ggml.tokens"][-2] = "x" * 1025
    with pytest.raises(ModelFileError, match="a token of 1025 bytes; at most 1024"):
        Tokenizer.from_gguf_metadata(given)


@pytest.mark.parametrize(
    "line", ["2 'a' 1", "1 'a' 2", "1 a 1", "1 __import__('os') 1", "1 'a'", "x 'a' 1", "1 [1] 1"]
)
def test_lines_that_are_wrong(tmp_path: Path, line: str) -> None:
    (tmp_path / FILE).write_text(f"{line}\n", encoding="utf-8")
    with pytest.raises(ModelFileError, match="line 1 = "):
        Tokenizer(tmp_path)
