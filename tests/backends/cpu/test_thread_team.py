"""A team of threads computes what TVM's pool computes, whatever happens to it."""

from __future__ import annotations

import os
import platform
import re
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
import tvm_ffi_orcjit
from tvm.script import tirx as T

from mlc_llm.backends.cpu.isa import ISAS
from mlc_llm.backends.cpu.target import target_for
from mlc_llm.backends.cpu.team_code import compile_text, source_for
from mlc_llm.backends.cpu.thread_team import MOST_MEMBERS, ThreadTeam
from mlc_llm.backends.cpu.threads import configure_threads
from mlc_llm.kernels.cpu.launches import all_meet, one_launch
from mlc_llm.support.machine import usable_cores

SIZE, MEETINGS = 64, 6
ALL = 0
"""Number of members that stands for all."""


@T.prim_func(s_tir=True)
def turned(a: T.Buffer((2, SIZE), "int32")):
    """Adds one and turns the row around, six times, in one launch."""
    T.func_attr({"global_symbol": "turned"})
    with one_launch():
        for _turn in T.serial(MEETINGS):
            with all_meet():
                for i in T.parallel(SIZE):
                    a[1, i] = a[0, SIZE - 1 - i] + 1
            with all_meet():
                for i in T.parallel(SIZE):
                    a[0, i] = a[1, i]


def linked(folder: Path, change: Callable[[str], str] = str) -> tvm_ffi.Module:
    """A module with that kernel and a team, whose text may be changed."""
    configure_threads()
    target = target_for(ISAS["portable"])
    tvm.tirx.build(turned, target=target).write_to_file(str(folder / "kernel.o"))
    text = change(source_for(platform.machine()))
    compile_text(text, target, folder / "team.o")
    session = tvm_ffi_orcjit.ExecutionSession(orc_rt=None)
    objects = [str(folder / name) for name in ("kernel.o", "team.o")]
    return session.load_module(objects, cxx=os.devnull)


@pytest.fixture
def module(tmp_path: Path) -> tvm_ffi.Module:
    return linked(tmp_path)


def check(function: Callable[..., Any], times: int = 100) -> None:
    """Compares with NumPy."""
    given = np.arange(2 * SIZE, dtype=np.int32).reshape(2, SIZE)
    tensor = tvm.runtime.tensor(given)
    expected = given[0]
    for _ in range(times):
        function(tensor)
        for _ in range(MEETINGS):
            expected = expected[::-1] + 1
    assert tensor.numpy()[0].tolist() == expected.tolist()


def test_a_team_computes_what_the_pool_computes(module: tvm_ffi.Module) -> None:
    kernel = module["turned"]
    check(kernel)
    team = ThreadTeam(module, 2)
    check(team.leading(kernel))
    check(kernel)  # without a team, whose place in the module is taken


def test_a_function_of_many_kernels_has_one_team(module: tvm_ffi.Module) -> None:
    kernel = module["turned"]
    many = tvm_ffi.convert(lambda tensor: [kernel(tensor) for _ in range(50)][-1])
    leading, given = ThreadTeam(module, 2).leading(many), np.zeros((2, SIZE), np.int32)
    tensor = tvm.runtime.tensor(given)
    leading(tensor)
    assert tensor.numpy()[0].tolist() == [50 * MEETINGS] * SIZE


def test_launches_are_counted_in_the_middle_of_a_step(module: tvm_ffi.Module) -> None:
    kernel, team = module["turned"], ThreadTeam(module, 2)
    seen: list[int] = []

    def ask() -> None:
        seen.append(team.launches)

    def work(tensor: Any) -> None:
        for _ in range(3):
            kernel(tensor)
            asking = threading.Thread(target=ask)
            asking.start()
            asking.join()

    tensor = tvm.runtime.tensor(np.zeros((2, SIZE), np.int32))
    assert team.launches == 0
    team.leading(tvm_ffi.convert(work))(tensor)
    assert seen == [1, 2, 3] and team.launches >= 3


def test_code_of_an_earlier_version_counts_none(tmp_path: Path) -> None:
    module = linked(tmp_path, lambda text: text.replace("__tvm_ffi_launches", "__tvm_ffi_another"))
    team = ThreadTeam(module, 2)
    check(team.leading(module["turned"]))
    assert team.launches == 0


def test_barriers_count_on_when_their_numbers_run_over(tmp_path: Path) -> None:
    """Each barrier counts by an eighth of all numbers, so some run over in each launch."""

    def faster(text: str) -> str:
        changed = text.replace("%own, i32 1 acq_rel", "%own, i32 536870912 acq_rel")
        assert changed != text
        return changed

    module = linked(tmp_path, faster)
    check(ThreadTeam(module, 2).leading(module["turned"]))


def test_threads_that_are_too_many_stay_with_the_pool(module: tvm_ffi.Module) -> None:
    leading = ThreadTeam(module, MOST_MEMBERS + 1).leading(module["turned"])
    assert not isinstance(leading, partial)
    check(leading)


def test_an_error_ends_the_step_and_the_team_is_free_again(module: tvm_ffi.Module) -> None:
    kernel, team = module["turned"], ThreadTeam(module, 2)

    def fails(*given: object) -> None:
        kernel(tvm.runtime.tensor(np.zeros((2, SIZE), np.int32)))
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        team.leading(tvm_ffi.convert(fails))()
    with pytest.raises(Exception, match="turned"):
        team.leading(kernel)()
    check(team.leading(kernel))


def test_a_function_in_a_function(module: tvm_ffi.Module) -> None:
    kernel, team = module["turned"], ThreadTeam(module, 2)
    inner = team.leading(kernel)
    check(team.leading(tvm_ffi.convert(inner)))


def test_threads_at_the_same_time(module: tvm_ffi.Module) -> None:
    leading = ThreadTeam(module, 2).leading(module["turned"])
    done: list[bool] = []

    def work() -> None:
        check(leading, 300)
        done.append(True)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(done) == 3


def test_a_process_that_forks_during_a_step(module: tvm_ffi.Module) -> None:
    """A thread of the child may have the number of the one that leads in the parent."""
    team = ThreadTeam(module, 2)
    leading = team.leading(module["turned"])
    begun, goes_on = threading.Event(), threading.Event()

    def waits() -> None:
        begun.set()
        goes_on.wait()

    step = threading.Thread(target=team.leading(tvm_ffi.convert(waits)))
    step.start()
    begun.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(_code(leading))
    goes_on.set()
    step.join()
    assert os.waitpid(child, 0)[1] == 0
    check(leading)


@pytest.mark.parametrize(
    ("triple", "clocks"), [("x86_64-pc-linux-gnu", {1, 3}), ("arm64-apple-macosx15.0", {6, 16})]
)
def test_clocks_have_the_numbers_of_the_system(triple: str, clocks: set[int]) -> None:
    """As <time.h> says there: the time that passes, and the time of a thread's core."""
    text = source_for(triple)
    assert {int(one) for one in re.findall(r"call i64 @nanoseconds\(i32 (\d+)\)", text)} == clocks
    assert not re.search(r"\{[a-z_]+\}", text), "all is filled in"


@pytest.mark.timing
@pytest.mark.skipif(usable_cores() < 2, reason="a team has a thread a core")
def test_members_whose_cores_others_have_are_left_out_for_a_while(module: tvm_ffi.Module) -> None:
    """All threads on one core: one of them is as fast as two, which would wait for each other."""
    members, leading = module["members"], ThreadTeam(module, 2).leading(module["turned"])
    until(lambda: members() == ALL, leading)
    usual = os.sched_getaffinity(0)
    try:
        confine({min(usual)})
        until(lambda: members() == 1, leading)
        check(module["turned"])  # outside a step
    finally:
        confine(usual)
    until(lambda: members() == ALL, leading)
    for _ in range(20):
        check(leading)


def until(is_so: Callable[[], bool], leading: Callable[..., Any]) -> None:
    """Goes on computing, up to a minute."""
    end = time.monotonic() + 60
    while not is_so():
        check(leading)
        assert time.monotonic() < end


def confine(cores: set[int]) -> None:
    """All threads of this process."""
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread), cores)


def _code(leading: Callable[..., Any]) -> int:
    """0 if several threads that live at once compute as they should."""
    together, ended = threading.Barrier(4), []

    def work() -> None:
        together.wait()
        check(leading)
        ended.append(True)
        together.wait()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return 0 if len(ended) == 4 else 2
