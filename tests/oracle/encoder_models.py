"""Random small encoders of Transformers, one for each seed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from safetensors.torch import save_file

from mlc_llm.testing.byte_tokenizer import VOCABULARY_SIZE

VOCABULARY, CONTEXT, PADDING = 300, 128, 1
HEAD_DIMS = (32, 64, 80)
"""By seed."""
LENGTHS = (1, 7, 16, 33, 128)
PAIRS = "ForSequenceClassification"
_FAMILIES = ("XLMRoberta", "Roberta", "NomicBert", "ModernBert", "Gemma3Text", "Bert")
"""Beginnings of the names of classes."""
_FIRST_NAMES = {
    "self_attn.o_proj": "attn.out_proj", "mlp.up_proj": "mlp.fc11", "mlp.gate_proj": "mlp.fc12",
    "mlp.down_proj": "mlp.fc2", "post_attention_layernorm": "norm1",
    "post_mlp_layernorm": "norm2",
}  # fmt: skip
Array = npt.NDArray[np.float64]


def texts_of(seed: int) -> list[list[int]]:
    """Random token ids, without those of padding: a RoBERTa counts no positions for them."""
    rng = np.random.default_rng(seed)
    return [rng.integers(PADDING + 1, VOCABULARY, count).tolist() for count in LENGTHS]


def random_encoder(config_class: str, seed: int) -> Any:
    """A model of this class of Transformers. All weights, biases and norms are random."""
    family = next(one for one in _FAMILIES if config_class.startswith(one))
    heads, is_roberta = 2, "Roberta" in family
    config = getattr(transformers, f"{family}Config")(**{
        "vocab_size": VOCABULARY, "hidden_size": heads * HEAD_DIMS[seed], "num_hidden_layers": 2,
        "num_attention_heads": heads, "intermediate_size": 96 + 32 * seed,
        "max_position_embeddings": CONTEXT + 2 * is_roberta,
        "type_vocab_size": 1 if is_roberta else 2, "pad_token_id": PADDING if is_roberta else 0,
        "num_labels": 1, "layer_norm_eps": 1e-5, "attn_implementation": "eager",
        **_own_fields(family, seed),
    })  # fmt: skip
    torch.manual_seed(seed)
    model = getattr(transformers, config_class)(config)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            scale = 0.1 if "norm" in name.lower() else 0.3
            weights.add_(torch.randn_like(weights) * scale / max(weights.shape) ** 0.25)
    return model.eval()


def _own_fields(family: str, seed: int) -> dict[str, Any]:
    """Of models that have windows: shorter and longer than a page, and longer than texts."""
    window = (6, 40, 512)[seed]
    if family == "ModernBert":
        more = {"local_attention": window, "classifier_pooling": ("cls", "mean", "mean")[seed]}
        special = {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
        return {
            **special,
            **more,
            "num_hidden_layers": 4,
            "classifier_bias": seed == 1,
            "decoder_bias": False,
        }
    if family == "Gemma3Text":
        return {
            "num_hidden_layers": 6, "num_key_value_heads": 1, "head_dim": HEAD_DIMS[seed],
            "query_pre_attn_scalar": HEAD_DIMS[seed], "sliding_window": window,
            "use_bidirectional_attention": True,
        }  # fmt: skip
    return {}


def random_decoder(config_class: str, seed: int) -> Any:
    """The layers of a decoder of this class alone, with the tokens of the byte tokenizer."""
    family = config_class.removesuffix("Model")
    config = getattr(transformers, f"{family}Config")(
        vocab_size=VOCABULARY_SIZE, hidden_size=128, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=HEAD_DIMS[seed],
        max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        tie_word_embeddings=False, attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(seed)
    model = getattr(transformers, config_class)(config)
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(torch.randn_like(weights) * 0.3 / max(weights.shape) ** 0.25)
    return model.eval()


def exact_hidden(model: Any, ids: Sequence[int]) -> Array:
    """[tokens, hidden] behind the last layer."""
    with torch.no_grad():
        found = model.base_model(torch.tensor([list(ids)])).last_hidden_state[0]
    return np.asarray(found.double().numpy(), np.float64)


def exact_score(model: Any, ids: Sequence[int], second_at: int) -> float:
    """Of a pair; models with one type of tokens are told nothing of the second text."""
    count = getattr(model.config, "type_vocab_size", 0)
    types = [int(i >= second_at and count > 1) for i in range(len(ids))]
    more = {"token_type_ids": torch.tensor([types])} if count else {}
    with torch.no_grad():
        found = model(torch.tensor([list(ids)]), **more).logits
    return float(found[0, 0])


def cosine(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    one, other = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


class FirstNomic:
    """A NomicBertModel that saves itself as the folders with code of their own are: llama.cpp's
    converter knows no other names."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def save_pretrained(self, folder: Path) -> None:
        config = self.model.config
        said = {
            "architectures": ["NomicBertModel"], "n_embd": config.hidden_size,
            "n_layer": config.num_hidden_layers, "n_head": config.num_attention_heads,
            "n_inner": config.intermediate_size, "vocab_size": config.vocab_size,
            "n_positions": 8192, "max_trained_positions": 2048, "type_vocab_size": 2,
            "layer_norm_epsilon": config.layer_norm_eps, "activation_function": "swiglu",
            "rotary_emb_base": config.rope_parameters["rope_theta"], "rotary_emb_fraction": 1.0,
            "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "prenorm": False,
            "causal": False, "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False,
        }  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(said), encoding="utf-8")
        save_file(self._tensors(), str(folder / "model.safetensors"))

    def _tensors(self) -> dict[str, Any]:
        found, given = {}, self.model.state_dict()
        for name, tensor in given.items():
            if name.startswith("layers.") and "q_proj" in name:
                parts = [given[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
                layer = name.split(".")[1]
                found[f"encoder.layers.{layer}.attn.Wqkv.weight"] = torch.cat(parts)
            elif "k_proj" not in name and "v_proj" not in name:
                found[_first_name(name)] = tensor.contiguous()
        return found


def _first_name(name: str) -> str:
    if not name.startswith("layers."):
        return name.replace("embeddings.LayerNorm", "emb_ln")
    _, layer, rest = name.split(".", 2)
    part, _, end = rest.rpartition(".")
    return f"encoder.layers.{layer}.{_FIRST_NAMES[part]}.{end}"
