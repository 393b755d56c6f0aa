"""Control tokens around texts that stand alone, and around pairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlc_llm.errors import ModelFileError
from mlc_llm.testing.byte_tokenizer import byte_tokenizer_metadata
from mlc_llm.tokenizers import Tokenizer
from mlc_llm.tokenizers.frame import Frame, gguf_frame, json_frame

GGUF = "tokenizer.ggml."
IDS = {"bos_token_id": 0, "eos_token_id": 2, "seperator_token_id": 2, "cls_token_id": 0}


def metadata(model: str, **values: object) -> dict[str, object]:
    return {f"{GGUF}{key}": one for key, one in {"model": model, **IDS, **values}.items()}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (metadata("bert"), Frame((0,), (2,), (2,))),
        (metadata("bert", cls_token_id=None, seperator_token_id=None), Frame((0,), (2,), (2,))),
        (metadata("llama", add_bos_token=True), Frame((0,))),
        (metadata("gpt2", add_eos_token=True), Frame((), (2,), (2,))),
        (metadata("t5"), Frame((), (2,), (2,))),
        (metadata("t5", add_eos_token=False), Frame()),
        (
            metadata("t5", add_bos_token=True, add_eos_token=True, add_sep_token=True),
            Frame((0,), (2, 2), (2,)),
        ),
    ],
)
def test_flags_of_gguf(given: dict[str, object], expected: Frame) -> None:
    assert gguf_frame(given, 10) == expected


@pytest.mark.parametrize("value", [10, -1, "2", True, 2.0])
def test_ids_outside_the_vocabulary_are_refused(value: object) -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.cls_token_id.*should be 0 to 9"):
        gguf_frame(metadata("bert", cls_token_id=value), 10)


def test_the_id_that_stands_for_none() -> None:
    none = {"cls_token_id": 2**32 - 1, "seperator_token_id": 2**32 - 1}
    assert gguf_frame(metadata("bert", **none, eos_token_id=3), 10) == Frame((0,), (3,), (3,))
    assert gguf_frame(metadata("gpt2", add_bos_token=True, bos_token_id=2**32 - 1), 10) == Frame()


def template(single: list[str], pair: list[str]) -> dict[str, Any]:
    """A post-processor of the `tokenizers` library; "A" and "B" are the texts."""
    ids = {"[CLS]": 2, "[SEP]": 3, "</s>": 7}

    def item(name: str) -> dict[str, Any]:
        kind = "Sequence" if name in ("A", "B") else "SpecialToken"
        return {kind: {"id": name, "type_id": 0}}

    return {
        "type": "TemplateProcessing",
        "single": [item(name) for name in single],
        "pair": [item(name) for name in pair],
        "special_tokens": {name: {"id": name, "ids": [i]} for name, i in ids.items()},
    }


BERT = template(["[CLS]", "A", "[SEP]"], ["[CLS]", "A", "[SEP]", "B", "[SEP]"])


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        (None, None),
        ({"type": "ByteLevel"}, None),
        (BERT, Frame((2,), (3,), (3,))),
        (
            {"type": "Sequence", "processors": [{"type": "ByteLevel"}, BERT]},
            Frame((2,), (3,), (3,)),
        ),
        (template(["A", "</s>"], ["A", "</s>", "B", "</s>"]), Frame((), (7,), (7,))),
        (template(["A"], ["A", "B"]), Frame()),
        (
            {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
            Frame((2,), (3,), (3,)),
        ),
        (
            {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0]},
            Frame((0,), (2, 2), (2,)),
        ),
    ],
)
def test_post_processors(processor: object, expected: Frame | None) -> None:
    assert json_frame(processor) == expected


def test_texts_and_pairs() -> None:
    frame = Frame((0,), (2, 2), (2,))
    assert frame.around([5, 6]) == [0, 5, 6, 2]
    assert frame.pair([5, 6], [7]) == ([0, 5, 6, 2, 2, 7, 2], 5)


def test_the_frame_of_a_tokenizer_is_its_file_s() -> None:
    given = {
        **byte_tokenizer_metadata(),
        f"{GGUF}add_bos_token": True,
        f"{GGUF}add_eos_token": True,
    }
    bos, eos = (given[f"{GGUF}{role}_token_id"] for role in ("bos", "eos"))
    made = Tokenizer.from_gguf_metadata(given)
    assert made.frame == Frame((bos,), (eos,), (eos,))
    assert made.encode_prompt("a") == [bos, *made.encode("a")], "chats get no end"


def test_the_frame_of_roberta_s_files(tmp_path: Path) -> None:
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "a", "b"]
    (tmp_path / "vocab.json").write_text(json.dumps({one: i for i, one in enumerate(tokens)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "roberta"}))
    assert Tokenizer(tmp_path).frame == Frame((0,), (2, 2), (2,))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, Frame()),
        ({"add_eos_token": True}, Frame((), (2,), (2,))),
        ({"add_bos_token": True, "add_eos_token": True}, Frame((0,), (2, 0), (2,))),
        ({"add_bos_token": True, "add_eos_token": False}, Frame((0,))),
    ],
)
def test_the_frame_of_files_without_a_tokenizer_json(
    flags: dict[str, bool], expected: Frame, tmp_path: Path
) -> None:
    """tokenizer_config.json says it. It does not beside a tokenizer.json."""
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "a", "b"]
    (tmp_path / "vocab.json").write_text(json.dumps({one: i for i, one in enumerate(tokens)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    named = {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<s>", "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**named, **flags}))
    assert Tokenizer(tmp_path).frame == expected
