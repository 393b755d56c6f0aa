"""Reading kernels: what is replaced in TVM's parser finds the same, with less work."""

from __future__ import annotations

import ast
import inspect
import logging
import subprocess
import sys
from typing import Any

import pytest
import tvm
import tvm_ffi
from tvm.error import DiagnosticError
from tvm.script import tirx as T
from tvm.script.parser.core import doc
from tvm.script.parser.core.diagnostics import Source
from tvm.script.parser.core.error import ParserError
from tvm.script.parser.core.parser import Parser, ScriptMacro
from tvm.tirx.script.parser import entry

from mlc_llm.backends.cpu.isa import AVX2, PORTABLE
from mlc_llm.kernels import expressions, tvm_patches
from mlc_llm.kernels.cpu.attention import attention
from mlc_llm.kernels.cpu.attention_shape import Shape
from mlc_llm.kernels.cpu.rows import take_rows
from mlc_llm.kernels.cpu.vectors import SCHEDULED
from mlc_llm.kernels.expressions import current_parser, evaluate


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
    assert ScriptMacro._find_parser_def is current_parser


SLOW_PARTS = {
    "evaluate": "var_table.get()",
    "assigned": "_eval_assign(",
    "current_parser": "getouterframes",
    "tree": "doc.parse",
    "nowhere": "to_span",
    "as_it_is": "_set_current_source_span",
}


@pytest.mark.parametrize("name", SLOW_PARTS)
def test_each_replacement_is_still_needed(name: str) -> None:
    # If this fails, TVM no longer does what is slow: remove the replacement.
    code = tvm_patches.TVM_CODE[name]
    assert code is not None
    assert SLOW_PARTS[name] in inspect.getsource(code)


def test_the_others_are_still_needed() -> None:
    assert {*tvm_patches.PLACES} == {*SLOW_PARTS, "inspection"}
    assert "inspect.stack()" in inspect.getsource(entry.prim_func)


@pytest.mark.parametrize(
    ("make", "args"),
    [
        pytest.param(take_rows, (8,), id="rows"),
        pytest.param(
            attention, (Shape(4, 2, 16, AVX2, "float16"),), id="attention", marks=pytest.mark.slow
        ),
        pytest.param(
            attention, (Shape(4, 2, 16, PORTABLE, "int8"),), id="bytes", marks=pytest.mark.slow
        ),
    ],
)
def test_kernels_are_those_that_tvm_reads(
    monkeypatch: pytest.MonkeyPatch, make: Any, args: tuple[object, ...]
) -> None:
    mine = make.__wrapped__(*args).script(show_meta=True)
    for name, (owner, attribute, _) in tvm_patches.PLACES.items():
        monkeypatch.setattr(owner, attribute, tvm_patches.TVM_CODE[name])
    assert make.__wrapped__(*args).script(show_meta=True) == mine


def _parser() -> Parser:
    """One that knows `NAMES`."""
    parser = Parser(Source("text"), {})
    parser.var_table.with_frame()
    for name, value in NAMES.items():
        parser.var_table.add(name, value)
    return parser


def _values(text: str) -> list[Any]:
    """What `evaluate` finds, and what TVM finds."""
    theirs = tvm_patches.TVM_CODE["evaluate"]
    assert Parser.eval_expr is evaluate and theirs is not None
    return [
        of(_parser(), doc.parse(text, mode="eval").body, {"more": 7}) for of in (evaluate, theirs)
    ]


NAMES = {
    "a": [3, 4, 5], "f": lambda *given, **named: (given, named), "i": 1, "text": "word",
    "yes": True, "no": False, "n": T.int32(3), "b": T.bool(True),
}  # fmt: skip
PYTHON = (
    "a", "7", "None", "len", "more", "a[i]", "a[0]", "text.upper", "f()", "f(a, 2)", "f(a, k=i)",
    "f(*a)", "f(i, *a, 2)", "f(**{'k': 1})", "f(k=2, **{'m': 1})", "f(a[0])", "f(a[0:2])",
    "a[0:2]", "a[i:]", "a[0:2] + a[0:1]", "a[0:2] == a", "[i, 2]", "(i, a)", "(*a, i)", "[*a]",
    "-i", "not i", "~i", "i + 1", "i // 2 * 3 - 4 % 3", "2 ** 3", "1 << 4 >> 1", "6 & 3 | 8 ^ 1",
    "text.upper()", "{'k': i}", "{i, 2}", "f'{text}'", "[x for x in a]",
    "i == 1", "i < 2 < 3", "i < 2 < 1", "i in a", "3 not in a", "i is None", "i is not None",
    "yes and no", "no and absent", "yes or absent", "no or 5", "no or no or i", "yes and 3",
    "i if yes else absent", "absent if no else i", "a[-1]", "a[i + 1]", "f(f(1), x=f(2))[0][0]",
)  # fmt: skip
OF_KERNELS = (
    "n + 1", "1 - n", "n // 2", "n % 2", "n < 4", "n == 3", "1 < n < 4", "n < 4 and n > 1",
    "b or n < 2", "yes and b", "not b", "-n", "n if b else 2", "n if n < 2 else n + 1",
    "f(n, n * 2)[0][1]", "yes and n < 2 or b",
)  # fmt: skip


@pytest.mark.parametrize("text", PYTHON)
def test_expressions_have_the_values_that_tvm_finds(text: str) -> None:
    mine, theirs = _values(text)
    assert mine == theirs and type(mine) is type(theirs)


@pytest.mark.parametrize("text", OF_KERNELS)
def test_expressions_of_kernels_too(text: str) -> None:
    mine, theirs = _values(text)
    assert isinstance(mine, tvm.tirx.Expr)
    assert tvm_ffi.structural_equal(mine, theirs)


def test_functions_without_a_name() -> None:
    assert [function(2) for function in _values("lambda x: x + i")] == [3, 3]


@pytest.mark.parametrize(
    "text", ["absent", "absent(1)", "f(absent)", "a[absent]", "absent.part", "i + absent"]
)
def test_unknown_names_are_named(text: str) -> None:
    with pytest.raises(ParserError, match="Undefined variable: absent") as caught:
        evaluate(_parser(), doc.parse(text, mode="eval").body)
    assert caught.value.node.id == "absent"
    assert not expressions._parsers.active


@pytest.mark.parametrize("text", ["i.absent", "a[9]", "i()", "i + text", "n if text else 1"])
def test_what_fails_is_an_error_with_its_place(text: str) -> None:
    for of in (evaluate, tvm_patches.TVM_CODE["evaluate"]):
        with pytest.raises(DiagnosticError) as caught:
            of(_parser(), doc.parse(text, mode="eval").body)
        assert "<str>:1:1" in str(caught.value)
    assert not expressions._parsers.active


def test_assignments_bind_what_tvm_binds() -> None:
    theirs = tvm_patches.TVM_CODE["assigned"]
    assert theirs is not None
    for text, value in (
        ("a", 3),
        ("a, b", (1, 2)),
        ("a, *b", (1, 2, 3)),
        ("(a, b), c", ((1, 2), 3)),
    ):
        (statement,) = doc.parse(f"{text} = 0").body
        (target,) = statement.targets
        mine = tvm_patches.assigned(_parser(), target, value)
        assert mine == theirs(_parser(), target, value)


def test_callers() -> None:
    def both() -> tuple[list[Any], list[Any]]:
        return tvm_patches.inspection.stack(), inspect.stack()

    mine, theirs = both()
    assert [one.frame for one in mine] == [one.frame for one in theirs]
    for i in range(2, len(theirs)):  # this function has gone on since then
        assert mine[i].lineno == theirs[i].lineno
        assert mine[i].code_context == (theirs[i].code_context or [""])
    assert tvm_patches.inspection.isfunction is inspect.isfunction


def test_a_text_is_read_once() -> None:
    source = Source("def kernel():\n    return 1\n")
    assert source.as_ast() is Source(source.source).as_ast()
    theirs = tvm_patches.TVM_CODE["tree"](source)
    assert ast.dump(doc.from_doc(source.as_ast())) == ast.dump(doc.from_doc(theirs))


def test_a_version_that_has_nothing_to_patch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(ScriptMacro, "_find_parser_def")
    monkeypatch.setattr(Parser, "eval_expr", None)
    with caplog.at_level(logging.WARNING):
        tvm_patches.apply.__wrapped__()
    assert Parser.eval_expr is None, "some need others"
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
    assert done.stdout.strip() == "mlc_llm.kernels.expressions"
