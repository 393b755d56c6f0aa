"""What TVM's virtual machine does in a step beside calling kernels: it grows with no layer."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tvm import relax

from mlc_llm.backends.cpu.codegen import pipeline
from mlc_llm.backends.cpu.isa import PORTABLE
from mlc_llm.backends.cpu.target import target_for
from mlc_llm.backends.cpu.workspace import IntoWorkspaces
from mlc_llm.backends.registry import backend_of
from mlc_llm.compiler.infos import adapted_infos, kv_info
from mlc_llm.compiler.methods import export
from mlc_llm.library.signatures import FORWARD
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.models.decoder import Decoder
from mlc_llm.models.registry import read_gguf
from mlc_llm.testing.tiny_model import TinyShape, write_tiny_model

CHECK, MATCH = "vm.builtin.check_tensor_info", "vm.builtin.match_shape"


def own_calls(path: Path, layers: int, *, adapted: bool) -> Counter[str]:
    """How often `forward` calls each function of the machine, and takes a tensor of a tuple."""
    file = GGUFFile.open(write_tiny_model(path, kinds={"": "Q4_0"}, shape=TinyShape(layers=layers)))
    plan, backend = read_gguf(file.metadata, file.tensors), backend_of("portable")
    spec, ops = (plan.with_adapters() if adapted else plan).spec, backend.ops()
    kv, infos = kv_info(spec, backend, ops), adapted_infos(spec, backend)
    module, _ = export(Decoder(spec, ops), kv, infos)
    with target_for(PORTABLE):
        lowered = pipeline(IntoWorkspaces())(module)
    found: Counter[str] = Counter()
    for block in lowered[FORWARD].body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.TupleGetItem):
                found["a tuple's"] += 1
            elif isinstance(getattr(binding.value, "op", None), relax.ExternFunc):
                found[binding.value.op.global_symbol] += 1
    return found


@pytest.mark.parametrize("adapted", [False, True])
def test_more_layers_are_no_more_work_of_the_machine(tmp_path: Path, adapted: bool) -> None:
    """Pages, weights and adapters are given once; a model has no tensor that is checked anew."""
    few, many = (own_calls(tmp_path / f"{n}.gguf", n, adapted=adapted) for n in (2, 4))
    assert 0 < few[CHECK] <= 11 and few["a tuple's"] <= 7
    assert few[CHECK] < few[MATCH] <= many[MATCH] <= few[MATCH] + 1, "one workspace more at most"
    assert {**few, MATCH: 0} == {**many, MATCH: 0}
