"""Models with state spaces against Transformers: as its folder, and as llama.cpp's converter writes
it. The layers of a folder have the names of published ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from converted import converted, needs_converter

from mlc_llm.testing.byte_tokenizer import VOCABULARY_SIZE

torch = pytest.importorskip("torch", reason="the oracle extra is not installed")
transformers = pytest.importorskip("transformers", reason="the oracle extra is not installed")

from small_models import VARIED, varied  # noqa: E402

pytestmark = [pytest.mark.oracle, pytest.mark.slow]
PROMPT, ANSWER = 16, 64
WORST = {"reference": 1e-4, None: 3e-3}
"""Of the largest logit, by kernels; None being this machine's, which keep keys in float16."""
SAME = 1e-5
"""The same between the two file formats: powers of e are those of two libraries, Falcon-H1's
weights are multiplied in another order, and Qwen3.5's heads are added in another order."""
LAYERS = (
    ("linear_attention", "full_attention", "linear_attention"),
    ("linear_attention", "linear_attention", "full_attention", "full_attention"),
    ("full_attention", "linear_attention"),
)
"""By seed."""
GROUPS, STATES = (1, 2, 1), (16, 32, 128)
PUBLISHED = {"linear_attention": "mamba", "full_attention": "attention"}


KINDS = (
    "dense", "experts", "falcon", "falcon with a norm", "mamba 2", "qwen 3.5", "qwen 3.5 moe",
    "qwen next",
)  # fmt: skip


def made(kind: str, seed: int) -> Any:
    """A Granite 4, dense or with experts, a Falcon-H1, a Mamba 2, a Qwen3.5, with
    experts or without, or a Qwen3-Next."""
    makers = {"falcon": _falcon, "mamba": _mamba, "qwen": _qwen}
    config = makers.get(kind.split(maxsplit=1)[0], _granite)(kind, seed)
    torch.manual_seed(seed + (7 if kind == "falcon" else 0))  # texts that vary
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            scale = 0.1 if "norm" in name else 0.5 if weights.ndim == 1 else 0.3
            weights.add_(torch.randn_like(weights) * scale / max(weights.shape) ** 0.25)
            if name.endswith("dt_bias"):
                weights.copy_(torch.empty_like(weights).uniform_(-5, 0.5))
    return varied(model).eval()


def _falcon(kind: str, seed: int) -> Any:
    return transformers.FalconH1Config(
        vocab_size=VOCABULARY_SIZE, hidden_size=64 * (1 + seed), intermediate_size=96,
        num_hidden_layers=2 + seed % 2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, max_position_embeddings=256, tie_word_embeddings=False, rms_norm_eps=1e-5,
        mamba_d_ssm=32 * 4 * (1 + seed), mamba_n_heads=4 * (1 + seed), mamba_d_head=32,
        mamba_d_state=STATES[seed], mamba_n_groups=GROUPS[seed], mamba_d_conv=4 - seed % 2,
        mamba_rms_norm=kind != "falcon", mamba_norm_before_gate=False,
        lm_head_multiplier=0.5, embedding_multiplier=0.31, mlp_multipliers=[1.88, 1.44],
        key_multiplier=0.39, attention_in_multiplier=1.3, attention_out_multiplier=2.94,
        ssm_multipliers=[0.35, 0.25, 0.18, 0.5, 0.31], ssm_in_multiplier=1.25,
        ssm_out_multiplier=2.4, rope_parameters={"rope_type": "default", "rope_theta": 1e5},
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip


def _mamba(kind: str, seed: int) -> Any:
    return transformers.Mamba2Config(
        vocab_size=VOCABULARY_SIZE, hidden_size=64 * (1 + seed), num_hidden_layers=2 + seed,
        num_heads=4 * (1 + seed), head_dim=32, state_size=STATES[seed], n_groups=GROUPS[seed],
        conv_kernel=4 - seed % 2, tie_word_embeddings=bool(seed % 2), layer_norm_epsilon=1e-4,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip


def _qwen(kind: str, seed: int) -> Any:
    layers = [*LAYERS[seed], "linear_attention"]
    rope = {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5}
    classes = {
        "qwen 3.5": "Qwen3_5TextConfig", "qwen next": "Qwen3NextConfig",
        "qwen 3.5 moe": "Qwen3_5MoeTextConfig",
    }  # fmt: skip
    experts = {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 64,
    }  # fmt: skip
    return getattr(transformers, classes[kind])(
        **({} if kind == "qwen 3.5" else experts),
        **({} if "moe" in kind else {"intermediate_size": 96}),
        vocab_size=VOCABULARY_SIZE, hidden_size=64 * (1 + seed),
        num_hidden_layers=len(layers), layer_types=layers, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=256, rms_norm_eps=1e-6,
        tie_word_embeddings=bool(seed % 2), linear_num_key_heads=2, linear_key_head_dim=32,
        linear_num_value_heads=2 * (1 + seed), linear_value_head_dim=32,
        linear_conv_kernel_dim=4 - seed % 2, rope_parameters=rope,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip


def _granite(kind: str, seed: int) -> Any:
    """llama.cpp needs one size of both networks if it is dense."""
    hidden, is_dense = 64 * (1 + seed), kind == "dense"
    return transformers.GraniteMoeHybridConfig(
        vocab_size=VOCABULARY_SIZE, hidden_size=hidden, intermediate_size=96 if is_dense else 64,
        shared_intermediate_size=96, num_hidden_layers=len(LAYERS[seed]), num_attention_heads=4,
        num_key_value_heads=2, layer_types=list(LAYERS[seed]), max_position_embeddings=256,
        num_local_experts=0 if is_dense else 4, num_experts_per_tok=0 if is_dense else 2,
        tie_word_embeddings=bool(seed % 2), mamba_n_heads=4 * (1 + seed), mamba_d_head=32,
        mamba_d_state=STATES[seed], mamba_n_groups=GROUPS[seed], mamba_d_conv=4 - seed % 2,
        attention_multiplier=0.25, embedding_multiplier=6.0, logits_scaling=4.0,
        residual_multiplier=0.5, rms_norm_eps=1e-5, position_embedding_type="nope",
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip


class Published:
    """The folder of a model as it is published."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def save_pretrained(self, folder: Path) -> None:
        transformers.PreTrainedModel.save_pretrained(self._model, folder)
        path = folder / "config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        if config["model_type"] == "granitemoehybrid":
            config["layer_types"] = [PUBLISHED.get(one, one) for one in config["layer_types"]]
        path.write_text(json.dumps(config), encoding="utf-8")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernels", WORST)
def test_folder_equals_transformers(
    tmp_path: Path, kind: str, seed: int, kernels: str | None
) -> None:
    from architecture_tools import relative_error, runner_of_folder

    model = made(kind, seed)
    model.save_pretrained(tmp_path)
    tokens = np.random.default_rng(seed).integers(0, 256, PROMPT).tolist()
    with torch.no_grad():
        for _ in range(ANSWER):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
        exact = model(torch.tensor([tokens])).logits[0].double().numpy()
    assert len(set(tokens[PROMPT:])) >= VARIED
    (tmp_path / "out").mkdir()
    runner = runner_of_folder(tmp_path, tmp_path / "out", kernels)
    whole = runner.logits(tokens)
    error = relative_error(whole, exact)
    print(f"{kind} {seed} {kernels}: relative error {error:.1e}")
    assert error <= WORST[kernels]
    for chunk in (1, 7, 64):
        assert (runner.logits(tokens, chunk=chunk) == whole).all(), chunk
    if kernels == "reference":
        answer = whole[PROMPT - 1 : -1].argmax(axis=1).tolist()
        assert answer == tokens[PROMPT:], "another greedy text"


@needs_converter
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_gguf_equals_the_folder(tmp_path: Path, kind: str, seed: int) -> None:
    from architecture_tools import relative_error, runner_of, runner_of_folder

    path = converted(Published(made(kind, seed)), tmp_path)
    tokens = np.random.default_rng(seed).integers(0, 256, PROMPT + ANSWER).tolist()
    for part in ("of-file", "of-folder"):
        (tmp_path / part).mkdir()
    of_file = runner_of(path, tmp_path / "of-file", "reference").logits(tokens)
    of_folder = runner_of_folder(tmp_path, tmp_path / "of-folder", "reference").logits(tokens)
    assert relative_error(of_file, of_folder) <= SAME
