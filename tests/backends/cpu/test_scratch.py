"""How many tensors a step makes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from mlc_llm.backends.cpu.overwrites import check_overwrites
from mlc_llm.backends.cpu.scratch import Scratch
from mlc_llm.backends.registry import backend_of
from mlc_llm.compiler.infos import kv_info
from mlc_llm.compiler.methods import export
from mlc_llm.library.signatures import FORWARD
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.models.decoder import Decoder
from mlc_llm.models.registry import read_config, read_gguf
from mlc_llm.testing.tiny_model import TinyShape, write_tiny_model

PORTABLE = backend_of("portable")
MIXTRAL: dict[str, Any] = {
    "model_type": "mixtral", "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 300, "hidden_act": "silu",
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "num_local_experts": 4,
    "num_experts_per_tok": 2,
}  # fmt: skip
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


@pytest.mark.one_of(3)
@pytest.mark.parametrize("kernels", ["avx2", "vnni", "amx"])
@pytest.mark.parametrize("apart", [(1,), (0, 2)])
def test_experts_behind_values_of_another_type(kernels: str, apart: tuple[int, ...]) -> None:
    """As in files of Q4_K_M, where some layers have values of more bits: products quantise what
    they read beside their results, experts have kernels for it."""
    spec, backend = read_config(MIXTRAL), backend_of(kernels)
    kinds = {"embedding": "Q4_K", "head": "Q6_K"}
    for i in range(len(spec.layers)):
        kinds |= {f"layers.{i}.experts.{name}": "Q4_K" for name in ("gate", "up", "down")}
        kinds |= {f"layers.{i}.router": "F32", f"layers.{i}.o": "Q4_K"}
        more = {"q": "Q4_K", "k": "Q4_K", "v": "Q6_K"} if i in apart else {"q_k_v": "Q4_K"}
        kinds |= {f"layers.{i}.qkv.{name}": kind for name, kind in more.items()}
    spec, ops = replace(spec, kinds=kinds), backend.ops()
    module, _ = export(Decoder(spec, ops), kv_info(spec, backend, ops), ())
    check_overwrites(module)


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
