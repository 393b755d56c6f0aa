"""Which kernels a machine gets, and what they are compiled for."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import tvm
from kept_libraries import build_kept
from tiny_models import TinyModels
from tvm.target import codegen

from mlc_llm.backends.cpu import amx, target
from mlc_llm.backends.cpu.backend import CpuBackend
from mlc_llm.backends.cpu.codegen import BYTECODE_FILE
from mlc_llm.backends.cpu.isa import (
    AMX,
    AVX2,
    AVX_VNNI,
    DOTPROD,
    I8MM,
    ISAS,
    PORTABLE,
    VNNI,
    VNNI_BF16,
    Isa,
)
from mlc_llm.backends.cpu.target import choose, fastest, missing_features, processor, target_for
from mlc_llm.errors import InvalidField
from mlc_llm.library.metadata import METADATA_FILE, Metadata
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.models.registry import read_gguf

ARM_LINUX = "aarch64-linux-gnu"
HASWELL = "sse2 avx avx2 fma f16c bmi1 bmi2"
CASCADELAKE = HASWELL + " avx512f avx512bw avx512vl avx512dq avx512cd avx512_vnni"
SAPPHIRE_RAPIDS = CASCADELAKE + " amx_bf16 amx_tile amx_int8"
CORTEX_A72 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"
NEOVERSE_N1 = CORTEX_A72 + " atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp ssbs"
NEOVERSE_V1 = NEOVERSE_N1 + " sve svei8mm i8mm bf16"
KERNELS = (
    "attention", "rope_append", "copy_pages_rows", "embedding", "take_rows", "norm_64",
    "matmul_320x64_f16", "matmul_64x64_q4g32o8s16_plain_add", "matmul_96x64_q4g32ms16",
    "matmul_64x96_q8g32o128s16_silu_add", "edit_rows", "sample_rows", "top_rows",
)  # fmt: skip
"""In a library with float16, Q4_0, Q4_1 and Q8_0 weights."""

Pretend = Callable[[str, str | None], None]


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Pretend:
    """Makes this a machine of another family with these flags (None: a system that tells none)."""

    def become(family: str, flags: str | None) -> None:
        known = None if flags is None else frozenset(flags.split())
        monkeypatch.delenv(target.KERNELS_VARIABLE, raising=False)
        monkeypatch.setattr(platform, "machine", lambda: family)
        monkeypatch.setattr(target, "cpu_flags", lambda: known)
        monkeypatch.setattr(amx, "permitted", lambda: True)

    return become


@pytest.mark.parametrize(
    ("family", "flags", "isa"),
    [
        ("x86_64", SAPPHIRE_RAPIDS, AMX),
        ("x86_64", CASCADELAKE + " amx_tile amx_bf16", VNNI),
        ("x86_64", CASCADELAKE + " avx512_bf16", VNNI_BF16),
        ("x86_64", CASCADELAKE, VNNI),
        ("x86_64", HASWELL + " avx_vnni", AVX_VNNI),
        ("AMD64", HASWELL, AVX2),
        ("x86_64", "sse2 avx", PORTABLE),
        ("aarch64", NEOVERSE_V1, I8MM),
        ("aarch64", NEOVERSE_N1, DOTPROD),
        ("aarch64", CORTEX_A72, PORTABLE),
        ("riscv64", "", PORTABLE),
        # A container for Arm on an x86 machine shows that machine's flags, and the reverse.
        ("aarch64", CASCADELAKE, PORTABLE),
        ("x86_64", NEOVERSE_V1, PORTABLE),
    ],
)
def test_the_best_kernels(pretend: Pretend, family: str, flags: str, isa: Isa) -> None:
    pretend(family, flags)
    assert choose().isa is isa


def test_who_asks_ahead_for_a_single_row(pretend: Pretend) -> None:
    pretend("x86_64", CASCADELAKE + " avx512_bf16 avx_vnni")
    assert choose().isa == replace(VNNI_BF16, asks=True)
    assert choose("vnni").isa == replace(VNNI, asks=True)
    assert choose("avx-vnni").isa is AVX_VNNI
    assert choose("avx2").isa is AVX2


@pytest.mark.parametrize(
    ("family", "isa"),
    [("x86_64", AMX), ("AMD64", AMX), ("arm64", I8MM), ("aarch64", I8MM), ("riscv64", PORTABLE)],
)
def test_the_fastest_of_a_family(pretend: Pretend, family: str, isa: Isa) -> None:
    pretend(family, "")
    assert fastest() is isa


def test_tiles_need_leave(pretend: Pretend, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend("x86_64", SAPPHIRE_RAPIDS)
    monkeypatch.setattr(amx, "permitted", lambda: False)
    assert choose().isa is VNNI
    with pytest.raises(InvalidField, match="the system does not permit it"):
        choose("amx")


def test_kernels_that_are_not_possible(pretend: Pretend) -> None:
    pretend("aarch64", NEOVERSE_N1)
    with pytest.raises(InvalidField, match=r"lacks the instructions i8mm$"):
        choose("i8mm")
    with pytest.raises(InvalidField, match="lacks the instructions avx2"):
        choose("avx2")
    with pytest.raises(
        InvalidField, match="use one of auto, amx, vnni-bf16, vnni, avx-vnni, avx2, i8mm, dotprod"
    ):
        choose("neon")
    assert choose("portable").isa is PORTABLE


@pytest.mark.parametrize(
    ("triple", "cpu", "isa"),
    [
        ("arm64-apple-darwin", "apple-m1", DOTPROD),
        ("arm64-apple-darwin", "apple-m2", I8MM),
        ("x86_64-apple-darwin", "haswell", AVX2),
        ("x86_64-pc-windows-msvc", "alderlake", AVX_VNNI),
        ("x86_64-pc-windows-msvc", "cascadelake", VNNI),
        ("x86_64-apple-darwin", "core2", PORTABLE),
    ],
)
def test_systems_that_do_not_tell(
    pretend: Pretend, monkeypatch: pytest.MonkeyPatch, triple: str, cpu: str, isa: Isa
) -> None:
    """There LLVM knows the processor, and spells some features in its own way."""
    pretend(triple.split("-", maxsplit=1)[0], None)
    real = tvm.target.Target
    monkeypatch.setattr(codegen, "llvm_get_system_cpu", lambda: cpu)
    monkeypatch.setattr(tvm.target, "Target", lambda options: real({**options, "mtriple": triple}))
    assert choose().isa is isa


@pytest.mark.parametrize("isa", ISAS.values(), ids=list(ISAS))
def test_targets_have_what_the_kernels_need(isa: Isa) -> None:
    family = "x86_64" if isa in (AMX, VNNI_BF16, VNNI, AVX_VNNI, AVX2) else "aarch64"
    made = target_for(isa, f"{family}-linux-gnu")
    for feature in target._NEEDS[isa.name]:
        assert codegen.llvm_cpu_has_features(target._LLVM_NAMES.get(feature, feature), made)


def test_targets_have_no_more_than_that() -> None:
    assert not codegen.llvm_cpu_has_features("i8mm", target_for(DOTPROD, ARM_LINUX))
    assert not codegen.llvm_cpu_has_features("sve", target_for(I8MM, ARM_LINUX))
    assert not codegen.llvm_cpu_has_features("dotprod", target_for(PORTABLE, ARM_LINUX))


def test_byte_products_of_avx_vnni_need_no_avx512() -> None:
    made = target_for(AVX_VNNI, "x86_64-linux-gnu")
    assert codegen.llvm_cpu_has_features("avxvnni", made)
    assert not codegen.llvm_cpu_has_features("avx512f", made)


def test_a_triple_of_other_processors() -> None:
    with pytest.raises(InvalidField, match="triple"):
        target_for(VNNI, ARM_LINUX)
    with pytest.raises(InvalidField, match="triple"):
        target_for(I8MM, "x86_64-linux-gnu")


def test_processors(pretend: Pretend) -> None:
    assert [processor(isa, "x86_64") for isa in (AMX, VNNI, AVX_VNNI, AVX2, PORTABLE)] == [
        "sapphirerapids", "cascadelake", "haswell", "haswell", "x86-64",
    ]  # fmt: skip
    assert processor(I8MM, "aarch64") == processor(PORTABLE, "aarch64") == "generic"
    pretend("aarch64", NEOVERSE_V1)
    assert processor(I8MM) == "generic"
    assert missing_features("i8mm") == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    "isa",
    [pytest.param(I8MM, id="i8mm"), pytest.param(DOTPROD, id="dotprod", marks=pytest.mark.slow)],
)
def test_a_whole_library_for_another_machine(
    tiny_models: TinyModels, tmp_path: Path, isa: Isa
) -> None:
    model = GGUFFile.open(tiny_models.path("mixed-kinds"))
    plan = read_gguf(model.metadata, model.tensors)
    build_kept(plan.spec, CpuBackend(isa), tmp_path, triple=ARM_LINUX, quickest=True)
    for name in KERNELS:
        (path,) = tmp_path.glob(f"kernels.{name}.*.o")
        code = path.read_bytes()
        assert code.startswith(b"\x7fELF\x02\x01"), "64 bits, little-endian"
        assert int.from_bytes(code[18:20], "little") == 183, "64-bit Arm"
        assert f"__tvm_ffi_{name}".encode() in code
    assert (tmp_path / BYTECODE_FILE).stat().st_size > 0
    metadata = Metadata.from_json((tmp_path / METADATA_FILE).read_text(encoding="utf-8"))
    assert metadata.backend == isa.name and ARM_LINUX in metadata.target
