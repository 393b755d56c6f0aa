"""The architectures that can be compiled."""

from __future__ import annotations

from mlc_llm.models.llama import Llama

MODELS = {"llama": Llama}
"""Architecture name -> nn.Module class taking (ModelConfig, Isa, kv_dtype)."""
