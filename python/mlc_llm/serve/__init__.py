"""Engines and what goes in and out of them. Engines load TVM, so each is loaded when it is asked
for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlc_llm.serve import data
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.radix_tree import PagedRadixTree
from mlc_llm.serve.data import RequestStreamOutput
from mlc_llm.serve.request import Request

if TYPE_CHECKING:
    from mlc_llm.serve.async_engine import AsyncMLCEngine
    from mlc_llm.serve.engine import MLCEngine
    from mlc_llm.serve.popen_server import PopenServer

__all__ = [
    "AsyncMLCEngine",
    "EngineConfig",
    "MLCEngine",
    "PagedRadixTree",
    "PopenServer",
    "Request",
    "RequestStreamOutput",
    "data",
]


def __getattr__(name: str) -> Any:
    if name == "MLCEngine":
        from mlc_llm.serve.engine import MLCEngine

        return MLCEngine
    if name == "AsyncMLCEngine":
        from mlc_llm.serve.async_engine import AsyncMLCEngine

        return AsyncMLCEngine
    if name == "PopenServer":
        from mlc_llm.serve.popen_server import PopenServer

        return PopenServer
    raise AttributeError(f"module {__name__} has no attribute {name}")
