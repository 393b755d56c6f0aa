"""A model whose layers keep a state of fixed size in the place of keys and values. A tiny random
Mamba 2 stands for yours: name the file or folder of a Mamba 2, RWKV-7, LFM2, Granite 4, Falcon-H1,
Qwen3.5 or Qwen3-Next."""

import tempfile
from pathlib import Path

import numpy as np

from mlc_llm.models.registry import read_config
from mlc_llm.models.weight_plan import wanted_tensors
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.sync_engine import SyncMLCEngine
from mlc_llm.testing.byte_tokenizer import VOCABULARY_SIZE, byte_tokenizer_metadata
from mlc_llm.testing.gguf_writer import TensorData, write_gguf

SIZES = {
    "block_count": 2, "context_length": 2048, "embedding_length": 64, "feed_forward_length": 0,
    "attention.head_count": 0, "attention.layer_norm_rms_epsilon": 1e-5, "ssm.conv_kernel": 4,
    "ssm.state_size": 16, "ssm.group_count": 1, "ssm.inner_size": 128, "ssm.time_step_rank": 4,
}  # fmt: skip
CONFIG = {
    "architectures": ["Mamba2ForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64,
    "vocab_size": VOCABULARY_SIZE, "tie_word_embeddings": True, "num_heads": 4, "head_dim": 32,
    "state_size": 16, "n_groups": 1, "conv_kernel": 4, "expand": 2,
}  # fmt: skip


def random_mamba(path: Path) -> str:
    """A file with random weights; `ssm_a` is how fast a state fades, and below 0."""
    rng, tensors = np.random.default_rng(1), {}
    for name, shape in wanted_tensors(read_config(CONFIG)).items():
        values = rng.standard_normal(shape) * (0.1 if len(shape) == 1 else shape[-1] ** -0.5)
        values = -np.exp(values) if name.endswith("ssm_a") else values + ("norm" in name)
        tensors[name] = TensorData.quantized(values.astype(np.float32), "F32")
    metadata = {f"mamba2.{key}": value for key, value in SIZES.items()}
    general = {"general.architecture": "mamba2", "general.name": "random"}
    write_gguf(path, general | metadata | byte_tokenizer_metadata(), tensors)
    return str(path)


with tempfile.TemporaryDirectory() as folder:
    engine = SyncMLCEngine(random_mamba(Path(folder) / "model.gguf"))

config = GenerationConfig(temperature=0.8, seed=1, max_tokens=8, n=2)
rules = "Answer in one word. " * 20
# The second prompt parts from the first one: the state at that place is kept, for the third.
for question in ("1 + 1", "2 + 2", "3 + 3"):
    (answers,), _ = engine.generate(rules + question, config)
    print(f"{question} two answers from one state: {answers}")

found = engine.metrics()["prefix_cache"]
print(f"{found['hits_sum']} of {found['lookups_sum']} prompts began with a state that was kept")
