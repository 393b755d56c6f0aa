"""Passes of TVM that are left out change no kernel. For AMX fewer are: those alone come first."""

from __future__ import annotations

from pathlib import Path

import pytest
import tvm
from tiny_models import TinyModels

from mlc_llm.backends.cpu import codegen
from mlc_llm.backends.cpu.isa import AMX, ISAS
from mlc_llm.backends.cpu.target import target_for
from mlc_llm.backends.registry import backend_of
from mlc_llm.compiler.build import build_library


def kernels_of(
    models: TinyModels, name: str, kernels: str, folder: Path
) -> dict[str, tvm.tirx.PrimFunc]:
    """The kernels of a tiny model's library, as they are before they are compiled."""
    found: dict[str, tvm.tirx.PrimFunc] = {}

    def keep(module: tvm.IRModule, *rest: object) -> list[str]:
        found.update({one.name_hint: kernel for one, kernel in module.functions.items()})
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codegen, "compile_kernels", keep)
        build_library(models.spec(name), backend_of(kernels), folder)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["portable", "avx2", "vnni"])
def test_the_same_machine_code(tiny_models: TinyModels, tmp_path: Path, kernels: str) -> None:
    found = kernels_of(tiny_models, "plain", kernels, tmp_path)
    isa, file = ISAS[kernels], tmp_path / "kernel.o"
    target = target_for(isa)
    assert {"attention", "rms_norm", "sample_rows"} <= {*found}
    for name, kernel in found.items():
        made = []
        for left_out in (codegen.needless(isa), codegen.needless(AMX)):
            with tvm.transform.PassContext(disabled_pass=list(left_out)):
                tvm.tirx.build(tvm.IRModule({name: kernel}), target=target).write_to_file(str(file))
            made.append(file.read_bytes())
        assert made[0] == made[1], name
