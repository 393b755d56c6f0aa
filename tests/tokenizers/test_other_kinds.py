"""SentencePiece's prefixes, WordPiece and Unigram, on vocabularies made here."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizer_cases import sentencepiece_metadata

from mlc_llm.errors import ModelFileError
from mlc_llm.tokenizers import Tokenizer

KEY = "tokenizer.ggml."


def tokenizer(architecture: str, **values: Any) -> Tokenizer:
    keys = {KEY + name: value for name, value in values.items()}
    return Tokenizer.from_gguf_metadata({"general.architecture": architecture, **keys})


def texts(made: Tokenizer, ids: list[int], tokens: list[str]) -> list[str]:
    return [tokens[i] for i in ids]


# --- SentencePiece BPE -----------------------------------------------------------------------

SMALL = ["<unk>", "<s>", "</s>", "▁", "a", "▁a", "▁▁", "▁▁▁"]


def small(architecture: str = "llama", control: str = "<s>", **changes: Any) -> Tokenizer:
    tokens = [control if token == "<s>" else token for token in SMALL]
    values = {
        "model": "llama",
        "tokens": tokens,
        "token_type": [2, 3, 3, 1, 1, 1, 1, 1],
        "scores": [0.0, 0.0, 0.0, -9.0, -9.0, -1.0, -2.0, -3.0],
        "bos_token_id": 1,
        "unknown_token_id": 0,
    }
    return tokenizer(architecture, **values | changes)


def test_a_space_goes_before_each_stretch_of_text() -> None:
    made = small()
    assert [SMALL[i] for i in made.encode("a")] == ["▁a"]
    assert [SMALL[i] for i in made.encode(" a")] == ["▁", "▁a"]
    whole = made.encode("a<s>a", special=True)
    assert [SMALL[i] for i in whole] == ["▁a", "<s>", "▁a"]
    assert made.encode_segments(["a", 1, "a"]) == whole


@pytest.mark.parametrize("architecture", ["llama", "phi3"])
def test_text_that_goes_on_gets_no_space(architecture: str) -> None:
    made = small(architecture)
    assert [SMALL[i] for i in made.encode_segments(["a", "a"])] == ["▁a", "a"]
    assert [SMALL[i] for i in made.encode_segments(["", "a"])] == ["a"]


PHI = ["<unk>", "<s>", "</s>", "▁", "a", "▁a", "<|end|>", "<|endoftext|>", "<pad>"]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("<|end|> \n a<|end|>\n", ["<|end|>", "▁a", "<|end|>"]),
        ("<|end|>\n<|end|>", ["<|end|>", "<|end|>"]),
        ("</s>  a", ["</s>", "▁a"]),
        ("<|endoftext|> a", ["<|endoftext|>", "▁", "▁a"]),
        ("<s> a<pad> a", ["<s>", "▁", "▁a", "<pad>", "▁", "▁a"]),
    ],
)
def test_tokens_of_phi_3_remove_the_white_space_behind_them(text: str, tokens: list[str]) -> None:
    kinds = [3, 3, 4, 1, 1, 1, 3, 3, 3]
    made = small("phi3", tokens=PHI, token_type=kinds, scores=[0.0] * 3 + [-9.0, -9.0] + [-1.0] * 4)
    ids = made.encode(text, special=True)
    assert [PHI[i] for i in ids] == tokens
    assert made.encode_segments(made.split_control(text)) == ids
    other = small(tokens=PHI, token_type=kinds, scores=[0.0] * 3 + [-9.0, -9.0] + [-1.0] * 4)
    assert len(other.encode("<|end|> a", special=True)) == 3, "Llama's keep it"


def test_only_the_start_gets_a_space_in_mistrals_newer_vocabularies() -> None:
    made = small(control="[INST]")
    whole = made.encode("a[INST]a", special=True)
    assert [SMALL[i] for i in whole] == ["▁a", "<s>", "a"]
    assert made.encode_segments(["a", 1, "a"]) == whole


def test_no_space_where_the_file_says_so() -> None:
    made = small(add_space_prefix=False)
    assert [SMALL[i] for i in made.encode("a a")] == ["a", "▁a"]
    assert not made.strips_leading_space


def test_gemma_takes_the_longest_run_of_spaces_first() -> None:
    """Its file writes runs as spaces, user-defined, all with one score."""
    tokens = [token.replace("▁", " ") if "▁▁" in token else token for token in SMALL]
    kinds = [3, 3, 3, 1, 1, 1, 4, 4]
    made = small("gemma3", tokens=tokens, token_type=kinds, scores=[-1000.0] * 8)
    assert [SMALL[i] for i in made.encode("    !")][:2] == ["▁▁▁", "▁"]
    assert made.decode(made.encode("    a")) == "    a"


def test_the_fourth_gemma_has_merges_and_byte_tokens() -> None:
    metadata = sentencepiece_metadata("gemma4") | {KEY + "model": "gemma4"}
    tokens = metadata[KEY + "tokens"]
    pair = next(token for token in tokens if len(token) == 2 and {*token} <= {*tokens})
    made = Tokenizer.from_gguf_metadata(metadata | {KEY + "merges": [" ".join(pair)]})
    assert made.encode(pair.replace("▁", " ")) == [tokens.index(pair)]
    assert [tokens[i] for i in made.encode("\x07")] == ["<0x07>"]
    assert made.add_bos


# --- WordPiece -------------------------------------------------------------------------------

PIECES = ["[PAD]", "[UNK]", "[CLS]", "▁un", "able", "▁cafe", "▁[", "▁]", "▁cls", "▁!", "▁Un"]


def wordpiece(**changes: Any) -> Tokenizer:
    kinds = [3, 3, 3] + [1] * (len(PIECES) - 3)
    values = {"model": "bert", "tokens": PIECES, "token_type": kinds, "unknown_token_id": 1}
    return tokenizer("bert", **values | changes)


def test_words_are_cut_into_the_longest_pieces() -> None:
    made = wordpiece()
    assert texts(made, made.encode("Unable  CAFÉ!"), PIECES) == ["▁un", "able", "▁cafe", "▁!"]
    assert texts(made, made.encode("unx"), PIECES) == ["[UNK]"]
    assert made.decode(made.encode("unable cafe")) == "unable cafe"


def test_the_name_of_a_control_token_is_text_for_wordpiece_too() -> None:
    made = wordpiece()
    assert texts(made, made.encode("[CLS]"), PIECES) == ["▁[", "▁cls", "▁]"]
    assert made.encode("[CLS]", special=True) == [2]


def test_case_and_accents_stay_where_the_file_says_so() -> None:
    made = wordpiece(**{"normalizer.lowercase": False})
    assert texts(made, made.encode("Un un CAFE"), PIECES) == ["▁Un", "▁un", "[UNK]"]


# --- Unigram ---------------------------------------------------------------------------------

LIKELY = ["<s>", "<pad>", "</s>", "<unk>", "▁", "▁a", "b", "ab", "▁ab", "<", "s", ">", "[PAD]"]


def unigram(**changes: Any) -> Tokenizer:
    values = {
        "model": "t5",
        "tokens": LIKELY,
        "token_type": [3, 3, 3, 2, 1, 1, 1, 1, 1, 1, 1, 1, 5],
        "scores": [0.0, 0.0, 0.0, 0.0, -2.0, -3.0, -3.0, -6.0, -9.0, -5.0, -5.0, -5.0, -1e4],
        "unknown_token_id": 3,
        "remove_extra_whitespaces": True,
    }
    return tokenizer("t5", **values | changes)


def test_the_most_likely_pieces_are_taken() -> None:
    made = unigram()
    assert texts(made, made.encode("ab"), LIKELY) == ["▁a", "b"]
    assert texts(made, made.encode("  ab   a "), LIKELY) == ["▁a", "b", "▁a"]
    likelier = unigram(scores=[*[0.0] * 4, -2.0, -3.0, -3.0, -6.0, -5.5, *[-5.0] * 3, -1e4])
    assert texts(likelier, likelier.encode("ab"), LIKELY) == ["▁ab"]


def test_unknown_text_is_one_token_and_placeholders_are_none() -> None:
    made = unigram()
    assert texts(made, made.encode("日本"), LIKELY) == ["▁", "<unk>"]
    assert LIKELY.index("[PAD]") not in made.encode("[PAD]")


def test_the_name_of_a_control_token_is_text_for_unigram_too() -> None:
    made = unigram()
    assert texts(made, made.encode("<s>"), LIKELY) == ["▁", "<", "s", ">"]
    assert made.encode("<s>", special=True) == [0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"precompiled_charsmap": [255, 255, 255, 127, 1]}, "tokenizer.ggml.precompiled_charsmap"),
        ({"precompiled_charsmap": 7}, "tokenizer.ggml.precompiled_charsmap"),
        ({"unknown_token_id": None}, "tokenizer.ggml.unknown_token_id is missing"),
    ],
)
def test_a_broken_unigram_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        unigram(**changes)
    assert words in str(caught.value) and "\n" not in str(caught.value)
