"""Reading kernels: what is replaced in TVM's parser finds the same, without sources of callers."""

from __future__ import annotations

import inspect
import logging

import pytest
from tvm.script import tirx as T
from tvm.script.parser.core.parser import ScriptMacro

from mlc_llm.kernels.cpu import tvm_patches
from mlc_llm.kernels.cpu.tvm_patches import find_parser
from mlc_llm.kernels.cpu.vectors import SCHEDULED


def test_functions_expand_without_asking_for_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("the parser asked for the source of every caller")

    @T.inline
    def add(Y, i, value):
        Y[i] = Y[i] + value

    @T.inline
    def add_both(Y):
        add(Y, 0, T.float32(1))
        add(Y, 1, T.float32(2))

    monkeypatch.setattr(inspect, "getouterframes", refused)
    monkeypatch.setattr(inspect, "stack", lambda *_: [])

    @T.prim_func(private=True, s_tir=True)
    def kernel(Y: T.Buffer((2,), "float32")):
        T.func_attr(SCHEDULED)
        with T.sblock("root"):
            add_both(Y)

    assert kernel.script().count("Y[") == 4


def test_nothing_expands_outside_of_a_kernel() -> None:
    @T.inline
    def nothing():
        T.evaluate(0)

    with pytest.raises(RuntimeError, match="nothing is parsed"):
        nothing()
    assert ScriptMacro._find_parser_def is find_parser


def test_the_patch_is_still_needed() -> None:
    # If this fails, TVM no longer asks for sources: remove the patch.
    assert tvm_patches.TVM_SEARCH is not None
    assert "getouterframes" in inspect.getsource(tvm_patches.TVM_SEARCH)


def test_a_version_that_has_nothing_to_patch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tvm_patches, "TVM_SEARCH", None)
    monkeypatch.delattr(ScriptMacro, "_find_parser_def")
    with caplog.at_level(logging.WARNING):
        tvm_patches.apply.__wrapped__()
    assert not hasattr(ScriptMacro, "_find_parser_def")
    assert "has no ScriptMacro._find_parser_def: kernels are read more slowly" in caplog.text
