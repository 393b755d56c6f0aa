"""An EAGLE head that drafts for the model: the same text, whatever the head has learnt."""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.sync_engine import SyncMLCEngine

HIDDEN, KV, INNER, VOCAB = 576, 192, 1536, 49152
"""Sizes of the default model: its vectors, keys, feed-forward network and tokens."""


def untrained_head(folder: Path) -> str:
    """A folder as the authors' code has it. Yours come from `benchmarks/train_eagle.py`."""
    shapes = {"q": (HIDDEN, HIDDEN), "k": (KV, HIDDEN), "v": (KV, HIDDEN), "o": (HIDDEN, HIDDEN)}
    names = {f"self_attn.{part}_proj": shape for part, shape in shapes.items()}
    names |= {"mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN)}
    names |= {"mlp.down_proj": (HIDDEN, INNER)}
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    for name, shape in names.items():
        tensors[f"layers.0.{name}.weight"] = np.zeros(shape, np.float16)
    tensors["layers.0.post_attention_layernorm.weight"] = np.ones(HIDDEN, np.float16)
    # It expects the vector that it was given: the model says the same token again.
    unit = np.eye(HIDDEN, dtype=np.float16)
    tensors["fc.weight"] = np.concatenate([0 * unit, unit], axis=1)
    save_file(tensors, folder / "model.safetensors")
    config = {
        "hidden_act": "silu", "hidden_size": HIDDEN, "intermediate_size": INNER,
        "num_attention_heads": 9, "num_key_value_heads": 3, "num_hidden_layers": 1,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "vocab_size": VOCAB,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


config = GenerationConfig(temperature=0, max_tokens=40)
plain, _ = SyncMLCEngine(model=None).generate("The names of the planets are", config)
with tempfile.TemporaryDirectory() as temporary:
    head = untrained_head(Path(temporary))
    settings = EngineConfig(speculative_mode="eagle", additional_models=[head])
    engine = SyncMLCEngine(model=None, engine_config=settings)
drafted, _ = engine.generate("The names of the planets are", config)
print(drafted[0][0])
print(f"same text: {plain == drafted}")
