"""MLC LLM: LLM serving on stock Apache TVM."""

from __future__ import annotations

from mlc_llm import without_torch

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` itself would take longer than all the rest
    from typing import Any

    from mlc_llm.serve import AsyncMLCEngine, MLCEngine

__all__ = ["AsyncMLCEngine", "MLCEngine", "__version__"]
__version__ = "0.1.0"

without_torch.install()


def __getattr__(name: str) -> Any:
    """The engines, loaded when one is asked for."""
    if name not in ("AsyncMLCEngine", "MLCEngine"):
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from mlc_llm import serve

    return getattr(serve, name)
