"""Random small Gemma 4 models of Transformers against the reference kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from converted import needs_converter

transformers = pytest.importorskip("transformers", reason="the oracle extra is not installed")
torch = pytest.importorskip("torch", reason="the oracle extra is not installed")

from small_models import check_both_files, randomized, sizes  # noqa: E402

pytestmark = [pytest.mark.oracle, pytest.mark.slow, needs_converter]
PLAIN = {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}
KINDS: dict[str, dict[str, Any]] = {
    "plain": PLAIN,
    "keys as values": {**PLAIN, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
    "shared keys and values": {
        "hidden_size_per_layer_input": 32, "num_kv_shared_layers": 3, "use_double_wide_mlp": True,
    },
    "inputs by token": {"hidden_size_per_layer_input": 32, "num_kv_shared_layers": 0},
    "all": {
        "hidden_size_per_layer_input": 32, "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
        "attention_k_eq_v": True, "num_global_key_value_heads": 1,
    },
}  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_transformers(tmp_path: Path, kind: str, seed: int) -> None:
    given = sizes(seed) | {
        "num_hidden_layers": 6, "layer_types": ["sliding_attention", "full_attention"] * 3,
        "vocab_size_per_layer_input": sizes(seed)["vocab_size"], "sliding_window": 24,
        "global_head_dim": 128, "final_logit_softcapping": 4.0, "tie_word_embeddings": True,
    }  # fmt: skip
    config = transformers.Gemma4TextConfig(**given, **KINDS[kind])
    model = randomized(transformers.Gemma4ForCausalLM(config), seed)
    for i, layer in enumerate(model.model.layers):
        layer.layer_scalar.fill_(0.7 + 0.1 * i)
        layer.self_attn.q_norm.weight.data *= 0.25  # scores are not scaled: they would be extreme
    check_both_files(model, tmp_path, seed)
