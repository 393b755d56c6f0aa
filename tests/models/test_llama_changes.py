"""What the architectures that change a Llama read out of their headers, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.models.attention_spec import AttentionSpec, QueryScaling, RopeSpec
from mlc_llm.models.registry import ROWS, read_config, read_gguf
from mlc_llm.models.spec import ModelSpec

HIDDEN, HEADS, KV_HEADS, DIM, WIDE, LAYERS, VOCAB = 64, 4, 2, 16, 96, 5, 300
SIZES: dict[str, Any] = {
    "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS, "head_dim": DIM, "intermediate_size": WIDE,
    "vocab_size": VOCAB, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
    "hidden_act": "silu", "rope_theta": 10000.0, "tie_word_embeddings": True,
}  # fmt: skip
METADATA = {
    "embedding_length": HIDDEN, "block_count": LAYERS, "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS, "attention.key_length": DIM,
    "feed_forward_length": WIDE, "context_length": 512,
    "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10000.0,
}  # fmt: skip
LAYER: dict[str, tuple[int, ...]] = {
    "attn_norm.weight": (HIDDEN,), "attn_q.weight": (HEADS * DIM, HIDDEN),
    "attn_k.weight": (KV_HEADS * DIM, HIDDEN), "attn_v.weight": (KV_HEADS * DIM, HIDDEN),
    "attn_output.weight": (HIDDEN, HEADS * DIM), "ffn_norm.weight": (HIDDEN,),
    "ffn_gate.weight": (WIDE, HIDDEN), "ffn_up.weight": (WIDE, HIDDEN),
    "ffn_down.weight": (HIDDEN, WIDE),
}  # fmt: skip
BIASES = {
    "attn_q.bias": (HEADS * DIM,), "attn_k.bias": (KV_HEADS * DIM,),
    "attn_v.bias": (KV_HEADS * DIM,),
}  # fmt: skip
MORE_BIASES = {
    "attn_output.bias": (HIDDEN,), "ffn_gate.bias": (WIDE,), "ffn_up.bias": (WIDE,),
    "ffn_down.bias": (HIDDEN,),
}  # fmt: skip
HEAD_NORMS = {"attn_q_norm.weight": (DIM,), "attn_k_norm.weight": (DIM,)}
SECTIONS = {"rope.dimension_sections": [4, 2, 2, 0]}
POST_NORMS = {"post_attention_norm.weight": (HIDDEN,), "post_ffw_norm.weight": (HIDDEN,)}
OLMO_LAYER = {
    **{name: shape for name, shape in LAYER.items() if "norm" not in name}, **POST_NORMS,
    "attn_q_norm.weight": (HEADS * DIM,), "attn_k_norm.weight": (KV_HEADS * DIM,),
}  # fmt: skip
EXAONE_LAYER = OLMO_LAYER | {"attn_q_norm.weight": (DIM,), "attn_k_norm.weight": (DIM,)}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
GGUF_YARN = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 128,
}  # fmt: skip
GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": DIM}
GEMMA4 = {
    "hidden_activation": "gelu_pytorch_tanh", "global_head_dim": 32,
    "vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 16,
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25},
        "sliding_attention": {"rope_type": "default"},
    },
}  # fmt: skip
KINDS = [f"{one}_attention" for one in ("sliding", "full", "sliding", "sliding", "full")]
WINDOWS = {"attention.sliding_window": 20}


class Info(NamedTuple):
    shape: tuple[int, ...]
    kind: str = "F32"


def of_gguf(name: str, metadata: dict[str, Any], layer: dict[str, tuple[int, ...]]) -> ModelSpec:
    tensors = {"token_embd.weight": Info((VOCAB, HIDDEN)), "output_norm.weight": Info((HIDDEN,))}
    tensors |= {f"blk.{i}.{n}": Info(size) for i in range(LAYERS) for n, size in layer.items()}
    own = {f"{name}.{key}": value for key, value in (METADATA | metadata).items()}
    return replace(read_gguf({"general.architecture": name, **own}, tensors).spec, kinds={})


def of_config(kind: str, **changes: Any) -> ModelSpec:
    return read_config({**SIZES, "architectures": [f"{kind}ForCausalLM"], **changes})


def of_qwen_with_images(kind: str, **more: Any) -> ModelSpec:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}
    own = {name: one for name, one in SIZES.items() if not name.startswith(("rope", "tie"))}
    inner = {**own, "rope_parameters": rope, "tie_word_embeddings": True}
    names = {"architectures": [f"{kind}ForConditionalGeneration"]}
    return read_config({**names, "text_config": inner, "vision_config": {}, **more})


def windows(spec: ModelSpec) -> list[int | None]:
    return [one.window for one in spec.attention_layers.values()]


SAME: dict[str, tuple[Callable[[], ModelSpec], Callable[[], ModelSpec]]] = {
    "llama with YaRN": (
        lambda: of_gguf("llama", GGUF_YARN, LAYER),
        lambda: of_config("Llama", rope_scaling=YARN),
    ),
    "mistral": (
        lambda: of_gguf("llama", WINDOWS, LAYER),
        lambda: of_config("Mistral", sliding_window=20),
    ),
    "ministral 3": (
        lambda: of_gguf(
            "mistral3",
            GGUF_YARN
            | {"attention.temperature_scale": 0.25, "rope.scaling.yarn_log_multiplier": 1.0},
            LAYER,
        ),
        lambda: of_config(
            "Ministral3", model_type="ministral3",
            rope_parameters={
                **YARN, "mscale": 1, "mscale_all_dim": 1, "llama_4_scaling_beta": 0.25,
                "rope_theta": 10000.0,
            },
        ),
    ),
    "smollm 3": (
        lambda: of_gguf("smollm3", {}, LAYER),
        lambda: of_config("SmolLM3", no_rope_layers=[1, 1, 1, 0, 1]),
    ),
    "granite": (
        lambda: of_gguf(
            "granite",
            {
                "attention.scale": 0.5, "embedding_scale": 12.0, "residual_scale": 0.25,
                "logit_scale": 8.0,
            },
            LAYER,
        ),
        lambda: of_config(
            "Granite", attention_multiplier=0.5, embedding_multiplier=12,
            residual_multiplier=0.25, logits_scaling=8,
        ),
    ),
    "arcee": (
        lambda: of_gguf("arcee", {}, {n: s for n, s in LAYER.items() if "gate" not in n}),
        lambda: of_config("Arcee", hidden_act="relu2"),
    ),
    "ernie 4.5": (lambda: of_gguf("ernie4_5", {}, LAYER), lambda: of_config("Ernie4_5")),
    "ernie 4.5 with biases": (
        lambda: of_gguf("ernie4_5", {}, LAYER | BIASES | MORE_BIASES),
        lambda: of_config("Ernie4_5", use_bias=True),
    ),
    "qwen 2": (lambda: of_gguf("qwen2", {}, LAYER | BIASES), lambda: of_config("Qwen2")),
    "qwen 2.5-vl": (
        lambda: of_gguf("qwen2vl", SECTIONS, LAYER | BIASES),
        lambda: of_qwen_with_images("Qwen2_5_VL"),
    ),
    "qwen 3-vl": (
        lambda: of_gguf("qwen3vl", SECTIONS, LAYER | HEAD_NORMS),
        lambda: of_qwen_with_images("Qwen3VL"),
    ),
    "seed-oss": (
        lambda: of_gguf(
            "seed_oss",
            {},
            {n.replace("ffn_norm", "post_attention_norm"): s for n, s in LAYER.items()} | BIASES,
        ),
        lambda: of_config("SeedOss"),
    ),
    "gemma": (
        lambda: of_gguf("gemma", {}, LAYER),
        lambda: of_config("Gemma", hidden_act="gelu"),
    ),
    "gemma 2": (
        lambda: of_gguf("gemma2", WINDOWS, LAYER | POST_NORMS),
        lambda: of_config("Gemma2", **GEMMA, sliding_window=20),
    ),
    "olmo 2": (lambda: of_gguf("olmo2", {}, OLMO_LAYER), lambda: of_config("Olmo2")),
    "cohere 2": (
        lambda: of_gguf(
            "cohere2",
            {**WINDOWS, "attention.layer_norm_epsilon": 1e-5, "logit_scale": 0.25},
            {name: shape for name, shape in LAYER.items() if name != "ffn_norm.weight"},
        ),
        lambda: of_config("Cohere2", sliding_window=20, logit_scale=0.25),
    ),
    "exaone 4": (
        lambda: of_gguf("exaone4", {}, EXAONE_LAYER),
        lambda: of_config("Exaone4", sliding_window=None, sliding_window_pattern=None),
    ),
    "exaone 4 with windows": (
        lambda: of_gguf("exaone4", WINDOWS, EXAONE_LAYER),
        lambda: of_config("Exaone4", sliding_window=20, sliding_window_pattern="LLLG"),
    ),
    "olmo 3": (
        lambda: of_gguf("olmo2", GGUF_YARN | WINDOWS, OLMO_LAYER),
        lambda: of_config("Olmo3", rope_scaling=YARN, sliding_window=20),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_config_json_says_what_the_gguf_file_says(name: str) -> None:
    of_file, of_folder = SAME[name]
    assert of_folder() == of_file()
    assert of_file() != of_config("Llama")


def test_a_model_that_reads_images_is_its_language_model() -> None:
    text = {**SIZES, **GEMMA, "sliding_window": 20}
    wrapped = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    assert read_config(wrapped) == of_config("Gemma3", **GEMMA, sliding_window=20)
    (row,) = (row for row in ROWS if row.config == "Gemma3ForConditionalGeneration")
    assert row.gguf == "gemma3"


def test_older_files_of_a_qwen_that_reads_images() -> None:
    """One object for all, as the hub has it, with a type of rotation of its own."""
    rope = {"type": "mrope", "mrope_section": [4, 2, 2]}
    names = {"architectures": ["Qwen2VLForConditionalGeneration"], "vision_config": {}}
    flat = read_config({**SIZES, **names, "rope_scaling": rope})
    assert flat == of_qwen_with_images("Qwen2VL")
    untied = read_config({**SIZES, **names, "tie_word_embeddings": False})
    assert not untied.tied_head
    silent = {name: one for name, one in SIZES.items() if name != "tie_word_embeddings"}
    assert read_config({**silent, **names}) == untied


def test_windows() -> None:
    assert windows(of_config("Mistral")) == [4096] * LAYERS
    assert windows(of_config("Mistral", sliding_window=None)) == [None] * LAYERS
    assert windows(of_config("Qwen2", sliding_window=9)) == [None] * LAYERS
    qwen = of_config("Qwen2", use_sliding_window=True, sliding_window=9, max_window_layers=3)
    assert windows(qwen) == [None, None, None, 9, 9]
    assert windows(of_config("Gemma2", **GEMMA)) == [4096, None, 4096, None, 4096]
    assert windows(of_config("Olmo3")) == [4096, 4096, 4096, None, 4096]
    exaone = of_config("Exaone4")
    assert windows(exaone) == [4096, 4096, 4096, None, 4096]
    assert [one.rope for one in exaone.attention_layers.values()] == [0, 0, 0, None, 0]
    with pytest.raises(UnsupportedModel, match="sliding_window_pattern"):
        of_config("Exaone4", sliding_window_pattern="LG")
    pattern = {**WINDOWS, "attention.sliding_window_pattern": [True, False, True, True, False]}
    assert windows(of_gguf("olmo2", pattern, OLMO_LAYER)) == [20, None, 20, 20, None]


def test_layers_of_gemma_4() -> None:
    spec = of_config("Gemma4", **{**GEMMA4, "layer_types": KINDS}, num_kv_shared_layers=2)
    mixers = spec.attention_layers
    assert [one.shares for one in mixers.values()] == [None, None, None, 2, 1]
    assert [one.head_dim for one in mixers.values()] == [16, 32, 16, 16, 32]
    assert [group.layers for group in spec.kv_groups] == [(0, 2), (1,)]
    assert spec.group_of_layer() == {0: 0, 1: 1, 2: 0, 3: 0, 4: 1}
    assert spec.token_inputs == 16 * LAYERS
    whole, local = spec.ropes
    assert whole.factors == (1.0,) * 4 + (1e30,) * 12
    assert (local.theta, local.dim, local.factors) == (10000.0, 16, None)
    usual = {**GEMMA4, "rope_parameters": None}
    assert of_config("Gemma4", **usual, layer_types=KINDS).ropes == (whole, local)


def test_caps_of_gemma_2() -> None:
    spec = of_config("Gemma2", **GEMMA)
    assert (spec.layers[0].mixer.score_cap, spec.logit_cap) == (50.0, 30.0)  # type: ignore[union-attr]
    none = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    spec = of_config("Gemma2", **GEMMA, **none)
    assert (spec.layers[0].mixer.score_cap, spec.logit_cap) == (None, None)  # type: ignore[union-attr]


def test_yarn_is_the_papers() -> None:
    """Yarn of the paper's section 3, with the magnitude of section 3.4."""
    fields = {**YARN, "beta_fast": 3.0, "truncate": False}
    (rope,) = of_config("Llama", rope_scaling=fields).ropes
    frequency = 10000.0 ** (-np.arange(0, DIM, 2) / DIM)
    turns = 128 * frequency / (2 * np.pi)
    # The paper cuts at whole turns; makers' code cuts a straight line over the logarithm of them.
    short = np.clip(np.log(turns / 1.0) / np.log(3.0 / 1.0), 0, 1)
    expected = frequency * (1 - short) / 4 + frequency * short
    np.testing.assert_allclose(frequency / np.asarray(rope.factors), expected, rtol=1e-12)
    assert rope.magnitude == pytest.approx(1 + 0.1 * np.log(4))
    given = of_config("Llama", rope_scaling={**fields, "attention_factor": 1.5}).ropes[0]
    assert given == replace(rope, magnitude=1.5)


@pytest.mark.parametrize(
    ("metadata", "divisor"),
    [
        ({}, 1.0),
        ({"rope.scaling.factor": 4.0}, 4.0),
        ({"rope.scale_linear": 2.0}, 2.0),
        ({"rope.scaling.factor": 4.0, "rope.scale_linear": 2.0}, 4.0),
        ({"rope.scaling.type": "linear", "rope.scale_linear": 2.0}, 2.0),
        ({"rope.scaling.factor": 0.0}, 1.0),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, 1.0),
        ({"rope.scaling.type": "none", "rope.scale_linear": 2.0}, 1.0),
    ],
)
def test_scaling_without_a_type_is_linear(metadata: dict[str, Any], divisor: float) -> None:
    """As llama.cpp reads such files."""
    (rope,) = of_gguf("llama", metadata, LAYER).ropes
    assert rope == RopeSpec(10000.0, DIM, divisor)


def test_rotated_elements_are_multiplied_without_yarn_too() -> None:
    keys = {"rope.scaling.attn_factor": 1.25, "rope.dimension_count_swa": 8}
    (rope,) = of_gguf("llama", keys, LAYER).ropes
    assert rope == RopeSpec(1e4, DIM, magnitude=1.25)
    gemma = {**LAYER, **HEAD_NORMS, **POST_NORMS}
    whole, local = of_gguf("gemma3", {**WINDOWS, **keys}, gemma).ropes
    assert (whole, local) == (rope, RopeSpec(1e4, 8))


def test_yarn_by_the_older_name_of_the_factor() -> None:
    names = {"rope.scaling.factor": "rope.scale_linear"}
    old = {names.get(key, key): one for key, one in GGUF_YARN.items()}
    assert of_gguf("llama", old, LAYER) == of_gguf("llama", GGUF_YARN, LAYER)


def test_scaled_queries_and_a_window_of_the_engine_do_not_go_together() -> None:
    def scaled(i: int, one: AttentionSpec) -> AttentionSpec:
        return replace(one, query_scaling=QueryScaling(0.1, 64)) if i == 3 else one

    with pytest.raises(UnsupportedModel, match="layer 3 scales queries by position"):
        of_config("Llama").with_attention(scaled).with_sink_queries()


@pytest.mark.parametrize(
    ("read", "error", "words"),
    [
        (lambda: of_gguf("llama", {**GGUF_YARN, "rope.scaling.yarn_ext_factor": 0.5}, LAYER),
         UnsupportedModel, "yarn_ext_factor is 0.5"),
        (lambda: of_gguf("llama", {"rope.scaling.type": "longrope"}, LAYER), UnsupportedModel,
         "'longrope'"),
        (lambda: of_gguf("granite", {"logit_scale": 2.0, "rope.scaling.finetuned": False}, LAYER),
         UnsupportedModel, "rope.scaling.finetuned is False"),
        (lambda: of_gguf("exaone4", {**WINDOWS, "rope.freq_base_swa": 5e5}, EXAONE_LAYER),
         UnsupportedModel, r"exaone4\.rope\.freq_base_swa is 500000\.0; supported: 10000\.0"),
        (lambda: of_gguf("cohere2", {**WINDOWS, "rope.freq_base_swa": 5e5, "logit_scale": 1.0,
                         "attention.layer_norm_epsilon": 1e-5}, LAYER), UnsupportedModel,
         r"freq_base_swa is 500000\.0"),
        (lambda: of_gguf("exaone4", {**WINDOWS, "rope.dimension_count_swa": 8}, EXAONE_LAYER),
         UnsupportedModel, r"exaone4\.rope\.dimension_count_swa is 8; supported: 16"),
        (lambda: of_gguf("gemma2", {**WINDOWS, "rope.freq_base_swa": 5e5}, LAYER),
         UnsupportedModel, r"freq_base_swa is 500000\.0"),
        (lambda: of_gguf("gpt-oss", {**WINDOWS, "rope.freq_base_swa": 5e5, "expert_count": 4,
                         "expert_used_count": 2, "expert_feed_forward_length": 32}, LAYER),
         UnsupportedModel, r"freq_base_swa is 500000\.0"),
        (lambda: of_gguf("llama", {"expert_count": 4, "expert_used_count": 2,
                         "expert_group_count": 2}, LAYER), UnsupportedModel,
         r"llama\.expert_group_count is 2; supported: 0, 1"),
        (lambda: of_gguf("granite", {}, LAYER), ModelFileError, "granite.logit_scale is None"),
        (lambda: of_gguf("olmo2", {}, LAYER), ModelFileError, "no tensor blk.0.attn_k_norm"),
        (lambda: of_gguf("qwen2", {}, LAYER), ModelFileError, "no tensor blk.0.attn_k.bias"),
        (lambda: of_gguf("olmo2", {**WINDOWS, "attention.sliding_window_pattern": [1, 2]},
                         OLMO_LAYER), ModelFileError, "a list of 5 times 0 or 1"),
        (lambda: of_config("SmolLM3", no_rope_layers=[1, 0]), ModelFileError, "no_rope_layers is"),
        (lambda: of_config("SmolLM3", use_sliding_window=True), UnsupportedModel,
         "use_sliding_window is True"),
        (lambda: of_config("Qwen2", use_sliding_window=True, max_window_layers=-1), ModelFileError,
         "max_window_layers is -1"),
        (lambda: of_config("Gemma", hidden_act="silu"), UnsupportedModel, "hidden_act is 'silu'"),
        (lambda: of_config("Arcee"), UnsupportedModel, "hidden_act is 'silu'"),
        (lambda: of_config("Granite", logits_scaling=0), ModelFileError, "logits_scaling is 0"),
        (lambda: of_config("Gemma2", **GEMMA, final_logit_softcapping=-1), ModelFileError,
         "final_logit_softcapping is -1"),
        (lambda: of_config("Ministral3", model_type="ministral3", rope_parameters=YARN),
         ModelFileError, "llama_4_scaling_beta is None"),
        (lambda: of_config("Cohere2", rotary_pct=0.5), UnsupportedModel, "rotary_pct is 0.5"),
        (lambda: of_config("Cohere2", use_qk_norm=True), UnsupportedModel, "use_qk_norm is True"),
        (lambda: of_config("Gemma4", **GEMMA4, enable_moe_block=True), UnsupportedModel,
         "enable_moe_block is True"),
        (lambda: of_config("Gemma4", **GEMMA4, use_bidirectional_attention="all"),
         UnsupportedModel, "use_bidirectional_attention is 'all'"),
        (lambda: of_config("Gemma4", **GEMMA4, num_kv_shared_layers=4), ModelFileError,
         "layer 4 shares keys and values, and no layer has such"),
        (lambda: of_config("Gemma4", **GEMMA4, rope_scaling={"type": "linear", "factor": 2.0}),
         UnsupportedModel, "rope_scaling is "),
        (lambda: of_config("Gemma4", **{**GEMMA4, "rope_parameters": {"full_attention": {},
                           "sliding_attention": {}}}), UnsupportedModel,
         r"rope_parameters\.full_attention\.rope_type is None; supported: proportional"),
        (lambda: of_config("Gemma4", **{**GEMMA4, "vocab_size_per_layer_input": 7}),
         UnsupportedModel, "vocab_size_per_layer_input is 7"),
        (lambda: of_config("Gemma4", **GEMMA4, per_layer_config={"2": {"head_dim": 8},
                           "4": {"head_dim": 32}}, layer_types=["full_attention"] * LAYERS),
         UnsupportedModel, r"heads of sizes \[8, 16, 32\]"),
        (lambda: read_config({"architectures": ["Mistral3ForConditionalGeneration"]}),
         ModelFileError, "text_config is None; an object"),
        (lambda: read_config({**SIZES, "architectures": ["Gemma3ForConditionalGeneration"]}),
         ModelFileError, "text_config is None; an object"),
        (lambda: read_config({**SIZES, "architectures": ["Qwen3VLForConditionalGeneration"]}),
         ModelFileError, "text_config is None; an object"),
    ],
)  # fmt: skip
def test_refused_by_name(read: Callable[[], ModelSpec], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as refused:
        read()
    assert "\n" not in str(refused.value)
