"""Folders of Medusa heads: what is wrong with one is said by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_heads import TinyMedusa

from mlc_llm.errors import InvalidField, ModelFileError, UnsupportedModel, UserError
from mlc_llm.model_files.medusa import open_medusa


def no_head(heads: TinyMedusa) -> None:
    del heads.tensors["1.1.weight"]


def another_size(heads: TinyMedusa) -> None:
    heads.tensors["1.0.linear.weight"] = np.zeros((64, 32), np.float32)


def one_more(heads: TinyMedusa) -> None:
    heads.tensors["3.0.linear.bias"] = np.zeros(64, np.float32)


def of_config(**fields: object) -> Callable[[TinyMedusa], None]:
    def change(heads: TinyMedusa) -> None:
        heads.config |= fields

    return change


WRONG: list[tuple[Callable[[TinyMedusa], None], Any, str]] = [
    (no_head, ModelFileError, "there is no tensor 1.1.weight"),
    (another_size, ModelFileError, r"1\.0\.linear\.weight has shape \(64, 32\), expected \(64, 64"),
    (one_more, UnsupportedModel, "3.0.linear.bias is not part"),
    (of_config(medusa_num_heads=4), ModelFileError, "there is no tensor 3"),
    (of_config(medusa_num_heads=0), ModelFileError, "medusa_num_heads"),
    (of_config(medusa_num_heads=10**9), ModelFileError, "medusa_num_heads"),
    (of_config(medusa_num_heads=None), UnsupportedModel, "these are no Medusa heads"),
    (of_config(medusa_num_layers=2), ModelFileError, "there is no tensor 0.2.weight"),
    (of_config(quantization="q9"), InvalidField, "q9"),
    (of_config(quantization=4), ModelFileError, "quantization = 4 should be a name"),
]


@pytest.mark.parametrize(("change", "error", "words"), WRONG)
def test_wrong_folders(
    tmp_path: Path, change: Callable[[TinyMedusa], None], error: type[UserError], words: str
) -> None:
    heads = TinyMedusa()
    change(heads)
    with pytest.raises(error, match=words) as caught:
        open_medusa(heads.write(tmp_path / "heads"))
    assert "\n" not in str(caught.value)


def test_a_file_is_no_folder_of_heads(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.touch()
    with pytest.raises(UnsupportedModel, match="Medusa heads are a folder"):
        open_medusa(path)


def test_what_is_in_a_folder(tmp_path: Path) -> None:
    heads = TinyMedusa(blocks=2)
    heads.config["quantization"] = "q4_0"
    plan = open_medusa(heads.write(tmp_path / "heads")).plan()
    assert (plan.spec.hidden, plan.spec.vocab) == (64, 300)
    assert set(plan.spec.kinds.values()) == {"Q4_0"}
    assert len(plan.matrices) == 9 and len(plan.vectors) == 6
