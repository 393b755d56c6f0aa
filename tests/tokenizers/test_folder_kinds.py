"""Folders without tokenizer.json: which file is taken, and what is read of each kind."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from spm_bytes import NORMAL, START, model
from tiny_folders import tokenizer_files

from mlc_llm.errors import ModelFileError, ModelNotFound, UnsupportedModel
from mlc_llm.tokenizers import Tokenizer
from mlc_llm.tokenizers.byte_level import CHARACTERS

MERGES = ["h e", "l l", "he ll", "hell o", "Ġ hello"]
MADE = [merge.replace(" ", "") for merge in MERGES]
ENTRIES = {token: i for i, token in enumerate([*CHARACTERS, *MADE, "<|endoftext|>"])}
HELLO, SPACED, END = ENTRIES["hello"], ENTRIES["Ġhello"], ENTRIES["<|endoftext|>"]


def write(folder: Path, files: Mapping[str, Any]) -> Path:
    for name, value in files.items():
        if isinstance(value, bytes):
            (folder / name).write_bytes(value)
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            (folder / name).write_text(text, encoding="utf-8")
    return folder


def bpe_files(**config: Any) -> dict[str, Any]:
    values = {"tokenizer_class": "GPT2Tokenizer", **config}
    merges = "\n".join(["#version: 0.2", *MERGES, ""])
    return {"vocab.json": ENTRIES, "merges.txt": merges, "tokenizer_config.json": values}


def ranks(*more: bytes) -> str:
    tokens = [*(bytes([byte]) for byte in range(256)), *more]
    return "".join(f"{base64.b64encode(one).decode()} {i}\n" for i, one in enumerate(tokens))


# --- which file ------------------------------------------------------------------------------

BY_PREFERENCE: dict[str, dict[str, Any]] = {
    "tokenizer.json": {},  # filled in below
    "tokenizer.model": {"tokenizer.model": model([*START, ("a", 0.0, NORMAL), ("▁", 0.0, NORMAL)])},
    "spiece.model": {"spiece.model": model([*START, ("▁", 0.0, NORMAL), ("a", 0.0, NORMAL)], 1)},
    "qwen.tiktoken": {"qwen.tiktoken": ranks()},
    "vocab.json": bpe_files(),
    "vocab.txt": {"vocab.txt": "[UNK]\n##a\na\n"},
}


def sizes(folder: Path) -> int:
    return Tokenizer(folder).vocab_size


def test_the_order_of_preference(tmp_path: Path) -> None:
    write(tmp_path, {"README.md": ""})
    with pytest.raises(ModelNotFound, match=r"cannot find any tokenizer \(tokenizer\.json, tekken"):
        Tokenizer(tmp_path)
    expected = []
    for name, size in (
        ("vocab.txt", 3),
        ("vocab.json", len(ENTRIES)),
        ("qwen.tiktoken", 256 + 208),
        ("spiece.model", 5),
        ("tokenizer.model", 5),
    ):
        write(tmp_path, BY_PREFERENCE[name])
        assert sizes(tmp_path) == size
        expected.append(name)
    assert Tokenizer(tmp_path).encode("a") == [4, 3], "tokenizer.model comes before spiece.model"
    spec = {
        "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
        "added_tokens": [],
        "decoder": {"type": "ByteFallback"},
    }
    write(tmp_path, {"tokenizer.json": spec})
    assert sizes(tmp_path) == 1


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"vocab.json": {"a": 0}}, "no tokenizer in vocab.json; known are tokenizer.json, tek"),
        ({"merges.txt": "a b"}, "no tokenizer in merges.txt; known are"),
        (
            {"sentencepiece.bpe.model": b"x"},
            "bpe.model without tokenizer_class are not",
        ),
        ({"a.tiktoken": ranks(), "b.tiktoken": ""}, "no tokenizer in a.tiktoken, b.tiktoken"),
    ],
)
def test_other_kinds_are_named(files: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        Tokenizer(write(tmp_path, files))
    assert said in str(caught.value)


# --- vocab.json and merges.txt -----------------------------------------------------------------


def test_bpe_files(tmp_path: Path) -> None:
    made = Tokenizer(write(tmp_path, bpe_files()))
    assert made.encode("hello hello") == [HELLO, SPACED]
    assert made.encode("a<|endoftext|>", special=True) == [ENTRIES["a"], END]
    assert END not in made.encode("a<|endoftext|>")
    assert made.bos_token_id == END and made.eos_token_ids == {END} and not made.add_bos
    assert made.decode(made.encode("é hello\n")) == "é hello\n"


def test_added_tokens_of_bpe_files(tmp_path: Path) -> None:
    added = {
        str(END + 1): {"content": "<|im_end|>", "special": True, "lstrip": True},
        str(END + 3): {"content": "<think>", "special": False},
    }
    files = bpe_files(tokenizer_class="Qwen2Tokenizer", added_tokens_decoder=added, eos_token=None)
    files["special_tokens_map.json"] = {"eos_token": {"content": "<|im_end|>"}, "bos_token": "<?>"}
    made = Tokenizer(write(tmp_path, files))
    assert made.vocab_size == END + 4 and made.bos_token_id is None
    assert made.encode("hello<think>hello") == [HELLO, END + 3, HELLO]
    assert made.encode_segments(["hello ", END + 1]) == [HELLO, END + 1]
    assert made.eos_token_ids == {END + 1}


@pytest.mark.parametrize(
    ("rule", "text", "pieces"),
    [
        ({"tokenizer_class": "GPT2TokenizerFast"}, "e\u0301 12", ["e", "\u0301", " ", "12"]),
        ({"tokenizer_class": "Qwen2Tokenizer"}, "e\u0301 12", ["\u00e9", " ", "1", "2"]),
        ({"tokenizer_class": "GPT2Tokenizer", "model_type": "starcoder2"}, "12", ["1", "2"]),
        ({"tokenizer_class": "Other", "model_type": "qwen3"}, "12", ["1", "2"]),
    ],
)
def test_the_class_or_the_model_says_how_words_are_cut(
    rule: dict[str, str], text: str, pieces: list[str], tmp_path: Path
) -> None:
    more = {"12": 300, "Ã©": 301, "Ì\u0123": 302}  # the last two are é and an accent, in bytes
    files = bpe_files(tokenizer_class=rule["tokenizer_class"])
    files["vocab.json"] = {**ENTRIES, **more}
    files["merges.txt"] += "1 2\nÃ ©\nÌ \u0123\n"
    files["config.json"] = {"model_type": rule.get("model_type", "")}
    made = Tokenizer(write(tmp_path, files))
    assert [made.token_bytes(i).decode() for i in made.encode(text)] == pieces


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"merges.txt": "h e\nab\n"}, ModelFileError, "merges.txt: line 2 = 'ab' should be two"),
        ({"merges.txt": "h e f\n"}, ModelFileError, "merges.txt: line 1 = 'h e f' should be two"),
        ({"merges.txt": "q z\n"}, ModelFileError, "merges.txt: 'q z' needs the token 'qz', which"),
        ({"merges.txt": b"\xff\n"}, ModelFileError, "merges.txt: 'utf-8' codec can't decode"),
        ({"vocab.json": "{"}, ModelFileError, "vocab.json: "),
        ({"vocab.json": {}}, ModelFileError, "vocab.json: 0 tokens"),
        ({"vocab.json": {"a": "b"}}, ModelFileError, "vocab.json: 1 tokens with ids up to"),
        ({"vocab.json": {"a": -1}}, ModelFileError, "vocab.json: 1 tokens with ids up to"),
        ({"vocab.json": {"a": 10**12}}, ModelFileError, "vocab.json: 1 tokens with ids up to"),
        ({"vocab.json": {"a": 900}}, ModelFileError, "vocab.json: 1 tokens with ids up to 900"),
        ({"vocab.json": {"a": 0, "b": 0}}, ModelFileError, "'b' and 'a' have one id"),
        ({"tokenizer_config.json": {}}, UnsupportedModel, "neither tokenizer_class = '' nor"),
        ({"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}},
         UnsupportedModel, "add_prefix_space = true is not supported"),
        ({"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": 1}},
         ModelFileError, "tokenizer_config.json: add_bos_token = '1' should be true or false"),
        ({"tokenizer_config.json": {"added_tokens_decoder": {"x": {"content": "a"}}}},
         ModelFileError, "added_tokens_decoder['x'] should be a token with an id and a content"),
        ({"tokenizer_config.json": {"added_tokens_decoder": {"1": {}}}}, ModelFileError, "['1']"),
        ({"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer",
                                    "added_tokens_decoder": {"9999999": {"content": "<x>"}}}},
         ModelFileError, "the added token '<x>' has the id 9999999; vocab.json has"),
        ({"added_tokens.json": {"<x>": "a"}}, ModelFileError, "added_tokens.json: '<x>' should be"),
    ],
)  # fmt: skip
def test_broken_bpe_files(
    changes: dict[str, Any], error: type[Exception], said: str, tmp_path: Path
) -> None:
    with pytest.raises(error) as caught:
        Tokenizer(write(tmp_path, {**bpe_files(), **changes}))
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert "tokenizer.ggml" not in str(caught.value)


# --- tiktoken --------------------------------------------------------------------------------


def test_tiktoken(tmp_path: Path) -> None:
    made = Tokenizer(write(tmp_path, {"qwen.tiktoken": ranks(b"he", b"llo", b"ll", b"hello")}))
    assert made.encode("hello") == [259], "a word that is a token"
    assert made.encode("hellox") == [259, 120]
    assert made.special_tokens["<|im_end|>"] == 262 and made.vocab_size == 260 + 208
    assert made.eos_token_ids == {260, 262} and not made.add_bos
    assert made.encode("e\u0301") == made.encode("\u00e9")
    assert made.decode(made.encode("é 鏷 \n")) == "é 鏷 \n"


def test_the_lower_rank_is_merged_first(tmp_path: Path) -> None:
    made = Tokenizer(write(tmp_path, {"qwen.tiktoken": ranks(b"bc", b"ab", b"abc")}))
    assert made.encode("abcd") == [258, 100] and made.encode("abd") == [257, 100]


def test_llama_3_with_its_own_control_tokens(tmp_path: Path) -> None:
    files = {"tokenizer.model": ranks(b"12", b"123"), "config.json": {"model_type": "llama"}}
    made = Tokenizer(write(tmp_path, files))
    assert made.bos_token_id == 258 and made.add_bos and len(made.special_tokens) == 256
    assert made.special_tokens["<|eot_id|>"] == 258 + 9
    assert made.special_tokens["<|reserved_special_token_246|>"] == 258 + 255
    assert made.encode("1234") == [257, ord("4")]


def test_control_tokens_of_the_config_come_first(tmp_path: Path) -> None:
    added = {"300": {"content": "<|end|>", "special": True}}
    config = {"added_tokens_decoder": added, "eos_token": "<|end|>", "pat_str": r"\s++$|.{1,2}+|\n"}
    made = Tokenizer(write(tmp_path, {"x.tiktoken": ranks(), "tokenizer_config.json": config}))
    assert made.special_tokens == {"<|end|>": 300} and made.eos_token_ids == {300}
    assert made.vocab_size == 301


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("YQ== x\n", ModelFileError, "line 1 = 'YQ== x' should be a token and a rank"),
        (ranks() + "YQ 256\n", ModelFileError, "line 257 = 'YQ 256'"),
        (ranks() + "YQ== 7\n", ModelFileError, "line 257 = 'YQ== 7' should be a token and a rank"),
        (ranks() + "YQ== 9999999\n", ModelFileError, "a rank of its own below 257"),
        (ranks() + "YQ== 256\n", ModelFileError, "a token is there twice"),
        ("YQ== 0\n", ModelFileError, "a byte has no token of its own"),
        ("", ModelFileError, "a byte has no token of its own"),
    ],
)
def test_broken_tiktoken_files(
    text: str, error: type[Exception], said: str, tmp_path: Path
) -> None:
    with pytest.raises(error) as caught:
        Tokenizer(write(tmp_path, {"qwen.tiktoken": text}))
    assert said in str(caught.value) and "qwen.tiktoken: " in str(caught.value)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "it does not say how text is cut into words; neither its name does, nor model_type"),
        ({"pat_str": "("}, "the pattern '(': "),
        ({"pat_str": r"\d{1,3}+x"}, "}+ inside an alternative"),
    ],
)
def test_unknown_patterns(config: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        Tokenizer(write(tmp_path, {"x.tiktoken": ranks(), "tokenizer_config.json": config}))
    assert said in str(caught.value) and "\n" not in str(caught.value)


# --- vocab.txt -------------------------------------------------------------------------------

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##able", "##▁", "▁", "é", "e"]


def test_word_pieces(tmp_path: Path) -> None:
    made = Tokenizer(write(tmp_path, {"vocab.txt": "\r\n".join(WORDS) + "\r\n"}))
    assert made.encode("Unable xyz é ▁▁") == [4, 5, 1, 9, 7, 6]
    assert made.encode("[CLS]un[SEP]", special=True) == [2, 4, 3] and 2 not in made.encode("[CLS]")
    assert made.decode([4, 5, 4]) == "unable un" and made.eos_token_ids == {3}


def test_word_pieces_with_accents_and_capitals(tmp_path: Path) -> None:
    config = {"do_lower_case": False}
    files = {"vocab.txt": "\n".join(WORDS), "tokenizer_config.json": config}
    made = Tokenizer(write(tmp_path, files))
    assert made.encode("un Un é") == [4, 1, 8]


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"vocab.txt": ""}, ModelFileError, "vocab.txt: empty, or a token is there twice"),
        ({"vocab.txt": "a\na\n"}, ModelFileError, "vocab.txt: empty, or a token is there twice"),
        ({"vocab.txt": "a\nb\n"}, ModelFileError, "unk_token is missing"),
        (
            {"tokenizer_config.json": {"tokenize_chinese_chars": False}},
            UnsupportedModel,
            "tokenize_",
        ),
    ],
)
def test_broken_word_lists(
    changes: dict[str, Any], error: type[Exception], said: str, tmp_path: Path
) -> None:
    with pytest.raises(error) as caught:
        Tokenizer(write(tmp_path, {"vocab.txt": "\n".join(WORDS), **changes}))
    assert said in str(caught.value)


def test_tokens_that_would_take_too_much_memory(tmp_path: Path) -> None:
    long = [("a" * 3000 + str(i), 0.0, NORMAL) for i in range(20)]
    with pytest.raises(ModelFileError, match="pieces: the tokens are too long and too many"):
        Tokenizer(write(tmp_path, {"tokenizer.model": model([*START, *long])}))


def test_a_panic_of_the_library_is_an_error_of_the_file(tmp_path: Path) -> None:
    """Its panics are no `Exception`."""
    spec = json.loads(tokenizer_files()["tokenizer.json"])
    spec["model"] |= {"continuing_subword_prefix": "#####", "merges": spec["model"]["merges"][:1]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    with pytest.raises(ModelFileError, match=r"tokenizer\.json: .*out of range"):
        Tokenizer(tmp_path)
