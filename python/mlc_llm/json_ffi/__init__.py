"""An engine behind strings, numbers and functions, for any language that TVM's FFI reaches."""

from __future__ import annotations

from mlc_llm.json_ffi.engine import JSONFFIEngine

__all__ = ["JSONFFIEngine"]
