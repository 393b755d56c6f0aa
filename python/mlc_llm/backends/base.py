"""What a device has to bring, on one page. Models, compiler and runtime know nothing else of it.

A `Backend` is a value: a kind of device with one set of kernels. It answers for three moments:

* packing weights: `layout` says how a matrix lies in memory;
* building a library: `ops` computes a model's operations, `compile` makes the library's files;
* running: `device` links the library and keeps memory.

What it cannot do, `check` says before anything is packed or compiled. No TVM is imported here. The
operations stand in `ops.py`, what a device does at run time in `device.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mlc_llm.backends.kept_states import KeptStates
from mlc_llm.library.page_format import KVCacheDtype
from mlc_llm.library.workspace_info import WorkspaceInfo
from mlc_llm.precision import Precision
from mlc_llm.record import record

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import tvm

    from mlc_llm.backends.device import Device
    from mlc_llm.backends.ops import Ops
    from mlc_llm.models.spec import ModelSpec
    from mlc_llm.quantization.block_format import Grouped


class WeightLayout(Protocol):
    """How a matrix [rows, columns] of one tensor type lies in memory."""

    @property
    def is_float(self) -> bool:
        """It takes plain floats; else quantised values."""
        ...

    @property
    def row_block(self) -> int:
        """So many rows are packed together. A matrix may be packed in parts of whole row blocks,
        which lie one behind the other."""
        ...

    def shape(self, rows: int, columns: int) -> tuple[tuple[int, ...], str]:
        """Shape and dtype of the packed tensor."""
        ...

    def pack(self, values: Grouped | npt.NDArray[np.float32]) -> npt.NDArray[np.generic]:
        """The packed tensor of quantised values, or of floats."""
        ...


@record()
class Compiled:
    """What `Backend.compile` has made."""

    files: tuple[str, ...]
    """Names in the library's folder, the bytecode first."""
    target: str
    requires: tuple[str, ...] = ()
    """What the code needs that the system has to permit."""
    workspaces: Mapping[str, tuple[WorkspaceInfo, ...]] = field(default_factory=dict)
    """See `Metadata`."""


class Backend(KeptStates, Protocol):
    """A kind of device with one set of kernels; a value that can be hashed."""

    @property
    def name(self) -> str:
        """The kernels' name, as logs and `MLC_LLM_KERNELS` have it."""

    @property
    def kv_dtype(self) -> str:
        """Element type of KV pages."""

    @property
    def adapter_dtype(self) -> str:
        """Element type of the factors of LoRA adapters: "float32", or "float16"."""

    @property
    def page_size(self) -> int:
        """Tokens a page."""

    @property
    def device(self) -> Device: ...

    @property
    def repeat_bytes(self) -> int:
        """What repeated steps of an engine take at most, beside what they compute with."""
        ...

    @property
    def most_page_numbers(self) -> int | None:
        """Numbers of a layer's pages that the kernels can count; None: any number."""
        ...

    @property
    def has_fast_answers(self) -> bool:
        """Steps that decode are not slower where all tokens are computed less exactly."""
        ...

    @property
    def ranks_are_apart(self) -> bool:
        """Each rank has a device of its own, with memory of its own; else they share that of this
        machine."""
        ...

    def why_no_ranks(self, ranks: int) -> str | None:
        """Why so many ranks cannot compute here, and what to do, in a line; None: they can."""

    def rank_environment(self, rank: int) -> Mapping[str, str]:
        """What the process of another rank has in its environment beside what rank 0 has."""
        ...

    def free_memory(self, ranks: int = 1) -> int | None:
        """Free bytes of the device, of the fullest one if ranks are apart; None: its memory is that
        of this machine. Raises UnusableDevice."""

    def with_precision(self, precision: Precision) -> Backend:
        """These kernels with what that precision needs. Raises InvalidField if they lack it."""
        ...

    def with_kv_cache(self, dtype: KVCacheDtype) -> Backend:
        """These kernels with KV pages of that kind. Raises InvalidField if they lack it."""
        ...

    def check(self, spec: ModelSpec) -> None:
        """Raises UnsupportedModel for what these kernels cannot compute."""

    def layout(self, kind: str) -> WeightLayout:
        """How matrices of a tensor type are kept. Raises UnsupportedModel."""
        ...

    def weights_identity(self) -> dict[str, object]:
        """All that decides how weights are packed."""
        ...

    def library_identity(self) -> dict[str, object]:
        """All that decides the code, beside the model and the sources."""
        ...

    def ops(self) -> Ops:
        """Loads TVM's compiler."""
        ...

    def compile(
        self,
        module: tvm.IRModule,
        folder: Path,
        triple: str | None = None,
        libraries: Path | None = None,
    ) -> Compiled:
        """Makes the code of a Relax module. libraries: a folder of libraries, from which what is
        the same may be taken. Raises whatever TVM raises."""
        ...
