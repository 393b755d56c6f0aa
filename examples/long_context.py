"""A text longer than the context of the model's file. Its rotary embedding is scaled (YaRN), and
keys and values take 8 bits. A tiny random model stands for yours; a real one must bear scaling."""

import tempfile
from pathlib import Path

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.sync_engine import SyncMLCEngine
from mlc_llm.testing.tiny_model import TinyShape, write_tiny_model

CONTEXT = 512

scaled = EngineConfig(rope_scaling={"rope_type": "yarn", "factor": 4.0}, kv_cache_dtype="int8")
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "model.gguf"
    write_tiny_model(path, shape=TinyShape(context=CONTEXT))
    engine = SyncMLCEngine(str(path), engine_config=scaled)

print(f"the file's context: {CONTEXT} tokens, with the scaling {engine.bundle.context_window}")
answer = engine.generate(
    "All work and no play. " * 120, GenerationConfig(temperature=0, max_tokens=16)
)
print(f"a prompt of {answer.usages[0].prompt_tokens} tokens, answer {answer.texts[0][0]!r}")
