"""Tiny random encoders with windows on both sides against their formulas in NumPy, and what their
headers say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoder_tools import computed, runner_of
from tiny_window_encoders import VOCABULARY, TinyWindowEncoder

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.models.attention_spec import RopeSpec
from mlc_llm.models.encoder_spec import EncoderSpec, PairSpec
from mlc_llm.models.network_spec import DenseSpec
from mlc_llm.models.registry import read_config, read_gguf

RNG = np.random.default_rng(0)
TEXTS = [RNG.integers(0, VOCABULARY, n).tolist() for n in (1, 5, 16, 17, 120, 150, 2)]
WORST = {"reference": 1e-5, None: 5e-3}
"""Of the largest number; this machine's kernels keep keys and values in float16."""
MODERN = TinyWindowEncoder("modern-bert", labels=1)
GEMMA = TinyWindowEncoder("gemma-embedding", window=40, projections=(72, 24))
SLOW = pytest.mark.slow


@pytest.mark.one_of(2)
@pytest.mark.parametrize(
    ("encoder", "kernels"),
    [
        (MODERN, "reference"),
        pytest.param(MODERN, None, marks=SLOW),
        pytest.param(replace(MODERN, pooling="cls"), "reference", marks=SLOW),
        pytest.param(GEMMA, "reference", marks=SLOW),
        (GEMMA, None),
    ],
    ids=str,
)
def test_vectors_are_numpys(
    tmp_path: Path, encoder: TinyWindowEncoder, kernels: str | None
) -> None:
    """Whatever else is in the step, a text has the same bits."""
    runner = runner_of(encoder.write(tmp_path / "tiny.gguf"), tmp_path, kernels)
    together = computed(runner, TEXTS)
    for text, found in zip(TEXTS, together, strict=True):
        exact = encoder.projected(encoder.hidden(text).mean(axis=0))
        assert np.abs(found - exact).max() <= WORST[kernels] * np.abs(exact).max()
        assert computed(runner, [text]) == [found], "in another step"
    assert runner.limits.hidden_size == len(together[0])
    if encoder.labels:
        pairs = computed(runner, TEXTS[1:], second_at=1)
        for text, (score,) in zip(TEXTS[1:], pairs, strict=True):
            (exact_score,) = encoder.scores(text)
            assert score == pytest.approx(exact_score, abs=10 * WORST[kernels])


MODERN_CONFIG: dict[str, Any] = {
    "architectures": ["ModernBertModel"], "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 300,
    "max_position_embeddings": 128, "local_attention": 20, "global_attn_every_n_layers": 3,
    "global_rope_theta": 5e4, "local_rope_theta": 1e3, "norm_eps": 1e-5,
}  # fmt: skip
GEMMA_CONFIG: dict[str, Any] = {
    "architectures": ["Gemma3TextModel"], "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16,
    "vocab_size": 300, "max_position_embeddings": 128, "sliding_window": 20,
    "query_pre_attn_scalar": 16, "use_bidirectional_attention": True,
}  # fmt: skip


def test_a_config_of_a_modern_bert() -> None:
    spec = read_config(MODERN_CONFIG)
    assert [one.reach for one in spec.attention_layers.values()] == [None, 10, 10, None]
    assert [one.rope for one in spec.attention_layers.values()] == [0, 1, 1, 0]
    assert spec.ropes == (RopeSpec(5e4, 16), RopeSpec(1e3, 16))
    assert [one.mixer_norm for one in spec.layers] == [False, True, True, True]
    assert spec.layers[0].feed_forward == DenseSpec(96, "gelu") and not spec.norm_bias
    assert spec.encoder == EncoderSpec(pair=PairSpec("cls", "gelu", False, True), last_norm=True)
    newer = {
        **{key: one for key, one in MODERN_CONFIG.items() if "rope" not in key},
        "global_attn_every_n_layers": None,
        "layer_types": ["full_attention", *["sliding_attention"] * 2, "full_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 5e4},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
        },
    }
    assert read_config(newer) == spec
    named = ["ModernBertForSequenceClassification"]
    scores = read_config({**MODERN_CONFIG, "architectures": named, "num_labels": 1})
    assert scores.encoder is not None and scores.encoder.labels == 1


def test_a_config_of_a_gemma() -> None:
    spec = read_config(GEMMA_CONFIG)
    assert [one.reach for one in spec.attention_layers.values()] == [*[10] * 5, None]
    assert {one.window for one in spec.attention_layers.values()} == {None}
    assert spec.encoder == EncoderSpec(embedding_norm=False, last_norm=True)
    assert spec.embedding_scale == 8 and len(spec.kv_groups) == 1
    assert read_config({**GEMMA_CONFIG, "is_causal": False}) == spec


@pytest.mark.parametrize(
    ("config", "changed", "word"),
    [
        (MODERN_CONFIG, {"norm_bias": True}, "norm_bias is True"),
        (MODERN_CONFIG, {"mlp_bias": True}, "mlp_bias is True"),
        (MODERN_CONFIG, {"hidden_activation": "relu"}, "hidden_activation is 'relu'"),
        (MODERN_CONFIG, {"classifier_pooling": "max"}, "classifier_pooling is 'max'"),
        (MODERN_CONFIG, {"rope_scaling": {"type": "linear"}}, "rope_scaling is"),
        (GEMMA_CONFIG, {"use_bidirectional_attention": False}, "use_bidirectional_attention is"),
        (GEMMA_CONFIG, {"use_bidirectional_attention": None}, "use_bidirectional_attention is"),
    ],
)
def test_configs_of_other_models_are_refused(
    config: dict[str, Any], changed: dict[str, Any], word: str
) -> None:
    with pytest.raises(UnsupportedModel, match=word):
        read_config({**config, **changed})


def test_a_gemma_is_no_encoder_unless_it_says_it() -> None:
    silent = {key: one for key, one in GEMMA_CONFIG.items() if "bidirectional" not in key}
    with pytest.raises(UnsupportedModel, match="use_bidirectional_attention is False"):
        read_config(silent)


def test_broken_files(tmp_path: Path) -> None:
    file = GGUFFile.open(MODERN.write(tmp_path / "tiny.gguf"))
    for key, word in (("classifier.pooling_type", "is 3"), ("attention.causal", "is 3")):
        with pytest.raises(UnsupportedModel, match=word):
            read_gguf({**file.metadata, f"modern-bert.{key}": 3}, file.tensors)
    plain = {name: one for name, one in file.tensors.items() if "cls.output" not in name}
    assert "pair_dense" not in read_gguf(file.metadata, plain).matrices, "of another head"
    file = GGUFFile.open(GEMMA.write(tmp_path / "gemma.gguf"))
    second = {name: one for name, one in file.tensors.items() if name != "dense_2.weight"}
    with pytest.raises(UnsupportedModel, match=r"tensor dense_3\.weight"):
        read_gguf(file.metadata, second)
    wrong = {**file.tensors, "dense_3.weight": file.tensors["token_embd.weight"]}
    with pytest.raises(ModelFileError, match=r"dense_3.*expected \(68, 72\)"):
        read_gguf(file.metadata, wrong)
