"""How many tensors a step makes."""

from __future__ import annotations

from typing import Any

from tvm import relax

from mlc_llm.backends.registry import backend_of
from mlc_llm.compiler.build import export_specs, kv_info
from mlc_llm.library.signatures import FORWARD
from mlc_llm.models.decoder import Decoder
from mlc_llm.models.spec import AttentionSpec, LayerSpec, ModelSpec, RopeSpec

PORTABLE = backend_of("portable")
ROUGH, FINE = "Q4_0", "Q8_0"


def small_spec(layers: int, value_kind: str) -> ModelSpec:
    """Keys and values have one shape, and matrices of their own where the queries' tensor type is
    another."""
    kinds = {"embedding": ROUGH}
    joined = value_kind == ROUGH
    for i in range(layers):
        names = ["qkv.q_k_v"] if joined else ["qkv.q", "qkv.k", "qkv.v"]
        kinds |= {f"layers.{i}.{name}": value_kind for name in (*names, "mlp.gate_up")}
        kinds |= {
            f"layers.{i}.{name}": ROUGH for name in ("qkv.q", "o", "down") if name not in kinds
        }
    attention = AttentionSpec(heads=4, kv_heads=2, head_dim=16, scale=0.25)
    return ModelSpec(
        architecture="llama", hidden=64, vocab=64, context_window=64, norm_eps=1e-5,
        layers=(LayerSpec(attention, intermediate=96),) * layers,
        ropes=(RopeSpec(theta=10000.0, dim=16),), tied_head=True, kinds=kinds,
    )  # fmt: skip


def values_of_forward(spec: ModelSpec) -> dict[Any, Any]:
    """What each variable of `forward` is bound to."""
    ops = PORTABLE.ops()
    model = Decoder(spec, ops)
    specs = export_specs(spec, kv_info(spec, PORTABLE, ops), ops)
    module, _ = model.export_tvm({FORWARD: specs[FORWARD]})
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
    for kind in (ROUGH, FINE):
        few, many = (values_of_forward(small_spec(layers, kind)) for layers in (1, 3))
        for made in ("relax.call_tir", "relax.builtin.alloc_tensor"):
            assert len(calls(few, made)) == len(calls(many, made)) > 0


def test_what_lives_together_has_memory_of_its_own() -> None:
    """Keys and values, multiplied one after the other, have the same shape."""
    values = values_of_forward(small_spec(2, FINE))
    kernels = calls(values, "relax.call_tir_inplace")
    appends = [call for call in kernels if call.args[0].name_hint.startswith("rope_append")]
    assert len(appends) == 2
    for append in appends:
        assert len({memory_of(append.args[1][i], values) for i in (0, 1, 2, 7)}) == 4
