"""Libraries of whole models for the stand-in for CUDA, whose kernels an emulator computes.

g++ compiles the CUDA source of a library for the CPU in the place of NVIDIA's compiler. All else is
what a machine with a GPU does: the same kernels, launched by the same code.
"""

from __future__ import annotations

import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import kept
import pytest
from fake_cuda import emulated_machine_code
from kept_libraries import _sources

from mlc_llm.backends.base import Backend
from mlc_llm.backends.cuda import codegen
from mlc_llm.backends.registry import named_backend
from mlc_llm.compiler.build import build_library
from mlc_llm.library.page_format import KVCacheDtype
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.weight_plan import WeightPlan
from mlc_llm.precision import Precision

ARCH = "sm_90a"
sys.path.insert(0, str(Path(__file__).parents[2] / "kernels" / "cuda"))

from emulation import EMULATOR, compile_emulated  # noqa: E402


def emulated_library(
    plan: WeightPlan,
    precision: Precision = "exact",
    arch: str = ARCH,
    *,
    kv_cache: KVCacheDtype = "auto",
) -> Path:
    """The folder of a model's library for the emulator, compiled once for all runs."""
    backend = named_backend("cuda", arch=arch).with_precision(precision).with_kv_cache(kv_cache)
    return _emulated(plan.spec, backend)


def emulated_into(
    spec: ModelSpec, backend: Backend, folder: Path, *, triple: str | None = None,
    libraries: Path | None = None,
) -> None:  # fmt: skip
    """In the place of `build_library`. It takes nothing from other libraries."""
    assert triple is None
    shutil.copytree(_emulated(spec, backend), folder, dirs_exist_ok=True)


def _emulated(spec: ModelSpec, backend: Backend) -> Path:
    files, identity = sorted(EMULATOR.iterdir()), backend.library_identity()
    key = kept.digest(spec, identity, _sources(), version("apache-tvm"), files=files)
    place = kept.folder("libraries") / f"emulated-{key}"

    def make(new: Path) -> None:
        new.mkdir()

        def compile_cubin(source: str, arch: str) -> bytes:
            compile_emulated(source, new / "emulated.so")
            return emulated_machine_code(place / "emulated.so", int(arch[3:5]))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(codegen, "compile_cubin", compile_cubin)
            build_library(spec, backend, new)

    return kept.entry(place, make)
