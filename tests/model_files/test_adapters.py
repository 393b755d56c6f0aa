"""LoRA adapters: what they add to a model's matrices, and which are refused."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_files import (
    ALPHA,
    RANK,
    Pair,
    config_of,
    module_of,
    peft_tensors,
    random_pairs,
    write_lora_gguf,
    write_peft,
)
from conversion_tools import SHAPE, convert, hugging_face_weights, quiet, tiny_gguf
from tiny_folders import folder_of

from mlc_llm.conversion.convert import convert_weight
from mlc_llm.errors import ModelFileError, ModelNotFound, UnsupportedModel, UserError
from mlc_llm.loader.lora import MAX_RANK
from mlc_llm.model_files.adapters import changes_of, merged, open_adapter
from mlc_llm.model_files.base import ModelFiles
from mlc_llm.model_files.gguf import GGUFModel
from mlc_llm.model_files.huggingface import HuggingFaceModel
from mlc_llm.model_files.mlc import MLCModel

PAIRS = random_pairs(SHAPE)


@pytest.fixture
def model(tmp_path: Path) -> GGUFModel:
    return tiny_gguf(tmp_path / "model.gguf")


@pytest.fixture
def peft(tmp_path: Path) -> Path:
    return write_peft(tmp_path / "peft", peft_tensors(PAIRS), config_of())


def expected(path: Path, pairs: Mapping[str, Pair], scale: float) -> dict[str, np.ndarray]:
    """The weights by Transformers' names, each with its product."""
    weights = hugging_face_weights(path)
    for name, pair in pairs.items():
        weights[f"{module_of(name)}.weight"] = (
            weights[f"{module_of(name)}.weight"] + scale * pair.up @ pair.down
        )
    return weights


def check_merged(base: ModelFiles, adapter: Path, path: Path, wanted: Mapping[str, Any]) -> None:
    """The model with its adapter, written as a file of float32, has the weights."""
    convert_weight(merged(base, open_adapter(str(adapter))), "f32", path, quiet)
    found = hugging_face_weights(path)
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_peft_folder_is_merged_into_a_file(model: GGUFModel, peft: Path, tmp_path: Path) -> None:
    wanted = expected(model.path, PAIRS, ALPHA / RANK)
    check_merged(model, peft, tmp_path / "out.gguf", wanted)


def test_a_gguf_adapter_is_merged_into_a_file(model: GGUFModel, tmp_path: Path) -> None:
    adapter = write_lora_gguf(tmp_path / "lora.gguf", PAIRS, SHAPE)
    wanted = expected(model.path, PAIRS, ALPHA / RANK)
    check_merged(model, adapter, tmp_path / "out.gguf", wanted)


def test_without_alpha_a_gguf_adapter_has_scale_1(model: GGUFModel, tmp_path: Path) -> None:
    changed = {"adapter.lora.alpha": 0.0}
    adapter = write_lora_gguf(tmp_path / "lora.gguf", PAIRS, SHAPE, **changed)
    check_merged(model, adapter, tmp_path / "out.gguf", expected(model.path, PAIRS, 1.0))


def test_an_adapter_is_merged_into_a_folder(model: GGUFModel, peft: Path, tmp_path: Path) -> None:
    folder = HuggingFaceModel.open(folder_of(model.path).write(tmp_path / "folder"))
    wanted = expected(model.path, PAIRS, ALPHA / RANK)
    check_merged(folder, peft, tmp_path / "out.gguf", wanted)


def test_ranks_and_alphas_of_modules(model: GGUFModel, tmp_path: Path) -> None:
    pairs = random_pairs(SHAPE, 1, targets=("attn_v", "ffn_up"))
    pairs |= {
        name: pair
        for name, pair in random_pairs(SHAPE, 2, rank=9, targets=("attn_v",)).items()
        if name.startswith("blk.1.")
    }
    config = config_of(
        use_rslora=True,
        rank_pattern={"layers.1.self_attn.v_proj": 9},
        alpha_pattern={"q_proj": 5.0, "up_proj": 3},
    )
    adapter = write_peft(tmp_path / "peft", peft_tensors(pairs), config)
    weights = hugging_face_weights(model.path)
    for name, pair in pairs.items():
        alpha = 3 if "ffn_up" in name else ALPHA
        scale = alpha / math.sqrt(pair.down.shape[0])
        base = weights[f"{module_of(name)}.weight"]
        weights[f"{module_of(name)}.weight"] = base + np.float32(scale) * (pair.up @ pair.down)
    check_merged(model, adapter, tmp_path / "out.gguf", weights)


def test_adapters_are_merged_one_after_the_other(
    model: GGUFModel, peft: Path, tmp_path: Path
) -> None:
    both = merged(merged(model, open_adapter(str(peft))), open_adapter(str(peft)))
    convert_weight(both, "f32", tmp_path / "out.gguf", quiet)
    found = hugging_face_weights(tmp_path / "out.gguf")
    for name, values in expected(model.path, PAIRS, 2 * ALPHA / RANK).items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-6)


def test_a_merged_model_of_blocks_keeps_what_no_adapter_changes(tmp_path: Path) -> None:
    base = tiny_gguf(tmp_path / "model.gguf", {"": "Q4_0"})
    pairs = random_pairs(SHAPE, targets=("attn_q",))
    adapter = write_lora_gguf(tmp_path / "lora.gguf", pairs, SHAPE)
    both = merged(base, open_adapter(str(adapter)))
    kinds = {name: one.kind for name, one in both.tensors.items()}
    assert kinds["blk.0.attn_q.weight"] == "F32"
    assert kinds["blk.0.attn_k.weight"] == "Q4_0"
    assert "layers.0.qkv.q" in both.plan().matrices
    convert_weight(both, "q4_0", tmp_path / "out.gguf", quiet)
    converted = GGUFModel.open(tmp_path / "out.gguf")
    assert "layers.0.qkv.q_k_v" in converted.plan().matrices
    same = base.tensors["blk.0.attn_k.weight"].data
    assert np.array_equal(converted.tensors["blk.0.attn_k.weight"].data, same)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"use_dora": True}, "use_dora = True is not supported"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save = ['lm_head'] is not supported"),
        ({"bias": "all"}, "bias = 'all' is not supported; supported: none"),
        ({"peft_type": "LOHA"}, "peft_type = 'LOHA' is not supported; supported: LORA"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa' is not supported"),
        ({"layer_replication": [[0, 2]]}, "layer_replication = [[0, 2]] is not supported"),
        ({"target_parameters": ["x"]}, "target_parameters = ['x'] is not supported"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices = [1] is not supported"),
        ({"something_new": 1}, "something_new = 1 is not supported"),
        ({"alpha_pattern": {"(a+)+b": 1}}, "alpha_pattern '(a+)+b' is not supported"),
        ({"alpha_pattern": ["q_proj"]}, "alpha_pattern = ['q_proj'] must be an object"),
        ({"lora_alpha": "16"}, "lora_alpha = '16' must be a number"),
        ({"lora_alpha": math.nan}, "lora_alpha = nan must be a number"),
        ({"r": 5}, "should have rank 5; its factors have 4"),
        ({"r": 0}, "r = 0 must be an integer in [1, 1024]"),
        ({"r": 10**9}, "r = 1000000000 must be an integer in [1, 1024]"),
        ({"use_rslora": "yes"}, "use_rslora = 'yes' must be true or false"),
    ],
)
def test_what_a_config_may_not_say(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    write_peft(tmp_path / "peft", peft_tensors(PAIRS), config_of(**changed))
    with pytest.raises(UserError) as error:
        open_adapter(str(tmp_path / "peft"))
    assert said.replace("'", "") in str(error.value).replace("'", "")
    assert "\n" not in str(error.value)


Q = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({f"{Q}.lora_magnitude_vector": (64,)}, "only lora_A and lora_B of matrices are"),
        ({f"{Q}.lora_B.bias": (64,)}, "only lora_A and lora_B of matrices are"),
        (
            {"base_model.model.model.embed_tokens.lora_embedding_A": (4, 259)},
            "lora_embedding_A is not supported",
        ),
        ({f"{Q}.lora_B.weight": None}, f"tensor {Q}.lora_A.weight has no other half"),
        ({f"{Q}.lora_A.weight": (5, 64)}, "of shape (5, 64) does not fit"),
        ({f"{Q}.lora_A.weight": (4, 64, 1)}, "only adapters of matrices"),
        (
            {f"{Q}.lora_A.weight": (2000, 64), f"{Q}.lora_B.weight": (64, 2000)},
            f"has rank 2000; at most {MAX_RANK} is supported",
        ),
    ],
)
def test_which_tensors_are_refused(
    changed: dict[str, tuple[int, ...] | None], said: str, tmp_path: Path
) -> None:
    tensors = peft_tensors(PAIRS)
    for name, shape in changed.items():
        tensors.pop(name, None)
        if shape is not None:
            tensors[name] = np.zeros(shape, np.float32)
    write_peft(tmp_path / "peft", tensors, config_of())
    with pytest.raises(UserError) as error:
        open_adapter(str(tmp_path / "peft"))
    assert said.replace("'", "") in str(error.value).replace("'", "")


@pytest.mark.parametrize(
    ("module", "shapes", "said"),
    [
        ("model.layers.9.mlp.up_proj", (64, 64), "changes model.layers.9.mlp.up_proj.weight, wh"),
        ("lm_head", (64, 64), "changes lm_head.weight, which is no matrix of this model's layers"),
        ("model.layers.0.input_layernorm", (64, 64), "which is no matrix of this model's layers"),
        ("model.layers.0.self_attn.q_proj", (64, 32), "lora_A.weight has shape (4, 32), this "),
        ("model.layers.0.self_attn.q_proj", (32, 64), "lora_B.weight has shape (32, 4), expected"),
    ],
)
def test_an_adapter_of_another_model_is_refused(
    model: GGUFModel, module: str, shapes: tuple[int, int], said: str, tmp_path: Path
) -> None:
    tensors = {
        f"base_model.model.{module}.lora_A.weight": np.zeros((4, shapes[1]), np.float32),
        f"base_model.model.{module}.lora_B.weight": np.zeros((shapes[0], 4), np.float32),
    }
    adapter = open_adapter(str(write_peft(tmp_path / "peft", tensors, config_of())))
    folder = HuggingFaceModel.open(folder_of(model.path).write(tmp_path / "folder"))
    for files in (model, folder):
        with pytest.raises(UserError) as error:
            changes_of(files, adapter)
        assert said.replace("'", "") in str(error.value).replace("'", "")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"general.architecture": "qwen3"}, "for a model of architecture 'qwen3'; this one has"),
        ({"general.type": "model"}, "general.type = model; an adapter has 'adapter'"),
        ({"adapter.type": "control"}, "adapter.type = control; an adapter has 'lora'"),
        ({"adapter.lora.alpha": "x"}, "adapter.lora.alpha = x must be a finite number"),
        ({"adapter.alora.invocation_tokens": [1]}, "invocation_tokens is not supported"),
    ],
)
def test_which_gguf_files_are_refused(
    model: GGUFModel, changed: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = write_lora_gguf(tmp_path / "lora.gguf", PAIRS, SHAPE, **changed)
    with pytest.raises(UserError) as error:
        changes_of(model, open_adapter(str(path)))
    assert said.replace("'", "") in str(error.value).replace("'", "")


def test_files_of_other_formats_are_refused(model: GGUFModel, peft: Path, tmp_path: Path) -> None:
    path = write_lora_gguf(tmp_path / "lora.gguf", PAIRS, SHAPE)
    folder = HuggingFaceModel.open(folder_of(model.path).write(tmp_path / "folder"))
    with pytest.raises(UnsupportedModel, match="needs the adapter's PEFT folder"):
        changes_of(folder, open_adapter(str(path)))
    with pytest.raises(UnsupportedModel, match="an adapter has 'adapter'"):
        open_adapter(str(model.path))
    with pytest.raises(ModelNotFound, match="no such file or folder"):
        open_adapter(str(tmp_path / "nothing"))
    with pytest.raises(ModelNotFound, match=r"adapter_config\.json"):
        open_adapter(str(folder.path))
    (peft / "adapter_model.safetensors").rename(peft / "adapter_model.bin")
    with pytest.raises(ModelNotFound, match="no other file of weights is read"):
        open_adapter(str(peft))


def test_broken_files_are_refused(model: GGUFModel, peft: Path, tmp_path: Path) -> None:
    weights = peft / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    with pytest.raises(ModelFileError, match="not a sound safetensors file"):
        open_adapter(str(peft))
    weights.write_bytes(whole[:-4] + np.float32(np.nan).tobytes())
    with pytest.raises(ModelFileError, match="holds NaN or infinite values"):
        changes_of(model, open_adapter(str(peft)))
    (peft / "adapter_config.json").write_text(json.dumps([1]))
    with pytest.raises(ModelFileError, match="should hold a JSON object"):
        open_adapter(str(peft))
    path = write_lora_gguf(tmp_path / "lora.gguf", PAIRS, SHAPE)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelFileError, match=r"lora\.gguf"):
        open_adapter(str(path))


def test_a_folder_of_mlc_llm_takes_no_adapter(model: GGUFModel, peft: Path, tmp_path: Path) -> None:
    convert(model, "q0f32", tmp_path / "out")
    with pytest.raises(UnsupportedModel, match=r"merged into a \.gguf file or a Hugging Face"):
        merged(MLCModel.open(tmp_path / "out"), open_adapter(str(peft)))
