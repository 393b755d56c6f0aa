"""How many threads compute: the usable cores, or what the user says."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
import tvm

from mlc_llm.backends.cpu import codegen, threads
from mlc_llm.backends.cpu.built_kernels import BuiltKernels
from mlc_llm.backends.cpu.isa import PORTABLE
from mlc_llm.backends.cpu.target import target_for
from mlc_llm.errors import InvalidField
from mlc_llm.kernels.cpu.rows import take_rows

VARIABLES = ("MLC_NUM_THREADS", "TVM_NUM_THREADS", "TVM_BIND_THREADS", "TVM_THREAD_POOL_SPIN_COUNT")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable set, 8 cores; all is put back afterwards."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that what the code sets is taken back
        monkeypatch.delenv(name)
    monkeypatch.setattr(threads, "usable_cores", lambda: 8)


def test_tvm_is_told_of_the_cores_that_may_be_used() -> None:
    assert threads.configure_threads() == 8
    assert (os.environ["TVM_NUM_THREADS"], os.environ["TVM_BIND_THREADS"]) == ("8", "0")
    assert os.environ["TVM_THREAD_POOL_SPIN_COUNT"] == str(threads.SPINS)


def test_what_the_user_set_for_tvm_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "5")
    monkeypatch.setenv("TVM_BIND_THREADS", "1")
    assert threads.configure_threads() == 5
    assert os.environ["TVM_BIND_THREADS"] == "1"


def test_the_variable(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("MLC_NUM_THREADS", "4")
    with caplog.at_level(logging.WARNING):
        assert threads.configure_threads() == 4
    assert not caplog.records


def test_more_threads_than_cores_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLC_NUM_THREADS", "9")
    with caplog.at_level(logging.WARNING):
        assert threads.configure_threads() == 9
    assert "MLC_NUM_THREADS=9, but only 8 cores" in caplog.text


@pytest.mark.parametrize("name", ["MLC_NUM_THREADS", "TVM_NUM_THREADS"])
@pytest.mark.parametrize("text", ["0", "-1", "two", "", " ", "1.5", "99999", "²", "1e3"])
def test_bad_numbers_are_refused(monkeypatch: pytest.MonkeyPatch, text: str, name: str) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(InvalidField, match=f"{name}.*1 to 1024"):
        threads.configure_threads()


def test_compiling_leaves_open_how_many_compute(tmp_path: Path) -> None:
    """A library that two ranks will share may be compiled before them, in the same environment."""
    kernel = take_rows(8).with_attr("global_symbol", "take")
    module = tvm.IRModule({"take": kernel})
    assert threads.compiling_threads() == 8
    nothing = BuiltKernels(None)
    (file,) = codegen.compile_kernels(module, target_for(PORTABLE), tmp_path, (), nothing)
    assert (tmp_path / file).stat().st_size
    assert not any(name in os.environ for name in VARIABLES)
    assert threads.configure_threads(ranks=2) == 4


def test_as_many_compile_as_may_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLC_NUM_THREADS", "3")
    assert threads.compiling_threads() == 3
    monkeypatch.setenv("TVM_NUM_THREADS", "2")
    assert threads.compiling_threads() == 2
