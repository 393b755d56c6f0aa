"""Blocks of tensor types as ggml's own C functions write and read them."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from llama_cpp_side import LIBRARIES

from mlc_llm.loader.gguf_tensors import KINDS

Floats = npt.NDArray[np.float32]
NUMBERS = {kind: number for number, (kind, _, _) in KINDS.items()}
"""Tensor type -> its number in files."""
SIZES = {kind: (values, size) for kind, values, size in KINDS.values()}


class Traits(ctypes.Structure):
    """The start of `struct ggml_type_traits` (ggml.h)."""

    _fields_ = (
        ("type_name", ctypes.c_char_p), ("block_values", ctypes.c_int64),
        ("interleaved", ctypes.c_int64), ("block_bytes", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
    )  # fmt: skip


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(Path(os.environ[LIBRARIES]) / "libggml-base.so"))
    library.ggml_get_type_traits.restype = ctypes.POINTER(Traits)
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    context = library.ggml_init  # it fills the table of float16
    context.argtypes, context.restype = (Memory,), ctypes.c_void_p
    assert context(Memory(1 << 16, None, True))
    return library


class Memory(ctypes.Structure):
    """`struct ggml_init_params`."""

    _fields_ = (
        ("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)
    )  # fmt: skip


def traits(kind: str) -> Traits:
    found: Traits = _library().ggml_get_type_traits(NUMBERS[kind]).contents
    return found


def quantized(values: Floats, kind: str) -> bytes:
    """A matrix in blocks of a type; all columns are of one importance."""
    rows, columns = values.shape
    block_values, block_bytes = SIZES[kind]
    made = np.zeros((rows, columns // block_values * block_bytes), np.uint8)
    values, importance = np.ascontiguousarray(values), np.ones(columns, np.float32)
    size = _library().ggml_quantize_chunk(
        NUMBERS[kind], _address(values), _address(made), ctypes.c_int64(0), ctypes.c_int64(rows),
        ctypes.c_int64(columns), _address(importance),
    )  # fmt: skip
    assert size == made.nbytes, (kind, size, made.nbytes)
    return made.tobytes()


def dequantized(data: bytes, kind: str, shape: tuple[int, ...]) -> Floats:
    """What ggml reads."""
    if kind == "F32":
        return np.frombuffer(data, np.float32).reshape(shape)
    blocks, values = np.frombuffer(data, np.uint8), np.zeros(shape, np.float32)
    traits(kind).to_float(_address(blocks), _address(values), values.size)
    return values


def _address(numbers: npt.NDArray[np.generic]) -> ctypes.c_void_p:
    return ctypes.c_void_p(numbers.ctypes.data)
