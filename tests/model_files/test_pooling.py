"""What a model's files say of pooling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlc_llm.errors import ModelFileError
from mlc_llm.model_files.pooling import folder_pooling, gguf_pooling

POOLING = {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}
ENDS = {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"}
DENSE = {"type": "sentence_transformers.models.Dense", "path": "2_Dense"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, None), (0, None), (1, "mean"), (2, "cls"), (3, "last_token"), (4, "rank")],
)
def test_numbers_of_gguf(value: int | None, expected: str | None) -> None:
    metadata = {"general.architecture": "bert", "llama.pooling_type": 1}
    given = metadata if value is None else metadata | {"bert.pooling_type": value}
    assert gguf_pooling(given) == expected


@pytest.mark.parametrize("value", [5, -1, "mean", True, 1.0])
def test_other_numbers_are_refused(value: object) -> None:
    with pytest.raises(ModelFileError, match=r"bert\.pooling_type"):
        gguf_pooling({"general.architecture": "bert", "bert.pooling_type": value})


@pytest.mark.parametrize(
    ("modules", "config", "expected"),
    [
        ([POOLING, ENDS], {"pooling_mode_mean_tokens": True}, "mean"),
        ([POOLING], {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ([POOLING], {"pooling_mode_lasttoken": True, "include_prompt": True}, "last_token"),
        ([POOLING], {"pooling_mode": "lasttoken"}, "last_token"),
        ([POOLING], {"pooling_mode": ["cls", "max"]}, "cls+max"),
        ([POOLING], {"pooling_mode": ["cls"]}, "cls"),
        ([POOLING], {"pooling_mode_cls_token": False}, "mean"),
        ([POOLING], {"pooling_mode_max_tokens": True}, "max_tokens"),
        ([POOLING, DENSE], {"pooling_mode_mean_tokens": True}, "mean+Dense"),
        ([], {}, None),
    ],
)
def test_modules_of_a_folder(
    tmp_path: Path, modules: list[Any], config: dict[str, Any], expected: str | None
) -> None:
    assert folder_pooling(tmp_path) is None
    write(tmp_path, modules, config)
    assert folder_pooling(tmp_path) == expected


@pytest.mark.parametrize("mode", [7, [], [None], {"cls": True}])
def test_a_mode_that_is_no_word_is_refused(tmp_path: Path, mode: object) -> None:
    write(tmp_path, [POOLING], {"pooling_mode": mode, "pooling_mode_cls_token": True})
    with pytest.raises(ModelFileError, match=r"1_Pooling/config\.json: pooling_mode is"):
        folder_pooling(tmp_path)


def test_a_path_leads_nowhere_else(tmp_path: Path) -> None:
    write(tmp_path, [POOLING | {"path": "../1_Pooling"}], {})
    with pytest.raises(ModelFileError, match=r"modules\.json: path '\.\./1_Pooling'"):
        folder_pooling(tmp_path)


def write(folder: Path, modules: list[Any], config: dict[str, Any]) -> None:
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
