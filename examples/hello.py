"""Continue a text with the default model."""

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.sync_engine import SyncMLCEngine

engine = SyncMLCEngine(model=None)  # the default model; or a .gguf file
texts, _ = engine.generate("The capital of France is", GenerationConfig(max_tokens=16))
print(texts[0][0])
