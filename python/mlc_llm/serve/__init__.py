"""Engines and what goes in and out of them. Engines load TVM, and pieces of prompts NumPy, so each
name is loaded when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlc_llm.serve import data
    from mlc_llm.serve.async_engine import AsyncMLCEngine
    from mlc_llm.serve.config import EngineConfig
    from mlc_llm.serve.core.radix_tree import PagedRadixTree
    from mlc_llm.serve.data import RequestStreamOutput
    from mlc_llm.serve.engine import MLCEngine
    from mlc_llm.serve.popen_server import PopenServer
    from mlc_llm.serve.request import Request

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

_HOMES = {
    "AsyncMLCEngine": "async_engine",
    "EngineConfig": "config",
    "MLCEngine": "engine",
    "PagedRadixTree": "core.radix_tree",
    "PopenServer": "popen_server",
    "Request": "request",
    "RequestStreamOutput": "data",
}


def __getattr__(name: str) -> Any:
    if name == "data":
        return import_module(f"{__name__}.data")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
