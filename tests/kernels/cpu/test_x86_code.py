"""What products become on x86 processors, compiled on any machine."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import tvm

from mlc_llm.backends.cpu.formats import format_of_kind
from mlc_llm.backends.cpu.isa import AVX2, AVX_VNNI, VNNI, Isa
from mlc_llm.backends.cpu.target import target_for
from mlc_llm.kernels.cpu.matmul import matmul

KINDS = ("Q4_0", "Q8_0", "Q6_K", "Q4_K", "Q5_0")
ON_STACK = {"Q4_0": 1, "Q6_K": 2, "Q4_K": 9, "Q5_0": 3}
"""Instructions of a group's loop that move units, weights or a sum, in products of few rows: sums
fill the registers."""
VECTOR_ON_STACK = re.compile(r"^\tv\w+\t.*%[yz]mm\d+.*\(%[re]sp\)", re.MULTILINE)


def assembly(isa: Isa, kind: str) -> str:
    fmt = format_of_kind(kind, half=True)
    func = matmul(32, max(4, fmt.span) * fmt.group, fmt, isa, accumulate=False)
    func = func.with_attr("global_symbol", "k")
    module = tvm.tirx.build(func, target=target_for(isa, "x86_64-linux-gnu"))
    return str(module.inspect_source("asm"))


def loops(code: str) -> list[str]:
    """The code of loops over groups, for row blocks of several rows. That of four rows which unpack
    their weights is the longest one, and the last."""
    return sorted((one for one in parts(code) if products(one) >= 64), key=len)


def parts(code: str) -> list[str]:
    """The code between jumps and their targets."""
    return re.split(r"^\.LBB\w+:|^\tj\w+\t.*$", code, flags=re.MULTILINE)


def products(code: str) -> int:
    return len(re.findall("vpdpbusd|vpmaddwd", code))


def instructions(code: str) -> Counter[str]:
    return Counter(re.findall(r"^\t(v\w+)\b", code, re.MULTILINE))


@pytest.mark.one_of(4)
@pytest.mark.parametrize("kind", KINDS)
def test_bytes_are_multiplied_four_at_once_and_sums_stay_in_registers(kind: str) -> None:
    code = assembly(VNNI, kind)
    found = instructions(code)
    assert found["vpdpbusd"] >= 80 and found["vpmaddwd"] == 0
    *others, few = (len(VECTOR_ON_STACK.findall(loop)) for loop in loops(code))
    assert len(others) >= 1 and not any(others) and few <= ON_STACK.get(kind, 0)


@pytest.mark.one_of(4)
@pytest.mark.parametrize("kind", KINDS)
def test_pairs_are_multiplied_where_there_is_nothing_better(kind: str) -> None:
    found = instructions(assembly(AVX2, kind))
    assert found["vpmaddwd"] >= 80 and found["vpdpbusd"] == 0
    assert found["vcvtph2ps"] > 0


@pytest.mark.one_of(4)
@pytest.mark.parametrize("kind", KINDS)
def test_bytes_are_multiplied_without_avx512(kind: str) -> None:
    code = assembly(AVX_VNNI, kind)
    assert products(code) >= 80 and "vpmaddwd" not in code
    assert "%zmm" not in code and "%xmm16" not in code and "%ymm16" not in code


@pytest.mark.one_of(2)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "Q6_K"])
def test_unpacked_pairs_go_word_by_word(kind: str) -> None:
    """With all words of a group at once, LLVM computed one sum after the other. (So it does with
    groups of 16: it unrolls a loop of eight words.)"""
    *_, loop = sorted((one for one in parts(assembly(AVX2, kind)) if products(one) == 8), key=len)
    assert instructions(loop)["vpaddd"] == 8 and not VECTOR_ON_STACK.findall(loop)


@pytest.mark.parametrize("isa", [AVX2, AVX_VNNI, VNNI], ids=lambda isa: isa.name)
def test_vectors_on_the_stack_lie_in_one_cache_line(isa: Isa) -> None:
    """Otherwise a product of many rows takes up to twice as long in most processes."""
    code = assembly(isa, "Q4_0")
    functions = re.split(r"^\w+:", code, flags=re.MULTILINE)
    assert all("andq\t$-64, %rsp" in one for one in functions if loops(one))
