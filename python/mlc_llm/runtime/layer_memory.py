"""What the layers of a model keep on a device: pages, states, and what tokens see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tvm_ffi

from mlc_llm.errors import InvalidField
from mlc_llm.library.metadata import KVInfo, Metadata, StateInfo
from mlc_llm.library.page_format import KVCacheDtype
from mlc_llm.runtime.limits import Window
from mlc_llm.support.host_array import host_array

if TYPE_CHECKING:
    from mlc_llm.backends.device import Device, DeviceTensor

MAX_INT32 = 2**31 - 1


def allocate_pages(info: KVInfo, counts: Sequence[int], device: Device) -> tvm_ffi.Array:
    """One zeroed tensor a layer of attention; counts: pages of each group."""
    tensors: dict[int, DeviceTensor] = {}
    for group, count in zip(info.groups, counts, strict=True):
        shape = (count, group.kv_heads, 2, info.block_elements(group))
        tensors |= {layer: device.zeros(shape, info.dtype) for layer in group.layers}
    return tvm_ffi.convert([tensor for _, tensor in sorted(tensors.items())])


def allocate_states(
    infos: Sequence[StateInfo], slots: int, bases: int, device: Device
) -> tvm_ffi.Array:
    """The zeroed tensors of the recurrent layers."""
    rows = [bases if one.by_chunk else slots for one in infos]
    shapes = [(n, *one.shape) for n, one in zip(rows, infos, strict=True)]
    return tvm_ffi.convert([device.zeros(shape, "float32") for shape in shapes])


def window_tensors(windows: Sequence[Window | None], device: Device) -> list[DeviceTensor]:
    """`forward`'s argument `windows`; without a window a token sees all before it."""
    seen = [(one.size, one.sinks) if one else (MAX_INT32, 0) for one in windows]
    return [device.upload(host_array("int32", pair)) for pair in seen]


def check_page_format(info: KVInfo, wanted: KVCacheDtype) -> None:
    """Raises InvalidField unless the pages of the library are of that kind."""
    if (info.dtype == "int8") != (wanted == "int8"):
        words = f"this library has KV pages of {info.dtype}; leave model_lib out"
        raise InvalidField("kv_cache_dtype", wanted, words)


def check_window(metadata: Metadata, window: Window | None) -> None:
    """Raises InvalidField unless the library was made with a window, or without, as this."""
    if metadata.has_window != (window is not None):
        has = "for" if metadata.has_window else "without"
        words = f"this library is one {has} sliding windows; leave model_lib out"
        raise InvalidField("sliding_window_size", window.size if window else -1, words)
