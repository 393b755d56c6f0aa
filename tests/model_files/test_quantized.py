"""Models that are quantised when they are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conversion_tools import convert, tiny_gguf

from mlc_llm.backends.registry import choose_backend
from mlc_llm.compiler.jit import content_of_model
from mlc_llm.compiler.keys import weights_purposes
from mlc_llm.compiler.weights import pack_weights
from mlc_llm.errors import InvalidField, UnsupportedModel
from mlc_llm.library.metadata import PARAMS_FILE
from mlc_llm.model_files.base import ModelFiles
from mlc_llm.model_files.gguf import GGUFModel
from mlc_llm.model_files.mlc import MLCModel
from mlc_llm.model_files.quantized import QuantizedModel
from mlc_llm.quantization.ggml_blocks import dequantize
from mlc_llm.quantization.names import AT_LOAD

CPU = [name for name in AT_LOAD if not name.endswith("_k")]


def packed(model: ModelFiles, folder: Path, kernels: str = "portable") -> bytes:
    """The packed weights of a model. Norms, which a folder rounds too, come first."""
    folder.mkdir()
    pack_weights(model.plan(), choose_backend(kernels), model.tensors, folder, lambda n: None)
    return (folder / PARAMS_FILE).read_bytes()


@pytest.mark.parametrize("name", ["q0bf16", "q4f16_0", "q4f16_1", "q4bf16_1", "q4f32_1", "q4_0"])
def test_packed_as_the_converted_files(name: str, tmp_path: Path) -> None:
    old = tiny_gguf(tmp_path / "m.gguf", layers=1)
    made = convert(old, name, tmp_path / "out").path
    files: ModelFiles = GGUFModel.open(made) if made.suffix == ".gguf" else MLCModel.open(made)
    first = packed(QuantizedModel.of_files(old, name), tmp_path / "first")
    second = packed(files, tmp_path / "second")
    norms = sum(one.nbytes for one in norm_bytes(old))
    assert len(first) == len(second)
    different = np.flatnonzero(np.frombuffer(first, "u1") != np.frombuffer(second, "u1"))
    assert (different < norms + 4096).all()


def norm_bytes(model: GGUFModel) -> list[np.ndarray]:
    return [one.data for one in model.tensors.values() if len(one.shape) == 1]


@pytest.mark.parametrize("name", CPU)
def test_all_kernels_can_keep_it(name: str, tmp_path: Path) -> None:
    old = tiny_gguf(tmp_path / "m.gguf", layers=1)
    model = QuantizedModel.of_files(old, name)
    plan = model.plan()
    assert set(plan.spec.kinds) == set(old.plan().spec.kinds)
    for kernels in ("portable", "reference"):
        for kind in set(plan.spec.kinds.values()):
            assert choose_backend(kernels).layout(kind).shape(64, 64)
    for tensor in model.tensors.values():
        values = dequantize(tensor.kind, tensor.data, tensor.shape)
        before = old.tensors[tensor.name]
        plain = dequantize(before.kind, before.data, before.shape)
        error = np.sqrt(np.mean((values - plain) ** 2) / np.mean(plain**2))
        assert error < (0.3 if "3f16" in name else 0.12)
        is_kept = len(tensor.shape) == 1 or name in ("f32", "q0f32")
        is_kept |= name == "q4f16_2" and tensor.name in ("token_embd.weight", "output.weight")
        assert (error == 0) == is_kept, tensor.name


def test_a_matrix_of_the_type_stays_as_it_is(tmp_path: Path) -> None:
    old = tiny_gguf(tmp_path / "m.gguf", {"": "F32", "ffn_up": "Q8_0"})
    model = QuantizedModel.of_files(old, "q8_0")
    name = "blk.0.ffn_up.weight"
    assert model.tensors[name] is old.tensors[name]
    assert model.tensors["blk.0.ffn_down.weight"].kind == "Q8_0"
    assert model.tensors["output_norm.weight"] is old.tensors["output_norm.weight"]


def test_the_ends_stay_where_the_scheme_says_so(tmp_path: Path) -> None:
    model = QuantizedModel.of_files(tiny_gguf(tmp_path / "m.gguf"), "q4f16_2")
    kinds = model.plan().spec.kinds
    assert (kinds["embedding"], kinds["head"], kinds["layers.0.o"]) == ("F32", "F32", "q4f16")


def test_packed_weights_have_a_name_of_their_own(tmp_path: Path) -> None:
    old = tiny_gguf(tmp_path / "m.gguf")
    models = [old, *(QuantizedModel.of_files(old, name) for name in ("q4f16_1", "q4_0"))]
    assert len({content_of_model(model) for model in models}) == 3
    backend = choose_backend("portable")
    kept = [weights_purposes("c", old.path, backend, model.changes) for model in models]
    assert len({purpose for pair in kept for purpose in pair}) == 6


def test_wrong_names_and_sizes_are_named(tmp_path: Path) -> None:
    old = tiny_gguf(tmp_path / "m.gguf")
    with pytest.raises(InvalidField, match=r"quantization = 'q5f16' .*: one of q0f16, .*, q6_k$"):
        QuantizedModel.of_files(old, "q5f16")
    with pytest.raises(UnsupportedModel, match=r"rows of 64 values are not whole q6_k blocks"):
        QuantizedModel.of_files(old, "q6_k")
