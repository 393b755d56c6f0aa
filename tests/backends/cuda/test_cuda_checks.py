"""What kernels of a GPU cannot compute is refused by name, before anything is packed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from mlc_llm.backends.cuda.backend import CudaBackend
from mlc_llm.errors import UnsupportedModel
from mlc_llm.models.encoder_spec import EncoderSpec
from mlc_llm.models.heads_spec import MedusaSpec
from mlc_llm.models.network_spec import DenseSpec, ExpertsSpec
from mlc_llm.models.recurrent import Mamba2Spec, Rwkv7Spec
from mlc_llm.models.registry import read_config
from mlc_llm.models.spec import EagleSpec, LayerSpec, ModelSpec
from mlc_llm.precision import PRECISIONS

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64,
    "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 300, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "hidden_act": "silu",
}  # fmt: skip
BACKEND = CudaBackend("sm_90a")
Change = Callable[[ModelSpec], ModelSpec]


def heads(**changes: int) -> Change:
    return lambda spec: spec.with_attention(lambda _, one: replace(one, **changes))


def layers(**changes: object) -> Change:
    def change(spec: ModelSpec) -> ModelSpec:
        new = (replace(one, **changes) for one in spec.layers)  # type: ignore[arg-type]
        return replace(spec, layers=tuple(new))

    return change


def stacks(spec: ModelSpec) -> ModelSpec:
    wide = spec.with_feed_forward(ExpertsSpec(512, 2, 4096))
    kinds = {f"layers.0.experts.{name}": "BF16" for name in ("gate", "up", "down")}
    return replace(wide, hidden=8192, kinds=kinds)


REFUSED: dict[str, tuple[Change, str]] = {
    "odd projections": (
        lambda one: replace(one, encoder=EncoderSpec(projections=(72, 24))),
        r"projection 72 \(multiples of 32\)",
    ),
    "odd Medusa heads": (
        lambda one: replace(one, layers=(), ropes=(), medusa=MedusaSpec(2, 1), hidden=48),
        r"hidden 48 \(multiples of 32\)",
    ),
    "odd heads": (heads(head_dim=20), r"head size 20 \(a multiple of 8 up to 512\)"),
    "large heads": (heads(head_dim=520), "head size 520"),
    "odd sizes": (lambda one: replace(one, hidden=48), r"hidden 48 \(multiples of 32\)"),
    "an odd network": (
        lambda one: one.with_feed_forward(DenseSpec(40)),
        r"feed-forward 40 \(multiples of 32\)",
    ),
    "odd states": (layers(mixer=Mamba2Spec(3, 16, 16, 1, 4)), "states 48"),
    "odd ranks": (layers(mixer=Rwkv7Spec(4, 16, 32, 40, 0, 32, 1e-5)), "rank of a 40 "),
    "large stacks": (stacks, r"layer 0: the matrices of all experts \(BF16\) are more than"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_is_refused(name: str) -> None:
    change, words = REFUSED[name]
    spec = read_config(CONFIG)
    BACKEND.check(spec)
    with pytest.raises(UnsupportedModel, match=words) as error:
        BACKEND.check(change(spec))
    assert "use --device cpu" in str(error.value) and "\n" not in str(error.value)


def test_an_eagle_head_beside_pages_of_bytes() -> None:
    spec = read_config(CONFIG)
    (layer, *_) = spec.layers
    eagle = replace(spec, eagle=EagleSpec(layer.mixer, DenseSpec(96), 1e-5))  # type: ignore[arg-type]
    BACKEND.check(eagle)
    with pytest.raises(UnsupportedModel, match="leave kv_cache_dtype out"):
        BACKEND.with_kv_cache("int8").check(eagle)


def test_how_exactly_kernels_compute() -> None:
    assert BACKEND.with_precision("exact") == BACKEND
    identities = [BACKEND.with_precision(one).library_identity() for one in PRECISIONS]
    assert all(identities.count(one) == 1 for one in identities), "each has a library of its own"


def test_a_state_alone_is_computed() -> None:
    spec = layers(mixer=Mamba2Spec(4, 16, 16, 1, 4))(read_config(CONFIG))
    BACKEND.check(spec)
    assert isinstance(spec.layers[0], LayerSpec)
