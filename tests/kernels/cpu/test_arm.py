"""Kernels for 64-bit Arm, compiled on any machine. What they compute is tested with the other
kernels: on such a machine, or emulated."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from arm_tools import ARM, cross_compile, instructions, is_arm_object

from mlc_llm.backends.cpu.formats import format_of_kind
from mlc_llm.backends.cpu.isa import DOTPROD, I8MM, Isa
from mlc_llm.kernels.cpu.activation import quantize
from mlc_llm.kernels.cpu.expert_matmul import ExpertShape, expert_matmul
from mlc_llm.kernels.cpu.matmul import matmul

PRODUCTS = {I8MM: "usdot", DOTPROD: "sdot"}
GROUPS, VECTORS, PLANES = 4, 8, 2


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "Q6_K"])
@pytest.mark.parametrize("isa", ARM, ids=lambda isa: isa.name)
def test_products_of_bytes(isa: Isa, kind: str, tmp_path: Path) -> None:
    fmt = format_of_kind(kind, half=True)
    k = max(GROUPS, fmt.span) * fmt.group
    module = cross_compile(matmul(32, k, fmt, isa, accumulate=False), isa)
    found = instructions(module)
    products = {name: found[name] for name in ("usdot", "sdot", "udot", "smull", "smlal")}
    # Four products a lane and instruction.
    expected = VECTORS * PLANES * fmt.group // 4
    assert products == {**dict.fromkeys(products, 0), PRODUCTS[isa]: expected}
    module.write_to_file(str(tmp_path / "kernel.o"))
    assert is_arm_object(tmp_path / "kernel.o")


@pytest.mark.parametrize("isa", ARM, ids=lambda isa: isa.name)
def test_products_of_experts(isa: Isa) -> None:
    fmt = format_of_kind("Q4_0", half=True)
    kernel = expert_matmul(ExpertShape(4, 32, GROUPS * fmt.group, fmt), isa)
    assert instructions(cross_compile(kernel, isa))[PRODUCTS[isa]] >= VECTORS * PLANES


@pytest.mark.parametrize("isa", ARM, ids=lambda isa: isa.name)
def test_float16_scales_are_converted_by_the_processor(isa: Isa) -> None:
    fmt = format_of_kind("Q4_0", half=True)
    found = instructions(cross_compile(matmul(32, 128, fmt, isa, accumulate=False), isa))
    # Of four scales at once, for each vector of rows.
    assert found["fcvtl"] == VECTORS


def test_activations_are_rounded_in_vectors() -> None:
    module = cross_compile(quantize("plain", 128, 32, I8MM), I8MM)
    assert instructions(module)["frintx"] > 0
    assert "rint" not in re.sub("frintx", "", module.inspect_source("asm"))
