"""MLC LLM: LLM serving on stock Apache TVM."""

from __future__ import annotations

from mlc_llm import without_torch

__version__ = "0.1.0"

without_torch.install()
