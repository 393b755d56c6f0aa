"""What a spec can say beyond today's architectures: each feature against NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from architecture_tools import CHUNKS, TOKENS, relative_error, runner_of_plan
from decoder_reference import Array, Facts, ReferenceDecoder, gelu_tanh
from pairs import in_turn

from mlc_llm.backends.cpu.target import missing_features
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.models.attention_spec import QueryScaling
from mlc_llm.models.llama import read_gguf
from mlc_llm.models.network_spec import DenseSpec, ExpertsSpec
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.weight_plan import WeightPlan, plan_weights
from mlc_llm.testing.byte_tokenizer import VOCABULARY_SIZE
from mlc_llm.testing.gguf_writer import TensorData, write_gguf
from mlc_llm.testing.tiny_model import TinyShape, write_tiny_model

HIDDEN, WIDE, HEADS, KV_HEADS, DIM, LAYERS = 64, 96, 4, 2, 16, 2
EXPERTS, CHOSEN, NARROW = 5, 2, 32
Change = Callable[[ModelSpec], ModelSpec]


def gelu(x: Array) -> Array:
    return np.asarray(x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2)


def every_layer(**changes: Any) -> Change:
    return lambda spec: replace(
        spec, layers=tuple(replace(layer, **changes) for layer in spec.layers)
    )


def every_mixer(**changes: Any) -> Change:
    return lambda spec: replace(
        spec,
        layers=tuple(
            replace(layer, mixer=replace(layer.mixer, **changes)) for layer in spec.layers
        ),
    )


def dense_biases(spec: ModelSpec) -> ModelSpec:
    mlp = replace(spec.layers[0].feed_forward, bias=True)
    return every_layer(feed_forward=mlp)(spec)


def last_layer_unrotated(spec: ModelSpec) -> ModelSpec:
    first, last = spec.layers
    return replace(spec, layers=(first, replace(last, mixer=replace(last.mixer, rope=None))))


def every_rope(**changes: Any) -> Change:
    return lambda spec: replace(spec, ropes=tuple(replace(one, **changes) for one in spec.ropes))


def as_it_is(spec: ModelSpec) -> ModelSpec:
    return spec


def last_layer_shares(spec: ModelSpec) -> ModelSpec:
    return spec.with_attention(lambda i, one: replace(one, shares=0) if i else one)


@dataclass(frozen=True)
class Case:
    change: Change
    facts: dict[str, Any] = field(default_factory=dict)
    more: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Tensors of every layer that a Llama has not."""
    less: tuple[str, ...] = ()
    """Tensors of a Llama that this one has not: of every layer, or one by its name in full."""
    kind: str = "F32"
    """Tensor type of the experts' matrices."""
    factor: float = 1.0
    """Of the values in `more`."""
    outer: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Tensors of no layer that a Llama has not."""
    metadata: dict[str, Any] = field(default_factory=dict)


QUERY, KV = HEADS * DIM, KV_HEADS * DIM
EXPERT_TENSORS: dict[str, tuple[int, ...]] = {
    "ffn_gate_inp.weight": (EXPERTS, HIDDEN),
    "ffn_gate_exps.weight": (EXPERTS, NARROW, HIDDEN),
    "ffn_up_exps.weight": (EXPERTS, NARROW, HIDDEN),
    "ffn_down_exps.weight": (EXPERTS, HIDDEN, NARROW),
}
EXPERT_BIASES: dict[str, tuple[int, ...]] = {
    "ffn_gate_inp.bias": (EXPERTS,),
    "ffn_gate_exps.bias": (EXPERTS, NARROW),
    "ffn_up_exps.bias": (EXPERTS, NARROW),
    "ffn_down_exps.bias": (EXPERTS, HIDDEN),
}
HEAD_NORMS = {"attn_q_norm.weight": (DIM,), "attn_k_norm.weight": (DIM,)}
SHARED_TENSORS = {
    "ffn_gate_shexp.weight": (WIDE, HIDDEN),
    "ffn_up_shexp.weight": (WIDE, HIDDEN),
    "ffn_down_shexp.weight": (HIDDEN, WIDE),
}
DENSE = ("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight")
QKV = ("attn_q.weight", "attn_k.weight", "attn_v.weight")


def experts(**changes: Any) -> Change:
    return every_layer(feed_forward=ExpertsSpec(EXPERTS, CHOSEN, NARROW, **changes))


WORST_OF_CPU = {"portable": 1e-5, "avx2": 5e-3, None: 5e-3}
"""By kernels, None being this machine's: most of them keep keys and values in float16. Where
rotations lengthen keys, 3.8e-3 was seen."""
CASES = {
    "score cap": Case(every_mixer(score_cap=0.7), {"score_cap": 0.7}),
    "learned sinks": Case(every_mixer(learned_sinks=True), more={"attn_sinks.weight": (HEADS,)}),
    "learned sinks beside a window": Case(
        every_mixer(learned_sinks=True, window=9),
        {"window_of_layer": lambda layer: (9, 0)},
        {"attn_sinks.weight": (HEADS,)},
    ),
    "norms over all heads": Case(
        every_mixer(qk_norm="all"),
        more={"attn_q_norm.weight": (QUERY,), "attn_k_norm.weight": (KV,)},
    ),
    "queries scaled by position": Case(
        every_mixer(query_scaling=QueryScaling(0.7, 11)),
        {"query_factor": lambda position: 1 + 0.7 * np.log1p(position // 11)},
    ),
    "norms of values": Case(
        every_mixer(qk_norm="head", value_norm=True),
        {"value_norm": True},
        HEAD_NORMS,
    ),
    "keys as values": Case(
        every_mixer(values_are_keys=True), {"interleaved": False}, less=("attn_v.weight",)
    ),
    "keys and values of another layer": Case(
        last_layer_shares,
        {"keys_of_layer": lambda layer: 0},
        less=("blk.1.attn_k.weight", "blk.1.attn_v.weight"),
    ),
    "keys as values, all normalised": Case(
        every_mixer(values_are_keys=True, qk_norm="head", value_norm=True),
        {"interleaved": False, "value_norm": True},
        HEAD_NORMS,
        less=("attn_v.weight",),
    ),
    "keys as values before their norm": Case(
        every_mixer(values_are_keys=True, qk_norm="head"),
        {"interleaved": False},
        HEAD_NORMS,
        less=("attn_v.weight",),
    ),
    "queries with norms, and keys of another layer": Case(
        lambda spec: last_layer_shares(every_mixer(qk_norm="head", value_norm=True)(spec)),
        {"keys_of_layer": lambda layer: 0, "value_norm": True},
        HEAD_NORMS,
        less=("blk.1.attn_k.weight", "blk.1.attn_v.weight", "blk.1.attn_k_norm.weight"),
    ),
    "factors of layers": Case(
        every_layer(output_scale=True), more={"layer_output_scale.weight": (1,)}
    ),
    "inputs by token": Case(
        every_layer(token_input=NARROW),
        more={
            "inp_gate.weight": (NARROW, HIDDEN), "proj.weight": (HIDDEN, NARROW),
            "post_norm.weight": (HIDDEN,),
        },
        outer={
            "per_layer_token_embd.weight": (VOCABULARY_SIZE, LAYERS * NARROW),
            "per_layer_model_proj.weight": (LAYERS * NARROW, HIDDEN),
            "per_layer_proj_norm.weight": (NARROW,),
        },
    ),
    "biases of attention": Case(
        every_mixer(qkv_bias=True, output_bias=True),
        more={
            "attn_q.bias": (QUERY,), "attn_k.bias": (KV,), "attn_v.bias": (KV,),
            "attn_output.bias": (HIDDEN,),
        },
    ),
    "biases before norms": Case(
        every_mixer(qkv_bias=True, qk_norm="all"),
        more={
            "attn_q.bias": (QUERY,), "attn_k.bias": (KV,), "attn_v.bias": (KV,),
            "attn_q_norm.weight": (QUERY,), "attn_k_norm.weight": (KV,),
        },
    ),
    "biases of the feed-forward network": Case(
        dense_biases,
        more={"ffn_gate.bias": (WIDE,), "ffn_up.bias": (WIDE,), "ffn_down.bias": (HIDDEN,)},
    ),
    "exact GELU": Case(
        lambda spec: every_layer(
            feed_forward=replace(spec.layers[0].feed_forward, activation="gelu")
        )(spec),
        {"activation": gelu},
    ),
    "a layer without rotation": Case(last_layer_unrotated, {"rotates_layer": lambda i: i == 0}),
    "no norms before": Case(
        every_layer(pre_norms=False, post_norms=True),
        more={"post_attention_norm.weight": (HIDDEN,), "post_ffw_norm.weight": (HIDDEN,)},
        less=("attn_norm.weight", "ffn_norm.weight"),
    ),
    "multipliers": Case(
        lambda spec: replace(
            every_layer(residual_scale=0.3)(spec), embedding_scale=5.0, logit_scale=0.25
        ),
        {"residual_scale": 0.3, "embedding_scale": 5.0, "logit_scale": 0.25},
    ),
    "multipliers behind norms": Case(
        every_layer(residual_scale=0.3, post_norms=True),
        {"residual_scale": 0.3},
        {"post_attention_norm.weight": (HIDDEN,), "post_ffw_norm.weight": (HIDDEN,)},
    ),
    "logit cap": Case(lambda spec: replace(spec, logit_cap=6.0), {"logit_cap": 6.0}),
    "experts": Case(experts(), {"experts_per_token": CHOSEN}, EXPERT_TENSORS, DENSE),
    "experts in blocks of 8 bits": Case(
        experts(), {"experts_per_token": CHOSEN}, EXPERT_TENSORS, DENSE, kind="Q8_0"
    ),
    "experts in blocks of 4 bits": Case(
        experts(), {"experts_per_token": CHOSEN}, EXPERT_TENSORS, DENSE, kind="Q4_0"
    ),
    "experts in blocks of microscaled floats": Case(
        experts(), {"experts_per_token": CHOSEN}, EXPERT_TENSORS, DENSE, kind="MXFP4"
    ),
    "experts with biases": Case(
        experts(bias=True), {"experts_per_token": CHOSEN}, EXPERT_TENSORS | EXPERT_BIASES, DENSE
    ),
    "clamped experts with biases": Case(
        experts(bias=True, activation="clamped_swiglu"),
        {"experts_per_token": CHOSEN, "is_clamped": True},
        EXPERT_TENSORS | EXPERT_BIASES,
        DENSE,
        factor=8.0,  # so that some values are clamped
    ),
    "experts with weights that sum to 1": Case(
        experts(renormalize=True),
        {"experts_per_token": CHOSEN, "renormalize": True},
        EXPERT_TENSORS,
        DENSE,
    ),
    "experts chosen by sigmoids and learned numbers": Case(
        experts(
            router="sigmoid_then_top", choice_bias=True, renormalize=True, weight_scale=1.5
        ),
        {"experts_per_token": CHOSEN, "renormalize": True, "sigmoid_scale": 1.5},
        EXPERT_TENSORS | {"exp_probs_b.bias": (EXPERTS,)},
        DENSE,
    ),
    "experts with weights of sigmoids": Case(
        experts(router="sigmoid_then_top"),
        {"experts_per_token": CHOSEN, "sigmoid_scale": 1.0},
        EXPERT_TENSORS,
        DENSE,
    ),
    "experts, and a shared one with a gate": Case(
        experts(shared_intermediate=WIDE, shared_gate=True),
        {"experts_per_token": CHOSEN},
        EXPERT_TENSORS | SHARED_TENSORS | {"ffn_gate_inp_shexp.weight": (HIDDEN,)},
        DENSE,
    ),
    "layer norms": Case(
        lambda spec: replace(spec, norm="layer"),
        more={"attn_norm.bias": (HIDDEN,), "ffn_norm.bias": (HIDDEN,)},
        outer={"output_norm.bias": (HIDDEN,)},
    ),
    "a network without a gate": Case(
        every_layer(feed_forward=DenseSpec(WIDE, "gelu_tanh", gated=False)),
        {"activation": gelu_tanh},
        less=("ffn_gate.weight",),
    ),
    "a network without a gate, with biases": Case(
        every_layer(feed_forward=DenseSpec(WIDE, bias=True, gated=False)),
        more={"ffn_up.bias": (WIDE,), "ffn_down.bias": (HIDDEN,)},
        less=("ffn_gate.weight",),
    ),
    "learned positions": Case(
        lambda spec: replace(every_mixer(rope=None)(spec), learned_positions=600, ropes=()),
        {"rotates_layer": lambda i: False},
        outer={"position_embd.weight": (600, HIDDEN)},
    ),
    "parallel layers": Case(every_layer(parallel=True), {"parallel": True}),
    "parallel layers with one norm": Case(
        every_layer(parallel=True, one_norm=True), {"parallel": True}, less=("ffn_norm.weight",)
    ),
    "parallel layers with biases": Case(
        every_layer(
            parallel=True, one_norm=True, residual_scale=0.3,
            feed_forward=DenseSpec(WIDE, bias=True),
        ),
        {"parallel": True, "residual_scale": 0.3},
        {"ffn_gate.bias": (WIDE,), "ffn_up.bias": (WIDE,), "ffn_down.bias": (HIDDEN,)},
        less=("ffn_norm.weight",),
    ),
    "rotation of parts of heads": Case(
        every_rope(dim=DIM // 4), metadata={"llama.rope.dimension_count": DIM // 4}
    ),
    "longer elements by rotation": Case(every_rope(magnitude=1.3), {"magnitude": 1.3}),
    "fused matrices": Case(
        as_it_is,
        more={
            "attn_qkv.weight": (QUERY + 2 * KV, HIDDEN), "ffn_up.weight": (2 * WIDE, HIDDEN),
        },
        less=QKV + DENSE[:2],
    ),
    "fused matrices and biases, rotation of parts of heads": Case(
        lambda spec: every_mixer(qkv_bias=True)(every_rope(dim=DIM // 2)(spec)),
        more={"attn_qkv.weight": (QUERY + 2 * KV, HIDDEN), "attn_qkv.bias": (QUERY + 2 * KV,)},
        less=QKV,
        metadata={"llama.rope.dimension_count": DIM // 2},
    ),
    "a fused bias of matrices apart": Case(
        every_mixer(qkv_bias=True), more={"attn_qkv.bias": (QUERY + 2 * KV,)}
    ),
    "softmax of the chosen experts, and a shared one": Case(
        experts(router="top_then_softmax", shared_intermediate=WIDE),
        {"experts_per_token": CHOSEN, "softmax_of_chosen": True},
        EXPERT_TENSORS | SHARED_TENSORS,
        DENSE,
    ),
}  # fmt: skip


def quantized(values: npt.NDArray[np.float32], kind: str) -> TensorData:
    if kind != "MXFP4":
        return TensorData.quantized(values, kind)
    blocks = gguf.quants.quantize(values, gguf.GGMLQuantizationType.MXFP4)
    return TensorData(values.shape, kind, blocks.tobytes())


def planned(folder: Path, case: Case) -> tuple[Path, GGUFFile, WeightPlan]:
    """A random model with the case's tensors, and its plan."""
    shape = TinyShape(
        layers=LAYERS, hidden=HIDDEN, heads=HEADS, kv_heads=KV_HEADS, head_dim=DIM,
        intermediate=WIDE,
    )  # fmt: skip
    plain = GGUFFile.open(write_tiny_model(folder / "plain.gguf", kinds={"": "F32"}, shape=shape))
    spec = read_gguf(plain.metadata, plain.tensors).spec
    rng, tensors = np.random.default_rng(1), {}
    for tensor in gguf.GGUFReader(folder / "plain.gguf").tensors:
        if not {tensor.name, tensor.name.split(".", 2)[-1]} & set(case.less):
            values = np.asarray(tensor.data).reshape(tensor.shape[::-1].tolist())
            tensors[tensor.name] = TensorData.quantized(values, "F32")
    for name, size in case.more.items():
        for i in range(LAYERS):
            values = rng.standard_normal(size) * case.factor / len(size) ** 3
            kind = case.kind if len(size) == 3 else "F32"
            if f"blk.{i}.{name}" not in case.less:
                tensors[f"blk.{i}.{name}"] = quantized(values.astype(np.float32), kind)
    for name, size in case.outer.items():
        values = rng.standard_normal(size)
        tensors[name] = quantized(values.astype(np.float32), "F32")
    write_gguf(folder / "model.gguf", {**plain.metadata, **case.metadata}, tensors)
    file = GGUFFile.open(folder / "model.gguf")
    is_interleaved = case.facts.get("interleaved", True)
    plan = plan_weights(case.change(spec), file.tensors, interleaved_rope=is_interleaved)
    return folder / "model.gguf", file, plan


@pytest.mark.one_of(16)
@pytest.mark.parametrize("name", CASES)
def test_feature_against_numpy(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    path, file, plan = planned(tmp_path, case)
    exact = ReferenceDecoder(path, Facts(**case.facts)).logits(TOKENS)
    plain = ReferenceDecoder(tmp_path / "plain.gguf").logits(TOKENS)
    assert relative_error(plain, exact) > 1e-3, "the feature changes nothing"
    runner = runner_of_plan(plan, file.tensors, tmp_path, "reference")
    for chunk in CHUNKS:
        found = runner.logits(TOKENS, chunk=chunk)
        assert relative_error(found, exact) <= 1e-5, f"in chunks of {chunk}"


IN_OTHERS = {
    "a network without a gate", "keys and values of another layer", "keys as values",
    "norms of values", "parallel layers with one norm", "rotation of parts of heads",
}  # fmt: skip
"""Features that other cases have too, together with more: on CPU kernels they are slow."""
ON_CPU = [
    pytest.param(name, id=name, marks=pytest.mark.slow) if name in IN_OTHERS else name
    for name in CASES
    if "expert" not in name
]
"""Those with experts have tests of their own."""


@pytest.mark.one_of(16)
@pytest.mark.parametrize(("name", "kernels"), in_turn(ON_CPU, WORST_OF_CPU))
def test_cpu_kernels_against_numpy(tmp_path: Path, name: str, kernels: str | None) -> None:
    """All chunk sizes give the same bits."""
    if kernels is not None and missing_features(kernels):
        pytest.skip(f"this machine lacks {missing_features(kernels)}")
    path, file, plan = planned(tmp_path, CASES[name])
    exact = ReferenceDecoder(path, Facts(**CASES[name].facts)).logits(TOKENS)
    runner = runner_of_plan(plan, file.tensors, tmp_path, kernels)
    whole = runner.logits(TOKENS)
    assert relative_error(whole, exact) <= WORST_OF_CPU[kernels]
    for chunk in CHUNKS:
        assert runner.logits(TOKENS, chunk=chunk).tobytes() == whole.tobytes(), f"chunks of {chunk}"
