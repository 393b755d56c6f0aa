"""Functions of TVM's virtual machine with some arguments given."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import tvm_ffi

_NUMBERS = itertools.count()


def closure(vm: tvm_ffi.Module, name: str, last: Sequence[tvm_ffi.Tensor]) -> tvm_ffi.Function:
    """A function with these last arguments, which the machine keeps. So Python need not hand them
    over in each step, nor compiled code take hundreds of weights out of a list."""
    own = f"{name} with {next(_NUMBERS)}"
    vm["save_function"](name, own, True, *last)
    return vm[own]
