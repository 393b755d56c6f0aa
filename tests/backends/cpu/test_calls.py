"""How many kernels a step calls: each call takes time, and so does each wake-up of threads."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tvm import relax

from mlc_llm.backends.registry import backend_of
from mlc_llm.compiler.infos import kv_info
from mlc_llm.compiler.methods import export
from mlc_llm.library.signatures import FORWARD
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.models.decoder import Decoder
from mlc_llm.models.registry import read_gguf
from mlc_llm.testing.tiny_model import TinyShape, write_tiny_model

CALLS = ("relax.call_tir", "relax.call_tir_inplace")


def called(path: Path, kernels: str, layers: int, kinds: dict[str, str]) -> Counter[str]:
    """How often `forward` calls each kernel."""
    file = GGUFFile.open(write_tiny_model(path, kinds=kinds, shape=TinyShape(layers=layers)))
    backend = backend_of(kernels)
    spec, ops = read_gguf(file.metadata, file.tensors).spec, backend.ops()
    model = Decoder(spec, ops)
    module, _ = export(model, kv_info(spec, backend, ops), ())
    values: dict[Any, Any] = dict(relax.analysis.get_var2val(module[FORWARD]))
    made = [value for value in values.values() if isinstance(value, relax.Call)]
    return Counter(one.args[0].name_hint for one in made if one.op.name in CALLS)


def of_layer(path: Path, kernels: str, kinds: dict[str, str]) -> Counter[str]:
    """The same of one layer. The last one is of its own kind, and so may be the first."""
    few, many = (called(path / f"{n}.gguf", kernels, n, kinds) for n in (3, 4))
    return many - few


@pytest.mark.parametrize("kernels", ["vnni", "avx2", "i8mm"])
def test_a_layer_of_a_plain_decoder_is_six_calls(tmp_path: Path, kernels: str) -> None:
    """Each of its four products quantises what it reads."""
    calls = of_layer(tmp_path, kernels, {"": "Q4_0"})
    assert calls.total() == 6, calls
    assert sum(name.startswith("matmul") for name in calls) == 4, calls


@pytest.mark.parametrize(("kernels", "quantising"), [("i8mm", 2), ("avx2", 4), ("vnni", 4)])
def test_how_often_an_input_is_quantised(tmp_path: Path, kernels: str, quantising: int) -> None:
    """Three products read it: the first one makes what the others read, or each its own."""
    calls = of_layer(tmp_path, kernels, {"attn_q": "Q4_1", "attn_k": "Q8_0", "": "Q4_0"})
    assert sum(name.startswith("matmul") for name in calls) == 6, calls
    assert sum("norm" in name for name in calls) == quantising, calls
    assert calls.total() == 8, calls
