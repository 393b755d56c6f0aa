"""How many tensors a step makes."""

from __future__ import annotations

from typing import Any

from tvm import relax

from mlc_llm.compiler.build import _specs
from mlc_llm.kernels.formats import WeightFormat
from mlc_llm.kernels.isa import PORTABLE
from mlc_llm.model_lib import FORWARD
from mlc_llm.models.config import ModelConfig, RopeConfig
from mlc_llm.models.llama import Llama

ROUGH = WeightFormat(bits=4, offset=8)
FINE = WeightFormat(bits=8, offset=128)


def small_config(layers: int, value_format: WeightFormat) -> ModelConfig:
    """Keys and values have one shape, and matrices of their own where the queries' format is
    another."""
    parts = {"embedding": ROUGH}
    joined = value_format == ROUGH
    for i in range(layers):
        names = ["qkv.q_k_v"] if joined else ["qkv.q", "qkv.k", "qkv.v"]
        parts |= {f"layers.{i}.{name}": value_format for name in (*names, "mlp.gate_up")}
        parts |= {
            f"layers.{i}.{name}": ROUGH for name in ("qkv.q", "o", "down") if name not in parts
        }
    return ModelConfig(
        architecture="llama", hidden=64, layers=layers, heads=4, kv_heads=2, head_dim=16,
        intermediate=96, vocab=64, context_window=64, norm_eps=1e-5,
        rope=RopeConfig(theta=10000.0, dim=16), tied_head=True, interleaved_rope=True,
        formats=parts,
    )  # fmt: skip


def values_of_forward(config: ModelConfig) -> dict[Any, Any]:
    """What each variable of `forward` is bound to."""
    model = Llama(config, PORTABLE, "float32")
    module, _ = model.export_tvm({FORWARD: _specs(config, PORTABLE)[FORWARD]})
    return dict(relax.analysis.get_var2val(module[FORWARD]))


def calls(values: dict[Any, Any], name: str) -> list[Any]:
    return [v for v in values.values() if isinstance(v, relax.Call) and v.op.name == name]


def memory_of(variable: Any, values: dict[Any, Any]) -> Any:
    """The variable whose memory a result of a kernel lies in."""
    value = values.get(variable)
    if isinstance(value, relax.Call) and value.op.name == "relax.call_tir_inplace":
        return memory_of(value.args[1][int(value.attrs.inplace_indices[0])], values)
    return variable


def test_more_layers_make_no_more_tensors() -> None:
    for fmt in (ROUGH, FINE):
        few, many = (values_of_forward(small_config(layers, fmt)) for layers in (1, 3))
        for made in ("relax.call_tir", "relax.builtin.alloc_tensor"):
            assert len(calls(few, made)) == len(calls(many, made)) > 0


def test_what_lives_together_has_memory_of_its_own() -> None:
    """Keys and values, multiplied one after the other, have the same shape."""
    values = values_of_forward(small_config(2, FINE))
    kernels = calls(values, "relax.call_tir_inplace")
    appends = [call for call in kernels if call.args[0].name_hint.startswith("rope_append")]
    assert len(appends) == 2
    for append in appends:
        assert len({memory_of(append.args[1][i], values) for i in (0, 1, 2, 7)}) == 4
