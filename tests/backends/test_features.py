"""What kernels cannot compute is refused in one line that names the layer and the feature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlc_llm.backends.cpu import checks
from mlc_llm.backends.features import FEATURES, Feature, refuse_missing
from mlc_llm.backends.registry import backend_of
from mlc_llm.compiler.build import build_library
from mlc_llm.errors import UnsupportedModel
from mlc_llm.models.attention_spec import AttentionSpec, QueryScaling, RopeSpec
from mlc_llm.models.encoder_spec import EncoderSpec
from mlc_llm.models.image_spec import TowerSpec
from mlc_llm.models.network_spec import NO_NETWORK, DenseSpec, ExpertsSpec
from mlc_llm.models.recurrent import GatedDeltaSpec, Mamba2Spec, Rwkv7Spec, ShortConvSpec
from mlc_llm.models.spec import LayerSpec, ModelSpec

PLAIN = LayerSpec(AttentionSpec(heads=4, kv_heads=2, head_dim=16, scale=0.25), DenseSpec(96))


def model(layer: LayerSpec = PLAIN, **changes: Any) -> ModelSpec:
    """Two layers, the first of them plain."""
    spec = ModelSpec(
        architecture="llama", hidden=64, vocab=64, context_window=64, norm_eps=1e-5,
        layers=(PLAIN, layer), ropes=(RopeSpec(theta=10000.0, dim=16),), tied_head=True,
    )  # fmt: skip
    return replace(spec, **changes)


def attention(**changes: Any) -> ModelSpec:
    return model(replace(PLAIN, mixer=replace(PLAIN.mixer, **changes)))


ASKED: dict[str, tuple[Feature, Callable[[], ModelSpec]]] = {
    "score caps": ("score caps", lambda: attention(score_cap=50.0)),
    "sinks": ("learned attention sinks", lambda: attention(learned_sinks=True)),
    "biases of queries": ("biases", lambda: attention(qkv_bias=True)),
    "biases of outputs": ("biases", lambda: attention(output_bias=True)),
    "biases of networks": (
        "biases",
        lambda: model(replace(PLAIN, feed_forward=DenseSpec(96, bias=True))),
    ),
    "no rotation": ("attention without a rotary embedding", lambda: attention(rope=None)),
    "norms of values": ("norms of values", lambda: attention(qk_norm="head", value_norm=True)),
    "keys as values": ("values that are keys", lambda: attention(values_are_keys=True)),
    "shared keys": ("keys and values of another layer", lambda: attention(shares=0)),
    "factors of layers": (
        "learned factors of layers",
        lambda: model(replace(PLAIN, output_scale=True)),
    ),
    "inputs by token": (
        "inputs of layers by token",
        lambda: model(replace(PLAIN, token_input=32)),
    ),
    "gates of experts": (
        "gates of shared experts",
        lambda: model(
            replace(
                PLAIN, feed_forward=ExpertsSpec(4, 2, 32, shared_intermediate=32, shared_gate=True)
            )
        ),
    ),
    "experts": ("experts", lambda: model(replace(PLAIN, feed_forward=ExpertsSpec(4, 2, 32)))),
    "convolutions": (
        "short convolutions",
        lambda: model(replace(PLAIN, mixer=ShortConvSpec(64, 3))),
    ),
    "state spaces": (
        "state spaces",
        lambda: model(replace(PLAIN, mixer=Mamba2Spec(2, 32, 16, 1, 4))),
    ),
    "mixers alone": (
        "layers without a network",
        lambda: model(replace(PLAIN, feed_forward=NO_NETWORK)),
    ),
    "states alone": (
        "no attention at all",
        lambda: replace(model(PLAIN), layers=(replace(PLAIN, mixer=Mamba2Spec(2, 32, 16, 1, 4)),)),
    ),
    "delta rules": (
        "gated delta rules",
        lambda: model(replace(PLAIN, mixer=GatedDeltaSpec(2, 32, 2, 32, 4))),
    ),
    "time mixing": (
        "time mixing of RWKV-7",
        lambda: model(replace(PLAIN, mixer=Rwkv7Spec(2, 32, 32, 32, 32, 32, 1e-5))),
    ),
    "token shifts": (
        "networks that read the token before",
        lambda: model(replace(PLAIN, feed_forward=DenseSpec(96, gated=False, shifted=64))),
    ),
    "embedding norms": ("norms of embeddings", lambda: model(embedding_norm=True)),
    "gates": (
        "gates of attention",
        lambda: model(replace(PLAIN, mixer=replace(PLAIN.mixer, gated=True))),
    ),
    "side by side": (
        "mixers side by side",
        lambda: model(replace(PLAIN, beside=Mamba2Spec(2, 32, 16, 1, 4))),
    ),
    "residual": ("residual multipliers", lambda: model(replace(PLAIN, residual_scale=0.5))),
    "norms of all heads": ("norms over all heads", lambda: attention(qk_norm="all")),
    "scaled queries": (
        "queries scaled by position",
        lambda: attention(query_scaling=QueryScaling(0.1, 32)),
    ),
    "biases of experts": (
        "biases of experts",
        lambda: model(replace(PLAIN, feed_forward=ExpertsSpec(4, 2, 32, bias=True))),
    ),
    "experts chosen by sigmoids": (
        "experts chosen by sigmoids",
        lambda: model(
            replace(PLAIN, feed_forward=ExpertsSpec(4, 2, 32, router="sigmoid_then_top"))
        ),
    ),
    "gates of shared experts": (
        "gates of shared experts",
        lambda: model(
            replace(
                PLAIN,
                feed_forward=ExpertsSpec(4, 2, 32, shared_intermediate=32, shared_gate=True),
            )
        ),
    ),
    "no gate": (
        "networks without a gate",
        lambda: model(replace(PLAIN, feed_forward=DenseSpec(96, gated=False))),
    ),
    "exact GELU": (
        "activations other than SiLU and tanh GELU",
        lambda: model(replace(PLAIN, feed_forward=DenseSpec(96, "gelu"))),
    ),
    "parallel": ("parallel layers", lambda: model(replace(PLAIN, parallel=True))),
    "parts of heads": (
        "rotary embeddings of parts of a head",
        lambda: model(ropes=(RopeSpec(theta=10000.0, dim=8),)),
    ),
    "layer norms": ("layer norms", lambda: model(norm="layer")),
    "sum norms": (
        "norms behind sums",
        lambda: model(replace(PLAIN, pre_norms=False, sum_norms=True)),
    ),
    "encoder": ("encoders", lambda: model(encoder=EncoderSpec())),
    "both sides": ("windows on both sides", lambda: attention(reach=8)),
    "tower": ("towers of images", lambda: model(tower=TowerSpec(8, 192, 4, 64))),
    "images": ("images", lambda: model(sight="before")),
    "positions": ("learned positions", lambda: model(learned_positions=64)),
    "logits": ("logit multipliers", lambda: model(logit_scale=0.5)),
    "logit caps": ("logit caps", lambda: model(logit_cap=30.0)),
}
OF_MODELS = (
    "rotary embeddings of parts of a head", "layer norms", "learned positions",
    "logit multipliers", "logit caps", "encoders", "no attention at all", "norms of embeddings",
    "towers of images", "images",
)  # fmt: skip


@pytest.mark.parametrize("case", ASKED)
def test_refused_before_anything_is_compiled(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feature, make = ASKED[case]
    spec, backend = make(), backend_of("portable")
    start = "the model needs" if feature in OF_MODELS else "layer 1 needs"
    end = "which the portable kernels cannot compute; use --kernels reference"
    monkeypatch.setattr(checks, "MISSING", {feature})
    with pytest.raises(UnsupportedModel) as error:
        backend.check(spec)
    assert str(error.value) == f"{start} {feature}, {end}"
    with pytest.raises(UnsupportedModel):
        build_library(spec, backend, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", ASKED)
def test_cpu_kernels_refuse_nothing_else(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    feature, make = ASKED[case]
    monkeypatch.setattr(checks, "MISSING", set(FEATURES) - {feature} - ALSO.get(feature, set()))
    backend_of("portable").check(make())


@pytest.mark.parametrize("case", ASKED)
def test_what_a_backend_has_is_not_refused(case: str) -> None:
    feature, make = ASKED[case]
    refuse_missing(make(), "some", {feature} | ALSO.get(feature, set()))
    with pytest.raises(UnsupportedModel, match=feature):
        refuse_missing(make(), "some", set(FEATURES) - {feature})


ALSO: dict[str, set[str]] = {
    "biases of experts": {"experts"},
    "experts chosen by sigmoids": {"experts"},
    "gates of shared experts": {"experts"},
    "mixers side by side": {"state spaces"},
    "no attention at all": {"state spaces"},
    "networks that read the token before": {"networks without a gate"},
}
"""What a model with the feature needs too."""


def test_every_feature_is_tried() -> None:
    assert {feature for feature, _ in ASKED.values()} == set(FEATURES)
    backend_of("portable").check(model())


@pytest.mark.parametrize(
    "wrong",
    [
        {"hidden": 48},
        {"layers": (replace(PLAIN, feed_forward=DenseSpec(40)),)},
        {"layers": (replace(PLAIN, token_input=24),)},
        {"layers": (replace(PLAIN, mixer=replace(PLAIN.mixer, head_dim=24)),)},
        {"layers": (replace(PLAIN, mixer=replace(PLAIN.mixer, heads=3, kv_heads=1)),)},
        {"layers": (replace(PLAIN, mixer=ShortConvSpec(64, 3)),), "hidden": 80},
        {"layers": (replace(PLAIN, mixer=Mamba2Spec(2, 32, 24, 1, 4)),)},
        {"layers": (replace(PLAIN, mixer=Mamba2Spec(4, 8, 16, 2, 4)),)},
        {"layers": (replace(PLAIN, feed_forward=ExpertsSpec(4, 2, 48)),)},
        {"layers": (replace(PLAIN, feed_forward=ExpertsSpec(4, 2, 32, shared_intermediate=80)),)},
    ],
)
def test_sizes_that_kernels_cannot_compute(wrong: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel, match=r"multiples of 32.*--kernels reference"):
        backend_of("portable").check(model(**wrong))


def test_more_experts_than_kernels_can_count() -> None:
    layer = replace(PLAIN, feed_forward=ExpertsSpec(256, 8, 2048))
    for kind, is_refused in (("F32", True), ("Q4_0", False)):
        names = ("gate", "up", "down")
        spec = model(layer, hidden=7168, kinds={f"layers.1.experts.{one}": kind for one in names})
        if not is_refused:
            backend_of("portable").check(spec)
            continue
        with pytest.raises(UnsupportedModel, match=r"layer 1: 256 experts of 2048 x 7168 \(F32"):
            backend_of("portable").check(spec)


def test_a_table_of_more_numbers_than_kernels_can_count() -> None:
    layer = replace(PLAIN, token_input=256)
    for kind, is_refused in (("F32", True), ("BF16", False), ("Q6_K", False)):
        spec = model(vocab=262144, kinds={"token_table": kind}, layers=(layer,) * 35)
        if not is_refused:
            backend_of("portable").check(spec)
            continue
        with pytest.raises(UnsupportedModel, match=r"token_table: 262144 x 8960 values \(F32\)"):
            backend_of("portable").check(spec)
