"""Engines and what goes in and out of them. The contracts are here; engines load TVM, so each is
imported from its own file."""

from __future__ import annotations

from mlc_llm.serve import data
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.radix_tree import PagedRadixTree
from mlc_llm.serve.data import RequestStreamOutput
from mlc_llm.serve.request import Request

__all__ = ["EngineConfig", "PagedRadixTree", "Request", "RequestStreamOutput", "data"]
