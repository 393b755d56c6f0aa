"""Folders of MLC LLM: what was written is read again, and broken ones are refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conversion_tools import convert, tiny_gguf

from mlc_llm.compiler.jit import prepare
from mlc_llm.errors import MLCError, ModelFileError
from mlc_llm.model_files.gguf import GGUFModel
from mlc_llm.model_files.mlc import MLCModel, config_json
from mlc_llm.model_files.row_pieces import Rows, pieces
from mlc_llm.models.registry import read_config
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.weight_plan import WeightPlan
from mlc_llm.quantization.group_schemes import (
    SCHEMES,
    dequantize_groups,
    quantize_groups,
    rounded,
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLC_LLM_HOME", str(tmp_path / "home"))


def values_of(model: GGUFModel | MLCModel, name: str) -> np.ndarray:
    plan = model.plan()
    sources = [s for found in plan.matrices.values() for s in found]
    sources += plan.vectors.values()
    source = next(s for s in sources if s.tensor == name)
    return np.concatenate(list(pieces(Rows(model.tensors[name], source))))


def plain(plan: WeightPlan) -> ModelSpec:
    return replace(plan.spec, kinds={})


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
@pytest.mark.parametrize("name", SCHEMES)
def test_what_is_written_is_read(name: str, architecture: str, tmp_path: Path) -> None:
    scheme = SCHEMES[name]
    head_norms = architecture == "qwen3"
    old = tiny_gguf(tmp_path / "m.gguf", architecture=architecture, head_norms=head_norms)
    convert(old, name, tmp_path / "out")
    new = MLCModel.open(tmp_path / "out")
    assert plain(new.plan()) == plain(old.plan())
    assert new.context_window == old.context_window
    for tensor in old.tensors:
        before = values_of(old, tensor)
        is_end = tensor in ("token_embd.weight", "output.weight")
        if not scheme.bits or len(before) == 1 or (is_end and not scheme.ends):
            expected = rounded(before, scheme.dtype)
        else:
            expected = dequantize_groups(quantize_groups(scheme, before))
        assert np.array_equal(values_of(new, tensor), expected), tensor


def test_a_folder_can_be_converted_again(tmp_path: Path) -> None:
    convert(tiny_gguf(tmp_path / "m.gguf"), "q4f16_1", tmp_path / "one")
    convert(MLCModel.open(tmp_path / "one"), "q4f16_0", tmp_path / "two")
    one, two = MLCModel.open(tmp_path / "one"), MLCModel.open(tmp_path / "two")
    for name in one.tensors:
        assert np.array_equal(values_of(one, name), values_of(two, name))


Change = Callable[[dict[str, Any], dict[str, Any]], object]


def first(index: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = index["records"][0]["records"][0]
    return found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c, i: c.update(quantization="q9"), "quantization = 'q9'; supported are q0f16"),
        (lambda c, i: c.update(model_config=3), "model_config should be an object"),
        (lambda c, i: c["model_config"].update(vocab_size=301), "has shape"),
        (lambda c, i: c["model_config"].update(num_hidden_layers=3), "no parameter model.layers.2"),
        (lambda c, i: c["model_config"].update(num_hidden_layers=1), "not part of the architect"),
        (lambda c, i: i.update(records=[]), "should be a list of 1 to"),
        (lambda c, i: i.update(records=[3]), "should be a file in this folder"),
        (lambda c, i: i["records"].append(i["records"][0]), "is named twice"),
        (lambda c, i: i["records"][0].update(dataPath="../x"), "should be a file in this folder"),
        (lambda c, i: i["records"][0].update(dataPath="none.bin"), "none.bin: no such file"),
        (lambda c, i: i["records"][0].update(nbytes=7), "bytes, not 7: truncated"),
        (lambda c, i: i["records"][0].update(records=1), "should be a list of parameters"),
        (lambda c, i: first(i).update(name=1), "a parameter has no name"),
        (lambda c, i: first(i).update(name="model.norm.weight"), "is there twice"),
        (lambda c, i: first(i).update(dtype="float64"), "is 'float64'; supported are float16"),
        (lambda c, i: first(i).update(dtype=[]), "is []; supported are float16"),
        (lambda c, i: i["records"][0].update(dataPath="a\nb"), "should be a file in this folder"),
        (lambda c, i: i["records"][0].update(nbytes="a\nb"), "truncated"),
        (lambda c, i: first(i).update(dtype="float32"), "it should be uint32"),
        (lambda c, i: first(i).update(format="zip"), "has the format 'zip'"),
        (lambda c, i: first(i).update(shape=[300, -8]), "should be up to 4 whole numbers"),
        (lambda c, i: first(i).update(shape=[300, 9]), "should have 10800 bytes"),
        (lambda c, i: first(i).update(byteOffset=10**9), "lies beyond the end of its shard"),
        (lambda c, i: first(i).update(byteOffset=-4), "should have 9600 bytes"),
    ],
)
def test_a_broken_folder_is_refused(change: Change, words: str, tmp_path: Path) -> None:
    convert(tiny_gguf(tmp_path / "m.gguf"), "q4f16_1", tmp_path / "out")
    paths = [tmp_path / "out" / name for name in ("mlc-chat-config.json", "tensor-cache.json")]
    config, index = (json.loads(path.read_text()) for path in paths)
    change(config, index)
    for path, value in zip(paths, (config, index), strict=True):
        path.write_text(json.dumps(value))
    with pytest.raises(MLCError) as error:
        MLCModel.open(tmp_path / "out")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_fields_of_mlc_llm_itself_are_understood(tmp_path: Path) -> None:
    """MLC LLM writes other names into model_config, and halves of float32."""
    convert(tiny_gguf(tmp_path / "m.gguf"), "q4f32_1", tmp_path / "out")
    path = tmp_path / "out" / "mlc-chat-config.json"
    config = json.loads(path.read_text())
    model = config["model_config"]
    model["position_embedding_base"] = model.pop("rope_theta")
    for name in ("architectures", "model_type", "max_position_embeddings", "hidden_act"):
        del model[name]
    path.write_text(json.dumps(config))
    assert MLCModel.open(tmp_path / "out").plan().spec.context_window == 512


def test_scales_of_which_the_file_has_halves(tmp_path: Path) -> None:
    """MLC LLM writes float32 so."""
    old = tiny_gguf(tmp_path / "m.gguf")
    convert(old, "q4f32_1", tmp_path / "out")
    halve(tmp_path / "out")
    new, scheme = MLCModel.open(tmp_path / "out"), SCHEMES["q4f32_1"]
    assert new.plan().spec.kinds["layers.0.o"] == "q4bf16"
    name = "blk.0.attn_output.weight"
    grouped = quantize_groups(scheme, values_of(old, name))
    expected = dequantize_groups(replace(grouped, scale=upper_halves(grouped.scale)))
    assert np.array_equal(values_of(new, name), expected)
    norm = "blk.0.attn_norm.weight"
    assert np.array_equal(values_of(new, norm), upper_halves(values_of(old, norm)))


def upper_halves(values: np.ndarray) -> np.ndarray:
    return (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def halve(folder: Path) -> None:
    """Keep the upper halves of all float32."""
    index = json.loads((folder / "tensor-cache.json").read_text())
    for shard in index["records"]:
        raw, made = (folder / shard["dataPath"]).read_bytes(), b""
        for record in shard["records"]:
            data = raw[record["byteOffset"] :][: record["nbytes"]]
            if record["dtype"] == "float32":
                data = np.frombuffer(data, np.uint16)[1::2].tobytes()
                record["format"] = "f32-to-bf16"
            record |= {"byteOffset": len(made), "nbytes": len(data)}
            made += data
        (folder / shard["dataPath"]).write_bytes(made)
        shard |= {"nbytes": len(made), "md5sum": hashlib.md5(made).hexdigest()}
    (folder / "tensor-cache.json").write_text(json.dumps(index))


def test_shards_that_are_swapped_or_damaged(tmp_path: Path) -> None:
    """Of one size, so that only the check sums tell."""
    convert(tiny_gguf(tmp_path / "m.gguf"), "q4f16_1", tmp_path / "out")
    shard = tmp_path / "out" / "params_shard_0.bin"
    raw = bytearray(shard.read_bytes())
    raw[100] ^= 1
    shard.write_bytes(raw)
    model = MLCModel.open(tmp_path / "out")
    with pytest.raises(ModelFileError, match=r"params_shard_0\.bin: damaged, its MD5 sum is not"):
        prepare(model, "portable")


def test_another_config_makes_other_weights(tmp_path: Path) -> None:
    convert(tiny_gguf(tmp_path / "m.gguf"), "q4f16_1", tmp_path / "out")
    first = prepare(MLCModel.open(tmp_path / "out"), "portable")
    path = tmp_path / "out" / "mlc-chat-config.json"
    config = json.loads(path.read_text())
    config["model_config"]["rope_theta"] = 20_000.0
    path.write_text(json.dumps(config))
    assert prepare(MLCModel.open(tmp_path / "out"), "portable").weights != first.weights


MISTRAL: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "head_dim": 64,
    "num_hidden_layers": 2, "rms_norm_eps": 1e-5, "vocab_size": 320, "num_key_value_heads": 2,
    "position_embedding_base": 1e6, "attention_sink_size": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("context", "fields", "window", "expected"),
    [
        (32768, {"sliding_window_size": -1}, None, 32768),
        (32768, {"sliding_window_size": None}, None, 32768),
        (32768, {"sliding_window_size": 1024}, 1024, 32768),
        (32768, {}, None, 32768),
        (32768, {"kwargs": {"sliding_window": 512}}, 512, 32768),
        (32768, {"sliding_window_size": -1, "kwargs": {"sliding_window": 512}}, None, 32768),
        (-1, {"sliding_window_size": 4096}, 4096, 32768),
        (-1, {"sliding_window_size": 4096, "max_position_embeddings": 8192}, 4096, 8192),
        (2048, {"sliding_window": 64}, 64, 2048),
        (2048, {"architectures": ["MistralForCausalLM"]}, 4096, 2048),
    ],
)
def test_windows_of_a_mistral(
    context: int, fields: dict[str, Any], window: int | None, expected: int
) -> None:
    """Only a config.json of Transformers leaves a window of 4096 out."""
    config = {**MISTRAL, "context_window_size": context, **fields}
    spec = read_config(config_json(Path("x"), {"model_type": "mistral", "model_config": config}))
    assert spec.attention_layers[0].window == window
    assert spec.context_window == expected


def test_a_mistral_without_any_limit_is_refused() -> None:
    config = {**MISTRAL, "context_window_size": -1, "sliding_window_size": -1}
    chat: dict[str, Any] = {"model_type": "mistral", "model_config": config}
    with pytest.raises(ModelFileError, match="max_position_embeddings is None"):
        read_config(config_json(Path("x"), chat))


@pytest.mark.parametrize("window", [{"sliding_window_size": 512}, {}])
def test_the_window_of_a_gemma(window: dict[str, Any]) -> None:
    inner = {
        **MISTRAL, **window, "hidden_activation": "gelu_pytorch_tanh", "rope_scaling": 0,
        "context_window_size": 8192, "kwargs": {"sliding_window": 512},
    }  # fmt: skip
    chat: dict[str, Any] = {"model_type": "gemma3", "model_config": {"text_config": inner}}
    spec = read_config(config_json(Path("x"), chat))
    assert spec.attention_layers[0].window == 512
    assert spec.ropes[0].linear == 1.0


def test_a_gemma_by_the_name_of_mlc_llm() -> None:
    chat: dict[str, Any] = {"model_type": "gemma3", "model_config": {"text_config": {"a": 1}}}
    found = config_json(Path("x"), chat)
    assert found["model_type"] == "gemma3_text" and found["a"] == 1
