"""Tensors that are read after a later kernel wrote over them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tvm
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op
from tvm.script import tirx as T

from mlc_llm.backends.cpu.overwrites import check_overwrites
from mlc_llm.backends.cpu.scratch import Scratch

SHAPE = (2, 4)


@T.prim_func(private=True, s_tir=True)
def copied(x: T.Buffer(SHAPE, "float32"), y: T.Buffer(SHAPE, "float32")):  # type: ignore[valid-type]
    for i, j in T.grid(*SHAPE):
        y[i, j] = x[i, j]


@T.prim_func(private=True, s_tir=True)
def doubled(x: T.Buffer(SHAPE, "float32")):  # type: ignore[valid-type]
    for i, j in T.grid(*SHAPE):
        x[i, j] = x[i, j] + x[i, j]


def added(x: Tensor, y: Tensor) -> Tensor:
    """y, changed in place."""
    return op.tensor_ir_inplace_op(copied, "copied", [x, y], 1, y)


def module_of(forward: Callable[[Tensor, Scratch], Tensor]) -> tvm.IRModule:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return forward(x, Scratch())

    module, _ = Model().export_tvm({"forward": {"x": nn.spec.Tensor(SHAPE, "float32")}})
    return module


def made(scratch: Scratch, x: Tensor) -> Tensor:
    return scratch.call(copied, "copied", [x], x)


def test_what_a_layer_made_is_used_up_in_it() -> None:
    def forward(x: Tensor, scratch: Scratch) -> Tensor:
        for _ in range(3):
            scratch.start_layer()
            x = added(made(scratch, made(scratch, x)), x)
        return x

    check_overwrites(module_of(forward))


def test_a_layer_that_returns_a_scratch_tensor() -> None:
    def forward(x: Tensor, scratch: Scratch) -> Tensor:
        for _ in range(2):
            scratch.start_layer()
            x = added(x, made(scratch, x))
        return x

    with pytest.raises(AssertionError, match=r"forward: .* is read after .* was overwritten"):
        check_overwrites(module_of(forward))


def test_an_old_value_that_is_returned() -> None:
    def forward(x: Tensor, scratch: Scratch) -> Tensor:
        old = made(scratch, x)
        added(x, old)
        return old

    with pytest.raises(AssertionError, match="is read after"):
        check_overwrites(module_of(forward))


@pytest.mark.parametrize(("name", "is_right"), [("head_norm_2", True), ("doubled", False)])
def test_the_rest_of_a_tensor_that_a_kernel_changed_in_part(name: str, is_right: bool) -> None:
    def forward(x: Tensor, scratch: Scratch) -> Tensor:
        whole = made(scratch, x)
        op.tensor_ir_inplace_op(doubled, name, [whole], 0, whole)
        return added(whole, x)

    if is_right:
        return check_overwrites(module_of(forward))
    with pytest.raises(AssertionError, match="is read after"):
        check_overwrites(module_of(forward))
    return None


def test_an_argument_is_read_as_it_is_now() -> None:
    """As a layer reads the pages that an earlier layer wrote."""

    class Model(nn.Module):
        def forward(self, pages: list[Tensor]) -> Tensor:
            scratch = Scratch()
            written = op.tensor_ir_inplace_op(doubled, "doubled", [pages[0]], 0, pages[0])
            return added(made(scratch, written), made(scratch, pages[0]))

    spec = {"forward": {"pages": [nn.spec.Tensor(SHAPE, "float32")]}}
    check_overwrites(Model().export_tvm(spec)[0])
