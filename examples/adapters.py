"""LoRA adapters: several in one engine, each request with its own."""

import json
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.sync_engine import SyncMLCEngine

HIDDEN, VALUES, RANK = 576, 192, 4
"""Sizes of the default model: what `v_proj` reads, and what it makes."""


def random_adapter(folder: Path, seed: int) -> str:
    """A folder as PEFT writes it. Yours come from a training."""
    rng = np.random.default_rng(seed)
    name = "base_model.model.model.layers.{}.self_attn.v_proj.lora_{}.weight"
    tensors = {}
    for layer in range(30):
        down, up = rng.normal(size=(RANK, HIDDEN)), rng.normal(size=(VALUES, RANK))
        tensors[name.format(layer, "A")] = (down / HIDDEN**0.5).astype(np.float32)
        tensors[name.format(layer, "B")] = (0.2 * up).astype(np.float32)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 4}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return str(folder)


with tempfile.TemporaryDirectory() as temporary:
    sources = {f"adapter-{i}": random_adapter(Path(temporary, str(i)), i) for i in range(2)}
    engine = SyncMLCEngine(model=None, engine_config={"adapters": sources, "max_adapters": 3})
    engine.load_adapter("later", random_adapter(Path(temporary, "2"), 2))

config = GenerationConfig(temperature=0, max_tokens=16)
for name in ("", *sources, "later"):
    (text,) = engine.chat("Where is Paris?", config, adapter=name).texts
    print(f"{name or 'the model itself'}: {text}")
engine.drop_adapter("later")
