"""Imports TVM's functions for Python without `importlib.metadata`. Imported for that alone."""

from __future__ import annotations

from mlc_llm.support.distributions import light_metadata

with light_metadata():
    import tvm_ffi  # noqa: F401
