"""The CPU as a backend: one set of kernels for one family of instruction sets."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mlc_llm.backends.cpu.chunked_states import ChunkedStates
from mlc_llm.backends.cpu.formats import PAGE, format_of_kind
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.backends.cpu.target import processor, target_for
from mlc_llm.backends.ranks.futex import why_not_here
from mlc_llm.errors import InvalidField
from mlc_llm.library.page_format import KVCacheDtype
from mlc_llm.precision import Precision
from mlc_llm.record import record

if TYPE_CHECKING:
    import tvm

    from mlc_llm.backends.base import Compiled, WeightLayout
    from mlc_llm.backends.device import Device
    from mlc_llm.backends.ops import Ops
    from mlc_llm.models.spec import ModelSpec


@record()
class CpuBackend(ChunkedStates):
    """See `backends.base.Backend`.

    Modules are imported when they are needed: a model that is found in the cache needs no compiler,
    and weights are looked for before NumPy is loaded.
    """

    isa: Isa
    repeat_bytes: ClassVar[int] = 0
    most_page_numbers: ClassVar[int] = 2**31 - 1
    ranks_are_apart: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return self.isa.name

    @property
    def kv_dtype(self) -> str:
        return self.isa.kv_dtype

    @property
    def adapter_dtype(self) -> str:
        return self.isa.adapter_dtype

    @property
    def has_fast_answers(self) -> bool:
        """Tiles are for many rows: a few are faster on vectors, which compute them exactly."""
        return not self.isa.amx_tiles

    @property
    def page_size(self) -> int:
        return PAGE

    @property
    def device(self) -> Device:
        from mlc_llm.backends.cpu.device import CpuDevice

        return CpuDevice()

    def why_no_ranks(self, ranks: int) -> str | None:
        return why_not_here()

    def rank_environment(self, rank: int) -> Mapping[str, str]:
        return {}

    def free_memory(self, ranks: int = 1) -> None:
        """It is this machine's memory."""

    def with_precision(self, precision: Precision) -> CpuBackend:
        if precision == "exact":
            return self
        if self.isa.sums != 2:
            words = f"the {self.name} kernels know no faster way; use 'exact'"
            raise InvalidField("precision", precision, words)
        one_plane, fast = precision == "fast", self.isa.amx_tiles or self.isa.bf16
        return replace(self, isa=replace(self.isa, fast=fast, one_plane=one_plane))

    def with_kv_cache(self, dtype: KVCacheDtype) -> CpuBackend:
        return replace(self, isa=replace(self.isa, byte_pages=dtype == "int8"))

    def check(self, spec: ModelSpec) -> None:
        from mlc_llm.backends.cpu.checks import check

        check(spec, self.name)

    def layout(self, kind: str) -> WeightLayout:
        from mlc_llm.backends.cpu.layout import CpuLayout

        return CpuLayout(format_of_kind(kind, half=self.isa.half, fixed_point=self.isa.amx_tiles))

    def weights_identity(self) -> dict[str, Any]:
        return {"half": self.isa.half, "fixed_point": self.isa.amx_tiles}

    def library_identity(self) -> dict[str, Any]:
        machine = [platform.system(), platform.machine(), processor(self.isa)]
        return {"isa": asdict(self.isa), "machine": machine}

    def ops(self) -> Ops:
        from mlc_llm.backends.cpu.ops import CpuOps

        return CpuOps(self.isa)

    def compile(
        self,
        module: tvm.IRModule,
        folder: Path,
        triple: str | None = None,
        libraries: Path | None = None,
    ) -> Compiled:
        from mlc_llm.backends.cpu.codegen import compile_module, needless

        requires = ("amx",) if self.isa.amx_tiles else ()
        target = target_for(self.isa, triple)
        return compile_module(module, target, folder, requires, needless(self.isa), libraries)
