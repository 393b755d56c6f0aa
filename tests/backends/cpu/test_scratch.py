"""How many tensors a step makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from mlc_llm.backends.cpu.scratch import Scratch
from mlc_llm.backends.registry import backend_of
from mlc_llm.compiler.infos import kv_info
from mlc_llm.compiler.methods import export
from mlc_llm.library.signatures import FORWARD
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.models.decoder import Decoder
from mlc_llm.models.registry import read_gguf
from mlc_llm.testing.tiny_model import TinyShape, write_tiny_model

PORTABLE = backend_of("portable")
MERGED, APART = {"": "Q4_0"}, {"attn_q": "Q4_1", "ffn_up": "Q8_0", "": "Q4_0"}


def made(path: Path, layers: int, kinds: dict[str, str]) -> list[str]:
    """Names of the operations of `forward` that make a tensor."""
    file = GGUFFile.open(write_tiny_model(path, kinds=kinds, shape=TinyShape(layers=layers)))
    spec, ops = read_gguf(file.metadata, file.tensors).spec, PORTABLE.ops()
    model = Decoder(spec, ops)
    module, _ = export(model, kv_info(spec, PORTABLE, ops), ())
    values: dict[Any, Any] = dict(relax.analysis.get_var2val(module[FORWARD]))
    names = [value.op.name for value in values.values() if isinstance(value, relax.Call)]
    return [name for name in names if name in ("relax.call_tir", "relax.builtin.alloc_tensor")]


@pytest.mark.parametrize("kinds", [MERGED, APART], ids=["merged", "apart"])
def test_more_layers_make_no_more_tensors(tmp_path: Path, kinds: dict[str, str]) -> None:
    """The last layer is of its own kind: it computes a part of the tokens."""
    few, many = (made(tmp_path / f"{n}.gguf", n, kinds) for n in (2, 4))
    assert few == many != []


def test_layers_that_call_other_kernels_share_their_tensors() -> None:
    orders: list[tuple[tuple[int, ...], ...]] = [((2, 4), (8,), (2, 4)), ((8,), (2, 4), (2, 4))]
    found: list[list[object]] = []

    class Layers(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            scratch = Scratch()
            for shapes in orders:
                scratch.start_layer()
                found.append([scratch.tensor(shape) for shape in shapes])
            return x

    Layers().export_tvm({"forward": {"x": nn.spec.Tensor((1,), "float32")}})
    (first, flat, second), (same_flat, same_first, same_second) = found
    assert (first, flat, second) == (same_first, same_flat, same_second)
    assert first is not second
