"""Packing loses nothing: what the kernels' bytes mean is, to the last bit, what the file says."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from format_floats import floats_of

from mlc_llm.backends.cpu.formats import BLOCK, format_of_kind, padded_rows, tensor_shape
from mlc_llm.backends.cpu.packing import pack, pack_floats
from mlc_llm.backends.cpu.packing import unpack as unpack_packed
from mlc_llm.loader.gguf_tensors import KINDS
from mlc_llm.quantization.block_format import Grouped
from mlc_llm.quantization.ggml_blocks import BLOCK_KINDS, dequantize, unpack

HALF_SCALES = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "TQ1_0", "TQ2_0"}
"""Those of most others are products, or no float16 to begin with."""
SPANS = {"Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"}
"""Their scales are whole numbers in units."""
SIZES = {kind: (block, size) for kind, block, size in KINDS.values()}
GGUF_KINDS = [kind for kind in BLOCK_KINDS if kind in SIZES]
"""Those of folders have tests of their own, `tests/models/test_folder_types.py`."""
SCALES_AT = {
    "Q4_1": (0, 2), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2),
    "Q5_K": (0, 2), "Q6_K": (208,), "TQ1_0": (52,), "TQ2_0": (64,), "MXFP4": (), "NVFP4": (),
    "IQ1_M": (),
}  # fmt: skip
"""Byte offsets of a block's float16 numbers; (0,) where not said."""
SMALLER = {"MXFP4": (0, 0x7F), "IQ1_M": (55, 0xBF)}
"""A byte of a block and the bits of it that keep the scale finite."""


def random_blocks(kind: str, rows: int, columns: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Any bytes are blocks; only the float16 numbers are made finite, of either sign."""
    rng = np.random.default_rng(seed)
    values, size = SIZES[kind]
    blocks = rng.integers(0, 256, (rows * columns // values, size), dtype=np.uint8)
    for at in SCALES_AT.get(kind, (0,)):
        scale = rng.standard_normal(len(blocks)).astype("<f2")
        scale[::7] = 0
        scale[::11] = 6e-8  # the smallest float16
        blocks[:, at : at + 2] = scale.view(np.uint8).reshape(-1, 2)
    byte, mask = SMALLER.get(kind, (0, 0xFF))
    blocks[:, byte] &= mask
    return blocks.reshape(-1)


def same_bits(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> bool:
    """Equal values, and zeros of the same sign."""
    return bool((a.view(np.uint32) == b.view(np.uint32)).all())


@pytest.mark.parametrize("rows", [1, 31, 32, 49])
@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("kind", GGUF_KINDS)
def test_packed_is_dequantised(kind: str, half: bool, rows: int) -> None:
    shape = (rows, 512)
    data = random_blocks(kind, *shape)
    fmt = format_of_kind(kind, half=half)
    packed = pack(unpack(kind, data, shape), fmt)
    assert same_bits(unpack_packed(packed), dequantize(kind, data, shape))
    given = (packed.tensor.shape, str(packed.tensor.dtype))
    assert given == tensor_shape(fmt, padded_rows(rows), shape[1])
    assert packed.tensor.flags.c_contiguous


@pytest.mark.parametrize("kind", GGUF_KINDS)
def test_scales_are_as_small_as_in_the_file(kind: str) -> None:
    wanted = "float16" if kind in HALF_SCALES else "int8" if kind in SPANS else "float32"
    assert format_of_kind(kind, half=True).scale_dtype == wanted
    assert format_of_kind(kind, half=False).scale_dtype == "float32"


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("kind", ["F16", "BF16", "F32"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 40), (32, 40), (49, 40), (33, 7)])
def test_floats_come_back(kind: str, rows: int, columns: int, half: bool) -> None:
    weights = floats_of(format_of_kind(kind, half=True), np.random.default_rng(0), rows, columns)
    packed = pack_floats(weights, format_of_kind(kind, half=half))
    assert same_bits(unpack_packed(packed), weights)
    given = (packed.tensor.shape, str(packed.tensor.dtype))
    assert given == tensor_shape(packed.format, padded_rows(rows), columns)


def test_padding_is_zero() -> None:
    """Rows that were not there must add nothing, whatever is multiplied with them."""
    data = random_blocks("Q4_1", 5, 64)
    fmt = format_of_kind("Q4_1", half=True)
    packed = pack(unpack("Q4_1", data, (5, 64)), fmt)
    assert packed.tensor.shape == (1, 2, fmt.stride)
    scales = np.ascontiguousarray(packed.tensor[..., fmt.words * BLOCK :]).view(np.float16)
    assert scales.shape == (1, 2, 2 * BLOCK)  # 32 scales, then 32 minima
    assert (scales.reshape(2, 2, BLOCK)[..., 5:] == 0).all()
    assert (scales.reshape(2, 2, BLOCK)[..., :5] != 0).any()


def test_scales_that_are_not_half_are_not_rounded() -> None:
    data = random_blocks("Q4_0", 1, 32)
    third = np.full((1, 1), 1 / 3, np.float32)
    taken = unpack("Q4_0", data, (1, 32))
    grouped = Grouped(taken.q, 4, 32, third, None, 8, half=False)
    with pytest.raises(AssertionError, match="float16"):
        pack(grouped, format_of_kind("Q4_0", half=True))
    exact = unpack_packed(pack(grouped, format_of_kind("Q4_0", half=False)))
    assert same_bits(exact, third * (taken.q.astype(np.float32) - np.float32(8)))
