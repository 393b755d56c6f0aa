"""MLC LLM: LLM serving on stock Apache TVM."""

from __future__ import annotations

__version__ = "0.1.0"
