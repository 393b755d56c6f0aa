"""Reading kernels: what is replaced in TVM's parser finds the same, with less work."""

from __future__ import annotations

import ast
import inspect
import logging
import subprocess
import sys

import pytest
from tvm.script import tirx as T
from tvm.script.parser.core import doc, evaluator
from tvm.script.parser.core.diagnostics import Source
from tvm.script.parser.core.parser import ScriptMacro

from mlc_llm.kernels import tvm_patches
from mlc_llm.kernels.cpu.vectors import SCHEDULED
from mlc_llm.kernels.tvm_patches import find_parser


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


@pytest.mark.parametrize(
    ("name", "slow_part"),
    [("find_parser", "getouterframes"), ("tree", "doc.parse"), ("value", "compile(")],
)
def test_each_replacement_is_still_needed(name: str, slow_part: str) -> None:
    # If this fails, TVM no longer does what is slow: remove the replacement.
    code = tvm_patches.TVM_CODE[name]
    assert code is not None
    assert slow_part in inspect.getsource(code)


NAMES = {"a": [3, 4, 5], "f": lambda *given, **named: (given, named), "i": 1, "text": "word"}


@pytest.mark.parametrize(
    "text",
    [
        "a", "7", "None", "len", "a[i]", "a[0]", "text.upper", "f()", "f(a, 2)", "f(a, k=i)",
        "f(*a)", "f(**{'k': 1})", "f(a[0])", "a[0:2]", "a[i:]", "[i, 2]", "(i, a)", "-i", "i + 1",
        "text.upper()", "lambda: i", "{'k': i}", "f'{text}'", "[n for n in a]",
    ],
)  # fmt: skip
def test_expressions_have_the_values_that_tvm_finds(text: str) -> None:
    node = doc.parse(text, mode="eval").body
    mine, theirs = (
        evaluator._eval_expr(node, dict(NAMES)),
        tvm_patches.TVM_CODE["value"](node, dict(NAMES)),
    )
    if text.startswith("lambda"):
        mine, theirs = mine(), theirs()
    assert evaluator._eval_expr is tvm_patches.value
    assert mine == theirs


@pytest.mark.parametrize("text", ["absent", "absent(1)", "f(absent)", "a[absent]", "absent.part"])
def test_unknown_names_raise_what_python_raises(text: str) -> None:
    node = doc.parse(text, mode="eval").body
    for evaluate in (tvm_patches.value, tvm_patches.TVM_CODE["value"]):
        with pytest.raises(NameError, match="name 'absent' is not defined"):
            evaluate(node, dict(NAMES))


def test_a_text_is_read_once() -> None:
    source = Source("def kernel():\n    return 1\n")
    assert source.as_ast() is Source(source.source).as_ast()
    theirs = tvm_patches.TVM_CODE["tree"](source)
    assert ast.dump(doc.from_doc(source.as_ast())) == ast.dump(doc.from_doc(theirs))


def test_a_version_that_has_nothing_to_patch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(tvm_patches.TVM_CODE, "find_parser", None)
    monkeypatch.delattr(ScriptMacro, "_find_parser_def")
    with caplog.at_level(logging.WARNING):
        tvm_patches.apply.__wrapped__()
    assert not hasattr(ScriptMacro, "_find_parser_def")
    assert "has no ScriptMacro._find_parser_def: kernels are read more slowly" in caplog.text


def _with_a_function_inside() -> str:
    @T.prim_func(private=True, s_tir=True)
    def kernel(Y: T.Buffer((2,), "float32")):
        T.func_attr(SCHEDULED)
        with T.sblock("root"):

            @T.inline
            def add(i, value):
                Y[i] = Y[i] + value

            add(0, T.float32(1))
            add(1, T.float32(2))

    return str(kernel.script())


def test_a_kernel_with_a_function_inside_can_be_read_again() -> None:
    assert _with_a_function_inside() == _with_a_function_inside()


@pytest.mark.parametrize("kernels", ["cpu.matmul", "cuda.matmul"])
def test_kernels_of_each_kind_are_read_so(kernels: str) -> None:
    """In a process that has imported nothing else."""
    code = (
        f"import mlc_llm.kernels.{kernels}\n"
        "from tvm.script.parser.core.parser import ScriptMacro\n"
        "print(ScriptMacro._find_parser_def.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "mlc_llm.kernels.tvm_patches"
