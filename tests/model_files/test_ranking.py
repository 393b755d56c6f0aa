"""What files of decoders say of ranking documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_rankers import KEYS, TEMPLATE, ranker_folder, rows_of, write_ranker

from mlc_llm.conversion.convert import convert_weight
from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.model_files.ranking import QWEN3_TEMPLATE
from mlc_llm.serve.opening.bundle import open_model

LABELS, PROMPT = "qwen3.classifier.output_labels", "tokenizer.chat_template.rerank"


@pytest.mark.parametrize(("kind", "worst"), [("F32", 0), ("F16", 1e-3), ("Q8_0", 1e-2)])
def test_two_rows_become_their_difference(tmp_path: Path, kind: str, worst: float) -> None:
    rows = rows_of(2)
    bundle = open_model(str(write_ranker(tmp_path / "a.gguf", rows, kind=kind)))
    assert bundle.ranking is not None and bundle.files is not None
    assert bundle.ranking.template == TEMPLATE == QWEN3_TEMPLATE
    assert np.abs(bundle.ranking.direction - (rows[0] - rows[1])).max() <= worst
    assert bundle.pooling == "rank" and "cls.output.weight" not in bundle.files.tensors


def test_a_folder_has_one_row(tmp_path: Path) -> None:
    gguf, rows = write_ranker(tmp_path / "a.gguf", rows_of(2)), rows_of(1)
    bundle = open_model(str(ranker_folder(gguf, rows).write(tmp_path / "folder")))
    assert bundle.ranking is not None and bundle.ranking.template == QWEN3_TEMPLATE
    assert (bundle.ranking.direction == rows[0]).all() and bundle.pooling == "rank"


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({LABELS: ["no", "yes"]}, LABELS),
        ({LABELS: None}, f"{LABELS} is None"),
        ({PROMPT: None}, f"there is no {PROMPT}"),
        ({PROMPT: ["{query} {document}"]}, f"there is no {PROMPT}"),
        ({PROMPT: "{query}"}, f"{PROMPT} has no place for {{document}}"),
        ({PROMPT: "{document}"}, f"{PROMPT} has no place for {{query}}"),
        ({"qwen3.pooling_type": 9}, "qwen3.pooling_type is '9'"),
    ],
)
def test_wrong_keys_are_named(tmp_path: Path, changed: dict[str, Any], word: str) -> None:
    keys = {key: one for key, one in {**KEYS, **changed}.items() if one is not None}
    path = write_ranker(tmp_path / "a.gguf", rows_of(2), keys)
    with pytest.raises((ModelFileError, UnsupportedModel)) as caught:
        open_model(str(path))
    assert word in str(caught.value)


def test_such_rows_are_of_rank_pooling_alone(tmp_path: Path) -> None:
    path = write_ranker(tmp_path / "a.gguf", rows_of(2), KEYS | {"qwen3.pooling_type": 3})
    bundle = open_model(str(path))
    assert bundle.ranking is None and bundle.files is not None
    with pytest.raises(UnsupportedModel, match=r"tensor cls\.output\.weight is not part"):
        bundle.files.plan()


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        (rows_of(1), r"cls\.output\.weight has shape \(1, 64\), expected \(2, 64\)"),
        (rows_of(3), r"cls\.output\.weight has shape \(3, 64\)"),
        (rows_of(2)[:, :32], r"cls\.output\.weight has shape \(2, 32\)"),
        (np.full((2, 64), np.nan, np.float32), r"cls\.output\.weight has numbers that are not"),
    ],
)
def test_wrong_rows_of_a_file_are_named(tmp_path: Path, rows: Any, word: str) -> None:
    path = write_ranker(tmp_path / "a.gguf", np.ascontiguousarray(rows))
    with pytest.raises((ModelFileError, UnsupportedModel), match=word):
        open_model(str(path))


def test_wrong_rows_of_a_folder_are_named(tmp_path: Path) -> None:
    gguf = write_ranker(tmp_path / "a.gguf", rows_of(2))
    several = ranker_folder(gguf, rows_of(2)).write(tmp_path / "several")
    with pytest.raises(UnsupportedModel, match=r"score\.weight has shape \(2, 64\)"):
        open_model(str(several))
    none = ranker_folder(gguf, rows_of(1))
    del none.tensors["score.weight"]
    with pytest.raises(ModelFileError, match=r"there is no tensor score\.weight"):
        open_model(str(none.write(tmp_path / "none")))


@pytest.mark.parametrize("quantization", ["q4f16_1", "q4_0"])
def test_it_is_not_converted(tmp_path: Path, quantization: str) -> None:
    files = open_model(str(write_ranker(tmp_path / "a.gguf", rows_of(2)))).files
    assert files is not None
    with pytest.raises(UnsupportedModel, match="ranks documents"):
        convert_weight(files, quantization, tmp_path / "out", lambda *_: None)
    assert not (tmp_path / "out").exists()
