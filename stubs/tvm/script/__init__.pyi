from typing import Any

from tvm.script import tirx as tirx

def __getattr__(name: str) -> Any: ...
