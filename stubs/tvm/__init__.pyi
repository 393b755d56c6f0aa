"""The names of TVM that kernels use, with their types; TVM itself has none. Read by mypy alone.

Everything else of TVM stays untyped.
"""

from typing import Any

from tvm import tirx as tirx

class IRModule:
    functions: Any
    attrs: Any
    def __init__(self, functions: Any = ..., attrs: Any = ...) -> None: ...
    def __setitem__(self, name: Any, function: Any) -> None: ...

def __getattr__(name: str) -> Any: ...
