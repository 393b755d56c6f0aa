"""Which matrices a GPU reads, and how large they are."""

from __future__ import annotations

import pytest

from mlc_llm.backends.cpu import formats as cpu
from mlc_llm.backends.cuda.formats import _KINDS, BLOCK, GROUP, format_of_kind, tensor_shape
from mlc_llm.errors import UnsupportedModel


def test_every_type_that_the_cpu_reads() -> None:
    assert set(_KINDS) == set(cpu._KINDS)


@pytest.mark.parametrize(
    ("kind", "bits"),
    [("Q4_0", 4.5), ("Q4_K", 4.625), ("Q5_0", 5.5), ("Q6_K", 6.5625), ("F16", 16.5)],
)
def test_bits_of_a_weight(kind: str, bits: float) -> None:
    (*blocks, words), _ = tensor_shape(format_of_kind(kind), 64, 512)
    assert blocks[0] * blocks[1] * words * 32 == bits * 64 * 512


def test_another_type_is_named() -> None:
    with pytest.raises(UnsupportedModel, match=r"^tensor type IQ9_X on a GPU; supported: Q4_0, "):
        format_of_kind("IQ9_X")


def test_names_differ_where_formats_do() -> None:
    formats = set(_KINDS.values())
    assert len({one.name for one in formats}) == len(formats)
    assert BLOCK == GROUP == 32
