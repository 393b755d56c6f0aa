"""The architectures that this version runs, where programs written for MLC LLM look for them."""

from __future__ import annotations

from mlc_llm.models.registry import ARCHITECTURES as MODELS

__all__ = ["MODELS"]
