"""An NVIDIA GPU as a backend: one set of kernels, compiled for one architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mlc_llm.backends.cuda.formats import GRAPH_BYTES, PAGE
from mlc_llm.backends.cuda.layout import CudaLayout
from mlc_llm.backends.kept_states import KeptStates
from mlc_llm.backends.ranks.futex import why_not_here
from mlc_llm.errors import InvalidField, UnusableDevice
from mlc_llm.library.page_format import KVCacheDtype
from mlc_llm.precision import Precision
from mlc_llm.record import record

if TYPE_CHECKING:
    import tvm

    from mlc_llm.backends.base import Compiled, WeightLayout
    from mlc_llm.backends.device import Device
    from mlc_llm.backends.ops import Ops
    from mlc_llm.models.spec import ModelSpec

NAME = "cuda"


@record()
class CudaBackend(KeptStates):
    """See `backends.base.Backend`. Modules are imported when they are needed."""

    arch: str | None
    """What code is compiled for (`architectures.py`); None: nothing is compiled."""
    kv_dtype: str = "float16"
    precision: Precision = "exact"
    """What is multiplied in one plane of float16: nothing, tokens of prompts, or all."""
    name = NAME
    adapter_dtype = "float32"
    page_size = PAGE
    repeat_bytes = GRAPH_BYTES
    most_page_numbers = None
    has_fast_answers = True
    ranks_are_apart = True

    @property
    def device(self) -> Device:
        from mlc_llm.backends.cuda.device import CudaDevice

        return CudaDevice()

    def why_no_ranks(self, ranks: int) -> str | None:
        from mlc_llm.backends.cuda.gpu_ranks import why_not

        return why_not_here() or why_not(ranks)

    def rank_environment(self, rank: int) -> Mapping[str, str]:
        from mlc_llm.backends.cuda.gpu_ranks import environment

        return environment(rank)

    def free_memory(self, ranks: int = 1) -> int:
        from mlc_llm.backends.cuda.gpu_ranks import free_memory

        return free_memory(ranks)

    def with_precision(self, precision: Precision) -> CudaBackend:
        return replace(self, precision=precision)

    def with_kv_cache(self, dtype: KVCacheDtype) -> CudaBackend:
        return replace(self, kv_dtype="int8" if dtype == "int8" else "float16")

    def check(self, spec: ModelSpec) -> None:
        from mlc_llm.backends.cuda.checks import check

        check(spec, self.kv_dtype)

    def layout(self, kind: str) -> WeightLayout:
        layout = CudaLayout(kind)
        assert layout.format  # raises for a kind that there is no format for
        return layout

    def weights_identity(self) -> dict[str, object]:
        return {"kernels": self.name}

    def library_identity(self) -> dict[str, object]:
        return {
            "kernels": self.name, "arch": self.arch, "kv": self.kv_dtype,
            "precision": self.precision,
        }  # fmt: skip

    def ops(self) -> Ops:
        from mlc_llm.backends.cuda.ops import CudaOps
        from mlc_llm.kernels.cuda.matmul_hopper import ARCHITECTURE as WGMMA

        return CudaOps(self.kv_dtype, self.precision, has_wgmma=self.arch == WGMMA)

    def compile(
        self,
        module: tvm.IRModule,
        folder: Path,
        triple: str | None = None,
        libraries: Path | None = None,  # their kernels are one piece, which is that of no other
    ) -> Compiled:
        from mlc_llm.backends.cuda.codegen import compile_module

        if triple is not None:
            words = "the cuda kernels are launched by x86-64 Linux only; leave it out"
            raise InvalidField("host", triple, words)
        if self.arch is None:
            raise UnusableDevice("nothing says which GPU to compile for; give --arch")
        return compile_module(module, self.arch, folder)
