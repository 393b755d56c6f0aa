"""Imports TVM's functions for Python without what they need only at times: `importlib.metadata`,
and NumPy with the types that it lacks. Imported for that alone.

They look for NumPy once, when they are imported, for values of its types. TVM itself needs that, so
they are told when it is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec
from types import ModuleType

from mlc_llm.support.distributions import light_metadata

_OWN_TYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "float32", "float64",
)  # fmt: skip
_MORE_TYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn")
"""Those that `ml_dtypes` gives NumPy."""


@contextmanager
def _without(*names: str) -> Iterator[None]:
    """What is imported within it does not find these modules, which are not loaded yet."""
    sys.modules.update(dict.fromkeys(names))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]


class _BeforeTVM:
    """Tells `tvm_ffi` about NumPy when `tvm` is imported, not when it is only looked for."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "tvm":
            return None
        sys.meta_path.remove(self)
        try:
            found = find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if found is not None and isinstance(found.loader, SourceFileLoader):
            found.loader = _Telling(found.loader.name, found.loader.path)
        return found


class _Telling(SourceFileLoader):
    """As it is without this module, but for what happens before."""

    def exec_module(self, module: ModuleType) -> None:
        know_numpy()
        super().exec_module(module)


def know_numpy() -> None:
    """What `tvm_ffi` does when it finds NumPy."""
    import ml_dtypes
    import numpy
    from tvm_ffi import _convert, _dtype

    _convert.numpy = numpy
    names = _dtype.dtype._NUMPY_DTYPE_TO_STR
    names.update({numpy.dtype(name): name for name in _OWN_TYPES})
    for name in _MORE_TYPES:
        if hasattr(ml_dtypes, name):
            names[numpy.dtype(getattr(ml_dtypes, name))] = name


if not {"numpy", "tvm_ffi"} & {*sys.modules}:
    with light_metadata(), _without("numpy", "ml_dtypes"):
        import tvm_ffi
    sys.meta_path.insert(0, _BeforeTVM())
else:
    with light_metadata():
        import tvm_ffi  # noqa: F401
