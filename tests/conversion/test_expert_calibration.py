"""What enters the matrices of experts, expert by expert."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conversion_tools import quiet
from safetensors.numpy import save_file
from tiny_folders import tokenizer_files

from mlc_llm.conversion.calibration import calibrate
from mlc_llm.conversion.convert import convert_weight
from mlc_llm.model_files.huggingface import HuggingFaceModel
from mlc_llm.model_files.mlc import MLCModel
from mlc_llm.model_files.quantized import QuantizedModel
from mlc_llm.model_files.row_pieces import Rows, expert_pieces
from mlc_llm.models.sources import Source
from mlc_llm.quantization.ggml_blocks import dequantize
from mlc_llm.quantization.ggml_quantize import quantize_weighted
from mlc_llm.quantization.group_schemes import SCHEMES, dequantize_groups, quantize_groups

EXPERTS, HIDDEN, WIDE = 4, 64, 32
UP = "blk.0.ffn_up_exps.weight"
BOTH = (UP, "blk.0.ffn_gate_exps.weight")
"""One matrix in MLC LLM's folders."""
TEXT = "The quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 4


def expert_folder(path: Path, chosen: int = 2, unmet: bool = False) -> HuggingFaceModel:
    """A Qwen3 MoE of one layer. unmet: the last expert is never chosen."""
    config: dict[str, Any] = {
        "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": HIDDEN, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 300,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "rope_theta": 1e4, "tie_word_embeddings": False, "intermediate_size": 96,
        "num_experts": EXPERTS, "num_experts_per_tok": chosen, "moe_intermediate_size": WIDE,
        "norm_topk_prob": True,
    }  # fmt: skip
    rng, start = np.random.default_rng(0), "model.layers.0"
    shapes = {
        "model.embed_tokens": (300, HIDDEN), "lm_head": (300, HIDDEN), "model.norm": (HIDDEN,),
        f"{start}.input_layernorm": (HIDDEN,), f"{start}.post_attention_layernorm": (HIDDEN,),
        f"{start}.self_attn.q_proj": (64, HIDDEN), f"{start}.self_attn.k_proj": (32, HIDDEN),
        f"{start}.self_attn.v_proj": (32, HIDDEN), f"{start}.self_attn.o_proj": (HIDDEN, 64),
        f"{start}.self_attn.q_norm": (16,), f"{start}.self_attn.k_norm": (16,),
        f"{start}.mlp.gate": (EXPERTS, HIDDEN),
    }  # fmt: skip
    for e in range(EXPERTS):
        expert = f"{start}.mlp.experts.{e}"
        shapes |= {f"{expert}.{one}_proj": (WIDE, HIDDEN) for one in ("gate", "up")}
        shapes[f"{expert}.down_proj"] = (HIDDEN, WIDE)
    weights = {f"{k}.weight": rng.standard_normal(s).astype(np.float32) for k, s in shapes.items()}
    if unmet:  # of r.x and -r.x one is above 0, which is what the last expert scores
        router = weights[f"{start}.mlp.gate.weight"]
        router[1], router[3] = -router[0], 0
    folder = path / "experts"
    folder.mkdir()
    save_file(weights, str(folder / "model.safetensors"))
    for name, text in {"config.json": json.dumps(config), **tokenizer_files()}.items():
        (folder / name).write_text(text, encoding="utf-8")
    return HuggingFaceModel.open(folder)


@pytest.mark.slow
def test_experts_that_get_all_tokens_see_what_the_router_sees(tmp_path: Path) -> None:
    found = calibrate(expert_folder(tmp_path, EXPERTS), "q4_0", TEXT, quiet)
    router = found.importance["blk.0.ffn_gate_inp.weight"]
    for name in (UP, UP.replace("up", "gate")):
        assert found.importance[name].shape == (EXPERTS, HIDDEN)
        assert np.allclose(found.importance[name], router, rtol=1e-3)
    assert found.unmet == (0, EXPERTS)
    assert found.importance[UP.replace("up", "down")].shape == (EXPERTS, WIDE)


def test_an_expert_that_meets_no_token_is_counted(tmp_path: Path) -> None:
    found = calibrate(expert_folder(tmp_path, 1, unmet=True), "q4f16_1", TEXT, quiet)
    assert found.unmet == (1, EXPERTS)
    costs = found.importance[UP]
    assert not np.allclose(costs[0], costs[1], rtol=1e-2)
    assert (costs[3] <= costs[:3].max(axis=0) * 1.01).all()
    assert (costs[3] >= costs[:3].min(axis=0) * 0.99).all()
    assert found.plain > 0


def test_each_expert_is_written_with_its_own(tmp_path: Path) -> None:
    files = expert_folder(tmp_path)
    costs = np.exp(np.random.default_rng(0).standard_normal((EXPERTS, HIDDEN))).astype(np.float32)
    at_load = QuantizedModel.of_files(files, "q4_0", {UP: costs}).tensors[UP]
    convert_weight(files, "q4f16_1", tmp_path / "out", quiet, importance=dict.fromkeys(BOTH, costs))
    written = MLCModel.open(tmp_path / "out").tensors[UP]
    for e in range(EXPERTS):
        (rows,) = expert_pieces(Rows(files.tensors[UP], Source(UP, (EXPERTS, WIDE, HIDDEN))), e)
        expected = quantize_weighted("Q4_0", rows, costs[e])
        assert np.array_equal(at_load.matrix(e).data, expected)
        assert np.array_equal(np.split(at_load.data, EXPERTS)[e], expected)
        one = written.matrix(e)
        values = dequantize_groups(quantize_groups(SCHEMES["q4f16_1"], rows, costs[e]))
        assert np.array_equal(dequantize(one.kind, one.data, one.shape), values)
