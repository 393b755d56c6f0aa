"""Every operation in float32 and plain Relax, on the CPU: the oracle of kernels and of new
architectures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mlc_llm.backends.base import Compiled, WeightLayout
from mlc_llm.backends.device import Device
from mlc_llm.backends.kept_states import KeptStates
from mlc_llm.backends.ops import Ops
from mlc_llm.backends.ranks.futex import why_not_here
from mlc_llm.errors import InvalidField
from mlc_llm.library.page_format import KVCacheDtype
from mlc_llm.precision import Precision
from mlc_llm.record import record

if TYPE_CHECKING:
    import tvm

    from mlc_llm.models.spec import ModelSpec


@record()
class ReferenceBackend(KeptStates):
    """See `backends.base.Backend`."""

    kv_dtype: str = "float32"
    name = "reference"
    adapter_dtype = "float32"
    page_size = 16
    repeat_bytes = 0
    most_page_numbers = 2**31 - 1
    has_fast_answers = True
    ranks_are_apart = False

    @property
    def device(self) -> Device:
        import tvm  # noqa: F401 # brings the functions that plain Relax calls, such as sorting

        from mlc_llm.backends.cpu.device import CpuDevice

        return CpuDevice()

    def why_no_ranks(self, ranks: int) -> str | None:
        return why_not_here()

    def rank_environment(self, rank: int) -> Mapping[str, str]:
        return {}

    def free_memory(self, ranks: int = 1) -> None:
        """It is this machine's memory."""

    def with_precision(self, precision: Precision) -> ReferenceBackend:
        if precision == "exact":
            return self
        words = "the reference kernels know no faster way; use 'exact'"
        raise InvalidField("precision", precision, words)

    def with_kv_cache(self, dtype: KVCacheDtype) -> ReferenceBackend:
        return replace(self, kv_dtype="int8" if dtype == "int8" else "float32")

    def check(self, spec: ModelSpec) -> None:
        """There is nothing that these kernels lack."""

    def layout(self, kind: str) -> WeightLayout:
        from mlc_llm.backends.reference.layout import DenseLayout

        return DenseLayout(kind)

    def weights_identity(self) -> dict[str, object]:
        return {"kernels": self.name}

    def library_identity(self) -> dict[str, object]:
        return {"kernels": self.name, "kv": self.kv_dtype}

    def ops(self) -> Ops:
        from mlc_llm.backends.reference.ops import ReferenceOps

        return ReferenceOps(self.kv_dtype)

    def compile(
        self,
        module: tvm.IRModule,
        folder: Path,
        triple: str | None = None,
        libraries: Path | None = None,
    ) -> Compiled:
        import tvm

        from mlc_llm.backends.cpu.codegen import compile_module

        options = {} if triple is None else {"mtriple": triple}
        target = tvm.target.Target({"kind": "llvm", **options})
        return compile_module(module, target, folder, (), libraries=libraries)
