"""Fields of tokenizer_config.json that count beside tokenizer.json."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers as hf
from json_tokenizers import LLAMA_NORMALIZER, llama, opened

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.tokenizers import Tokenizer
from mlc_llm.tokenizers.byte_level import CHARACTERS
from mlc_llm.tokenizers.folder_config import FolderConfig
from mlc_llm.tokenizers.json_steps import of_class

PIECES = ["[UNK]", "Hé", "He", "hé", "he", "日", "本", "日本"]
SPLIT = {"type": "Digits", "individual_digits": True}


def bert(folder: Path, kind: str, lowercase: bool = True, **fields: object) -> Tokenizer:
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": lowercase,
    }
    model = {
        "type": "WordPiece",
        "vocab": {piece: i for i, piece in enumerate(PIECES)},
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
    }
    spec = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": False},
        "model": model,
    }
    return opened(folder, spec, tokenizer_class=kind, **fields)


@pytest.mark.parametrize("kind", ["BertTokenizer", "BertTokenizerFast", "DistilBertTokenizer"])
@pytest.mark.parametrize(
    ("fields", "pieces"),
    [
        ({}, ["he", "日", "本"]),
        ({"do_lower_case": False}, ["Hé", "日", "本"]),
        ({"do_lower_case": False, "strip_accents": True}, ["He", "日", "本"]),
        ({"strip_accents": False}, ["hé", "日", "本"]),
        ({"tokenize_chinese_chars": False}, ["he", "日本"]),
    ],
)
def test_fields_of_bert(
    kind: str, fields: dict[str, object], pieces: list[str], tmp_path: Path
) -> None:
    for lowercase in (True, False):
        made = bert(tmp_path, kind, lowercase, **fields)
        assert [PIECES[i] for i in made.encode("Hé 日本")] == pieces


def test_other_classes_keep_the_normaliser(tmp_path: Path) -> None:
    made = bert(tmp_path, "PreTrainedTokenizerFast", True, do_lower_case=False)
    assert [PIECES[i] for i in made.encode("Hé 日")] == ["he", "日"]
    with pytest.raises(ModelFileError, match="do_lower_case = 'no' should be true or false"):
        bert(tmp_path, "BertTokenizer", do_lower_case="no")


MODULES = '[{"type": "sentence_transformers.models.Transformer", "path": ""}]'


def test_sentence_transformers_takes_capitals_away(tmp_path: Path) -> None:
    """Its first file of these counts, and beside its modules alone."""

    def pieces(**fields: object) -> list[str]:
        made = bert(tmp_path, "BertTokenizer", do_lower_case=False, **fields)
        return [PIECES[i] for i in made.encode("Hé")]

    for name, value in (("roberta", "false"), ("xlm-roberta", "true")):
        (tmp_path / f"sentence_{name}_config.json").write_text(f'{{"do_lower_case": {value}}}')
    (tmp_path / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    assert pieces() == ["Hé"]
    (tmp_path / "modules.json").write_text(MODULES)
    assert pieces() == ["hé"]
    assert pieces(strip_accents=True) == ["he"]
    (tmp_path / "sentence_bert_config.json").unlink()
    assert pieces() == ["Hé"]
    (tmp_path / "sentence_roberta_config.json").write_text('{"do_lower_case": "no"}')
    with pytest.raises(ModelFileError, match=r"roberta_config\.json: do_lower_case = 'no' should"):
        pieces()


@pytest.mark.parametrize("normalizer", [None, LLAMA_NORMALIZER, {"type": "Lowercase"}])
def test_no_capital_is_left_before_other_steps(normalizer: object, tmp_path: Path) -> None:
    spec: dict[str, object] = {"normalizer": normalizer}
    config = replace(FolderConfig.read(tmp_path), lowercases=True)
    made = of_class(spec, config)["normalizer"]
    whole = {"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}
    found = hf.Tokenizer.from_str(json.dumps({**whole, "normalizer": made})).normalizer
    assert found.normalize_str("AÉ b") == ("▁aé▁b" if normalizer == LLAMA_NORMALIZER else "aé b")
    assert str(made).count("Lowercase") == 1


def test_other_tokenizers_keep_capitals(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text(MODULES)
    (tmp_path / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    (tmp_path / "vocab.txt").write_text("[UNK]\nHe")
    with pytest.raises(UnsupportedModel, match=r"do_lower_case of .* with a tokenizer\.json alone"):
        Tokenizer(tmp_path)


def byte_level(folder: Path, stated: bool, steps: bool = False, **config: Any) -> Tokenizer:
    """steps: the pre_tokenizer is a sequence."""
    last = {"type": "ByteLevel", "add_prefix_space": stated, "trim_offsets": True}
    last["use_regex"] = not steps
    sequence = {"type": "Sequence", "pretokenizers": [SPLIT, last]}
    spec = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": sequence if steps else last,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
        "model": {"type": "BPE", "vocab": {one: i for i, one in enumerate(CHARACTERS)},
                  "merges": []},
    }  # fmt: skip
    return opened(folder, spec, **config)


@pytest.mark.parametrize("kind", ["GPT2Tokenizer", "GPTNeoXTokenizerFast", "Qwen2Tokenizer"])
@pytest.mark.parametrize("wanted", [True, False, None])
@pytest.mark.parametrize("stated", [True, False])
def test_the_first_space_of_byte_level_classes(
    kind: str, wanted: bool | None, stated: bool, tmp_path: Path
) -> None:
    made = byte_level(tmp_path, stated, tokenizer_class=kind, add_prefix_space=wanted)
    assert made.decode(made.encode("a")) == (" a" if wanted else "a")


def test_the_first_space_among_several_steps(tmp_path: Path) -> None:
    config = {"tokenizer_class": "Qwen2Tokenizer", "add_prefix_space": True}
    made = byte_level(tmp_path, False, steps=True, **config)
    assert made.decode(made.encode("a1")) == " a 1"
    config["tokenizer_class"] = "GPT2Tokenizer"
    with pytest.raises(UnsupportedModel, match="add_prefix_space = true is not supported"):
        byte_level(tmp_path, False, steps=True, **config)
    made = byte_level(tmp_path, False, steps=True, **{**config, "add_prefix_space": False})
    assert made.decode(made.encode("a1")) == "a1"


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False}, "a"),
        ({"tokenizer_class": "LlamaTokenizerFast", "add_prefix_space": True}, " a"),
        ({"tokenizer_class": "LlamaTokenizer"}, " a"),
        ({"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": False}, " a"),
    ],
)
def test_the_first_space_of_llama(config: dict[str, Any], text: str, tmp_path: Path) -> None:
    made = llama(tmp_path, **config)
    assert b"".join(map(made.token_bytes, made.encode("a"))).decode() == text
    assert made.strips_leading_space == (text == " a")
    for whole in ("a", " a"):
        assert made.decode(made.encode(whole)) == whole
