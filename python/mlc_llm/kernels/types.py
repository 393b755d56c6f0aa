"""Types of the parts of a kernel, as TVMScript hands them to Python while it parses the kernel.

mypy takes TVM's names from `stubs/`.
"""

from __future__ import annotations

from typing import TypeAlias

from tvm.tirx import Buffer, Expr

Index: TypeAlias = "Expr | int"
"""A number that is known while the kernel is parsed, or one that the kernel computes."""

__all__ = ["Buffer", "Expr", "Index"]
