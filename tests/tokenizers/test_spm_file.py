"""SentencePiece's `tokenizer.model`: what is read of it, and which files are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spm_bytes import (
    BPE,
    BYTE,
    BYTES,
    CONTROL,
    NORMAL,
    START,
    UNIGRAM,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    block,
    characters,
    model,
    number,
    piece,
    real,
    varint,
)  # fmt: skip

from mlc_llm.errors import InvalidField, ModelFileError, UnsupportedModel
from mlc_llm.tokenizers import Tokenizer
from mlc_llm.tokenizers.characters import CharacterTable

PIECES = [*START, ("▁", -9.0, NORMAL), ("a", -9.0, NORMAL), ("b", -9.0, NORMAL)]
WORDS = [*PIECES, ("▁a", -1.0, NORMAL), ("ab", -2.0, NORMAL), ("▁ab", -3.0, NORMAL)]
PLAIN = number(4, 0)
"""remove_extra_whitespaces = false."""
NO_PREFIX = number(3, 0) + PLAIN


def opened(folder: Path, data: bytes, name: str = "tokenizer.model", **config: Any) -> Tokenizer:
    (folder / name).write_bytes(data)
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return Tokenizer(folder)


def shown(tokenizer: Tokenizer, text: str, **options: Any) -> list[str]:
    return [tokenizer.token_bytes(i).decode() for i in tokenizer.encode(text, **options)]


def test_the_best_pair_is_merged_first(tmp_path: Path) -> None:
    made = opened(tmp_path, model(WORDS[:-1], normalizer=PLAIN))
    assert shown(made, "ab a") == [" a", "b", " a"]
    assert made.vocab_size == len(WORDS) - 1 and made.add_bos and made.bos_token_id == 1
    assert made.eos_token_ids == {2} and made.special_tokens == {"<s>": 1, "</s>": 2, "<unk>": 0}
    assert made.decode(made.encode("ab a")) == "ab a"


def test_the_most_likely_way_is_taken(tmp_path: Path) -> None:
    made = opened(tmp_path, model(WORDS, UNIGRAM, normalizer=PLAIN), "spiece.model")
    assert shown(made, "ab a") == [" ab", " a"] and not made.add_bos
    assert made.encode("xxa") == [3, 0, 4], "unknown characters in a row are one token"


@pytest.mark.parametrize("algorithm", [BPE, UNIGRAM])
def test_unknown_characters_become_bytes(algorithm: int, tmp_path: Path) -> None:
    made = opened(tmp_path, model([*WORDS, *BYTES], algorithm, normalizer=NO_PREFIX))
    assert [made.token_bytes(i) for i in made.encode("aé")] == [b"a", b"\xc3", b"\xa9"]
    assert b"".join(map(made.token_bytes, made.encode("<0x41>"))) == b"<0x41>"
    assert made.token_bytes(made.encode("<0x41>")[0]) == b"<"
    text = "ab 鏷\t<s>▁"
    assert made.decode(made.encode(text)) == text.replace("▁", " ")


@pytest.mark.parametrize("algorithm", [BPE, UNIGRAM])
def test_control_tokens_are_no_text(algorithm: int, tmp_path: Path) -> None:
    letters = [(letter, -9.0, NORMAL) for letter in "<s>/unk"]
    made = opened(tmp_path, model([*WORDS, *letters], algorithm, normalizer=NO_PREFIX))
    assert made.encode("<s>") != [1] and shown(made, "<s>") == ["<", "s", ">"]
    assert made.encode("<s>a</s>", special=True) == [1, 4, 2]


@pytest.mark.parametrize(("legacy", "after"), [(True, " a"), (None, " a"), (False, "a")])
def test_the_space_in_front(legacy: bool | None, after: str, tmp_path: Path) -> None:
    config = {} if legacy is None else {"legacy": legacy}
    made = opened(tmp_path, model(WORDS, normalizer=PLAIN), **config)
    assert shown(made, "a<s>a", special=True) == [" a", "<s>", after]
    assert shown(made, "a") == [" a"] and shown(made, " a") == [" ", " a"]
    assert [made.token_bytes(i) for i in made.encode_segments(["a", "a"])] == [b" a", b"a"]
    assert made.encode("") == [] and made.strips_leading_space


def test_no_space_in_front(tmp_path: Path) -> None:
    made = opened(tmp_path, model(WORDS, normalizer=NO_PREFIX))
    assert shown(made, "a<s>a", special=True) == ["a", "<s>", "a"]
    assert not made.strips_leading_space


def test_spaces_count_once(tmp_path: Path) -> None:
    made = opened(tmp_path, model(WORDS))
    assert shown(made, "  a   a  ") == [" a", " a"] and made.encode("   ") == []


@pytest.mark.parametrize("algorithm", [BPE, UNIGRAM])
def test_user_defined_tokens_are_whole(algorithm: int, tmp_path: Path) -> None:
    wholes = [("a<x>", 0.0, USER_DEFINED), ("▁▁", 0.0, USER_DEFINED), ("b▁a", 0.0, USER_DEFINED)]
    made = opened(tmp_path, model([*WORDS, *wholes], algorithm, normalizer=NO_PREFIX))
    assert shown(made, "ba<x>b  b") == ["b", "a<x>", "b", "  ", "b"]
    assert shown(made, "ab ab") == ["a", "b a", "b"] if algorithm == BPE else ["ab", " ab"]


@pytest.mark.parametrize(("score", "wanted"), [(-0.95, ["é", "a"]), (-0.85, ["éa"])])
def test_the_score_of_a_user_defined_token(score: float, wanted: list[str], tmp_path: Path) -> None:
    # Each byte of it but one counts 0.1, so é has 0.1.
    more = [("a", -1.0, NORMAL), ("é", 0.0, USER_DEFINED), ("éa", score, NORMAL)]
    made = opened(tmp_path, model([*START, *more], UNIGRAM, normalizer=NO_PREFIX))
    assert shown(made, "éa") == wanted


def test_characters_are_replaced_but_in_user_defined_tokens(tmp_path: Path) -> None:
    table = characters({"ﬁ": "ab", "e\u0301": "b", "\u0007": "", "\t": " ", "ﬁx": "a"})
    wholes = [("ﬁb", 0.0, USER_DEFINED)]
    data = model([*WORDS, *wholes], normalizer=block(2, table) + NO_PREFIX)
    made = opened(tmp_path, data)
    assert shown(made, "ﬁ") == ["ab"] and shown(made, "aﬁb") == ["a", "ﬁb"]
    assert shown(made, "ﬁxe\u0301\u0007a\ta") == ["ab", "a", " a"]


@pytest.mark.parametrize("key", ["a", "ab", "\u00e9", "A\u0301\u0302", "日本"])
def test_the_longest_key_is_replaced(key: str) -> None:
    table = CharacterTable(characters({key: "<>", f"{key}\u0303": "[]"}))
    assert table.replaced(f"b{key}b{key}\u0303{key}") == "b<>b[]<>"
    assert table.replaced(key[:-1] + "x") == key[:-1] + "x"


@given(
    text=st.text(alphabet="ab eé\u0301ﬁ日本"), keys=st.sets(st.text("abeé\u0301ﬁ日本", min_size=1))
)
def test_replacing_is_what_it_says(text: str, keys: set[str]) -> None:
    wanted, at = "", 0
    while at < len(text):
        longest = max((key for key in keys if text.startswith(key, at)), key=len, default="")
        wanted += f"<{longest}>" if longest else text[at]
        at += len(longest) or 1
    if keys:
        assert CharacterTable(characters({k: f"<{k}>" for k in keys})).replaced(text) == wanted


def test_added_tokens(tmp_path: Path) -> None:
    added = {
        "1": {"content": "<begin>", "special": True, "rstrip": True},
        "9": {"content": "<x>", "special": False},
        "11": {"content": "<|im_end|>", "special": True},
    }
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [11, 2]}', encoding="utf-8")
    made = opened(
        tmp_path,
        model(WORDS, normalizer=NO_PREFIX),
        added_tokens_decoder=added,
        bos_token={"content": "<begin>"},
        eos_token="<|im_end|>",
        add_bos_token=False,
    )
    assert made.vocab_size == 12 and not made.add_bos and made.bos_token_id == 1
    assert made.eos_token_ids == {2, 11}
    assert made.special_tokens == {"<begin>": 1, "</s>": 2, "<|im_end|>": 11, "<unk>": 0}
    assert made.encode("<begin>  a<x>b<|im_end|>", special=True) == [1, 4, 9, 5, 11]
    assert made.encode("a<x>b") == [4, 9, 5]
    assert made.token_bytes(10) == b"<no token 10>"


def test_special_tokens_map(tmp_path: Path) -> None:
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": "ab"}', encoding="utf-8")
    (tmp_path / "added_tokens.json").write_text('{"<x>": 9}', encoding="utf-8")
    made = opened(tmp_path, model(WORDS, normalizer=NO_PREFIX))
    assert made.eos_token_ids == {2, 7} and made.vocab_size == 10
    assert made.encode("<x>") == [9]


def test_a_lone_surrogate_is_refused(tmp_path: Path) -> None:
    made = opened(tmp_path, model(WORDS))
    with pytest.raises(InvalidField, match="character 1 is a lone surrogate"):
        made.encode("a\ud800")


TWICE = [*START, ("a", 0.0, NORMAL), ("a", 0.0, NORMAL)]


@pytest.mark.parametrize(
    ("data", "error", "said"),
    [
        (b"", ModelFileError, "pieces is missing"),
        (b"\x0a", ModelFileError, "a number is cut off at byte 1"),
        (b"\x0a\xff", ModelFileError, "a number is cut off at byte 2"),
        (b"\xff" * 20, ModelFileError, "a number is cut off at byte 10"),
        (b"\x0a" + varint(10 * 2**30), ModelFileError, "field 1 should have 10737418240 bytes"),
        (b"\x0a" + varint(2**64 - 1), ModelFileError, "field 1 should have 18446744073709551615"),
        (b"\x0b", ModelFileError, "field 1 has the wire type 3"),
        (b"\x0d\0", ModelFileError, "field 1 should have 4 bytes, 1 are left"),
        (number(1, 7), ModelFileError, "the file.pieces = 7 should be bytes"),
        (block(1, b"\x0a\x7fab"), ModelFileError, "pieces[0]: field 1 should have 127 bytes"),
        (block(1, block(1, b"\xff")), ModelFileError, "pieces[0].piece = b'\\xff' should be text"),
        (block(1, real(2, 1.0)), ModelFileError, "pieces[0].piece is missing or empty"),
        (piece("a", float("nan")), ModelFileError, "pieces[0].score = nan should be a finite"),
        (piece("a", 0.0, 9), ModelFileError, "pieces[0].type = 9 should be 1 to 6"),
        (model(PIECES[1:]), ModelFileError, "pieces: 0 pieces of type UNKNOWN, one is needed"),
        (model([*PIECES, ("?", 0, UNKNOWN)]), ModelFileError, "pieces: 2 pieces of type UNKNOWN"),
        (model(TWICE), ModelFileError, "pieces[4].piece = 'a' is there twice"),
        (model(PIECES, trainer=number(41, 6)), ModelFileError, "trainer_spec.bos_id = 6 should be"),
        (model(PIECES, trainer=real(42, 1)), ModelFileError, "trainer_spec.eos_id = 1.0 should be"),
        (model(PIECES, 3), UnsupportedModel, "trainer_spec.model_type = word is not supported"),
        (model(PIECES, 77), UnsupportedModel, "trainer_spec.model_type = 77 is not supported"),
        (model(PIECES, trainer=number(24, 1)), UnsupportedModel, "treat_whitespace_as_suffix"),
        (model(PIECES, normalizer=number(5, 0)), UnsupportedModel, "escape_whitespaces = false"),
        (model(PIECES, more=block(5, block(2, b"x"))), UnsupportedModel, "denormalizer_spec"),
        (model(PIECES, normalizer=block(2, b"xyz")), ModelFileError, "charsmap: 3 bytes that are"),
        (model(PIECES, normalizer=block(2, b"\x04\0\0\0" + bytes(5)[:4] + b"a")), ModelFileError,
         "normalizer_spec.precompiled_charsmap"),
        (model([*PIECES, ("ac", -1, NORMAL)]), UnsupportedModel, "'ac' needs the piece 'c'"),
    ],
)  # fmt: skip
def test_broken_files(data: bytes, error: type[Exception], said: str, tmp_path: Path) -> None:
    with pytest.raises(error) as caught:
        opened(tmp_path, data)
    line = str(caught.value)
    assert said in line and "\n" not in line and "tokenizer.model: " in line


def test_a_table_that_leads_outside(tmp_path: Path) -> None:
    far = b"\x04\0\0\0" + (0x7FFFFC00).to_bytes(4, "little") + b"a\0"
    with pytest.raises(ModelFileError, match=r"precompiled_charsmap: unit \d+ is outside the trie"):
        opened(tmp_path, model(PIECES, normalizer=block(2, far)))


@given(cut=st.integers(0, 10_000), flip=st.integers(0, 10_000), value=st.integers(0, 255))
def test_any_damage_is_an_error_of_ours(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flip: int, value: int
) -> None:
    data = bytearray(model(WORDS, normalizer=block(2, characters({"ﬁ": "ab", "é": "b"}))))
    data[flip % len(data)] = value
    folder = tmp_path_factory.mktemp("damaged")
    try:
        opened(folder, bytes(data[: 1 + cut % (2 * len(data))])).encode("abﬁé x")
    except (ModelFileError, UnsupportedModel) as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    "written",
    [
        block(1, b"ab") + real(2, -1.0),
        block(1, b"ab") + real(2, -1.0) + number(3, NORMAL),
        block(1, b"ab") + real(2, -1.0) + number(99, 5),
        number(99, 2**40) + real(2, -1.0) + block(1, b"ab"),
        real(2, -7.0) + block(1, b"x") + block(1, b"ab") + real(2, -1.0),
    ],
)
def test_a_piece_may_be_written_in_several_ways(written: bytes, tmp_path: Path) -> None:
    made = opened(tmp_path, model(PIECES, normalizer=NO_PREFIX) + block(1, written))
    assert shown(made, "aab") == ["a", "ab"] and made.vocab_size == len(PIECES) + 1


@given(data=st.binary(max_size=20))
def test_any_bytes_of_a_piece(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    try:
        opened(tmp_path_factory.mktemp("piece"), model(PIECES) + block(1, data))
    except ModelFileError as error:
        assert "pieces[6]" in str(error)


@pytest.mark.parametrize("kind", [UNUSED, CONTROL, BYTE])
def test_pieces_that_no_text_contains(kind: int, tmp_path: Path) -> None:
    for algorithm in (BPE, UNIGRAM):
        made = opened(tmp_path, model([*PIECES, ("ab", -1, kind)], algorithm, normalizer=NO_PREFIX))
        assert shown(made, "ab") == ["a", "b"]


def test_ids_that_are_shifted_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="the ids of a CamembertTokenizer are not"):
        opened(tmp_path, model(WORDS), tokenizer_class="CamembertTokenizerFast")


def test_pieces_that_do_not_begin_as_those_of_xlm_roberta_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="XLM-RoBERTa's are of a unigram and begin with"):
        opened(tmp_path, model(WORDS[::-1]), tokenizer_class="XLMRobertaTokenizer")
