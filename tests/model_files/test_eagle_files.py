"""Folders of EAGLE heads: what is wrong with one is said by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_eagle import TinyEagle

from mlc_llm.errors import InvalidField, ModelFileError, UnsupportedModel, UserError
from mlc_llm.model_files.base import ModelFiles
from mlc_llm.model_files.eagle import open_eagle
from mlc_llm.serve.opening.bundle import open_model
from mlc_llm.testing.tiny_model import TinyShape, write_tiny_model

Change = Callable[[TinyEagle], None]
TAPS = "eagle_aux_hidden_state_layer_ids"


def of_config(**fields: object) -> Change:
    return lambda heads: heads.config.update(fields)


def of_tensors(**tensors: Any) -> Change:
    return lambda heads: heads.tensors.update(tensors)


def without(name: str) -> Change:
    def change(heads: TinyEagle) -> None:
        del heads.tensors[name]

    return change


def swapped(heads: TinyEagle) -> None:
    known = heads.tensors["t2d"]
    heads.tensors["t2d"] = ~known


def twice(heads: TinyEagle) -> None:
    heads.tensors["d2t"][1] = heads.tensors["d2t"][0] - 1


FIRST: list[tuple[Change, Any, str]] = [
    (without("fc.weight"), ModelFileError, "there is no tensor fc.weight"),
    (without("layers.0.self_attn.k_proj.weight"), ModelFileError, "no tensor layers.0.self_attn.k"),
    (of_config(hidden_size=32), ModelFileError, "hidden_size is 32 and the model's is 64"),
    (of_config(num_hidden_layers=2), UnsupportedModel, "num_hidden_layers is 2; supported: 1"),
    (of_config(num_attention_heads=None), ModelFileError, "num_attention_heads"),
    (of_config(hidden_act="relu"), UnsupportedModel, "hidden_act"),
    (of_config(quantization="q9"), InvalidField, "q9"),
    (of_config(quantization=4), ModelFileError, "quantization = 4 should be a name"),
    (of_config(vocab_size=299), ModelFileError, r"embed_tokens.weight has shape \(300, 64\)"),
    (
        of_tensors(**{"fc.weight": np.zeros((64, 64), np.float32)}),
        ModelFileError,
        r"fc.weight has shape \(64, 64\), expected \(64, 128\)",
    ),
    (
        of_tensors(**{"layers.0.input_layernorm.weight": np.zeros(64, np.float32)}),
        UnsupportedModel,
        "layers.0.input_layernorm.weight is not part",
    ),
]
THIRD: list[tuple[Change, Any, str]] = [
    (without("midlayer.hidden_norm.weight"), ModelFileError, "no tensor midlayer.hidden_norm"),
    (without("d2t"), ModelFileError, "there is no tensor d2t: draft_vocab_size is 200"),
    (swapped, ModelFileError, "d2t and t2d name different tokens"),
    (twice, ModelFileError, "d2t names a token twice"),
    (of_tensors(d2t=np.full(200, 200)), ModelFileError, "d2t names tokens outside 0 to 299"),
    (of_tensors(d2t=np.zeros(200, np.float32)), ModelFileError, "d2t of type F32"),
    (of_tensors(d2t=np.zeros(20, np.int64)), ModelFileError, "name different tokens"),
    (of_config(eagle_config={TAPS: [0, 1, 3]}), ModelFileError, "the model, which has 2"),
    (of_config(eagle_config={TAPS: []}), ModelFileError, "a list of layers"),
    (of_config(eagle_config=None), ModelFileError, "the model has only 2 layers"),
    (of_config(eagle_config={TAPS: [0, 1]}), ModelFileError, "fc.weight has shape"),
    (of_config(target_hidden_size=128), UnsupportedModel, "target_hidden_size"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    files = open_model(str(write_tiny_model(tmp_path_factory.mktemp("m") / "m.gguf"))).files
    assert files is not None
    return files


@pytest.mark.parametrize(
    ("third", "wrong"), [*((False, one) for one in FIRST), *((True, one) for one in THIRD)]
)
def test_wrong_folders(
    tmp_path: Path,
    model: ModelFiles,
    third: bool,
    wrong: tuple[Change, type[UserError], str],
) -> None:
    heads, (change, error, words) = TinyEagle(third=third), wrong
    change(heads)
    with pytest.raises(error, match=words) as caught:
        open_eagle(heads.write(tmp_path / "head"), model)
    assert "\n" not in str(caught.value)


def test_a_file_is_no_folder_of_a_head(tmp_path: Path, model: ModelFiles) -> None:
    path = tmp_path / "x.gguf"
    path.touch()
    with pytest.raises(UnsupportedModel, match="an EAGLE head is a folder"):
        open_eagle(path, model)


def test_what_is_in_a_folder(tmp_path: Path, model: ModelFiles) -> None:
    heads = TinyEagle(third=True)
    heads.config["quantization"] = "q8_0"
    files = open_eagle(heads.write(tmp_path / "head"), model)
    spec = files.plan().spec
    assert spec.eagle is not None and spec.eagle.taps == (0, 1, 2) and spec.eagle.vocab == 200
    assert {kind for name, kind in spec.kinds.items() if name.startswith("eagle.")} == {"Q8_0"}
    assert "eagle.row_of_token" in files.plan().vectors
    assert len(files.opened) == len(model.opened) + 2 and files.changes != model.changes


def test_which_layers_are_read_if_no_field_says_it(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", shape=TinyShape(layers=8))
    files = open_model(str(path)).files
    assert files is not None
    heads = TinyEagle(third=True)
    del heads.config["eagle_config"]
    spec = open_eagle(heads.write(tmp_path / "head"), files).plan().spec
    assert spec.eagle is not None and spec.eagle.taps == (2, 4, 5)
    one = TinyEagle(third=True)
    one.config["eagle_config"] = {TAPS: [1, 3, 4]}
    spec = open_eagle(one.write(tmp_path / "one"), files).plan().spec
    assert spec.eagle is not None and spec.eagle.taps == (2, 4, 5)
