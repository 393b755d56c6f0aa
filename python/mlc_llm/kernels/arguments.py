"""Arguments that a kernel has only in some of its forms.

A kernel is written with all of them. Python decides what its body reads while TVMScript is parsed,
and `without` takes away what it does not read.
"""

from __future__ import annotations

from tvm.tirx import PrimFunc


def without(kernel: PrimFunc, *names: str) -> PrimFunc:
    """The kernel without the arguments of these names, which its body does not read."""
    params = [param for param in kernel.params if param.name not in names]
    assert len(params) == len(kernel.params) - len(names), f"not all of {names} are arguments"
    return PrimFunc(params, kernel.body, kernel.ret_type, kernel.attrs) if names else kernel
