"""A forked process: its own engine works, and so does an inherited one that was not in use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.usefixtures("tiny"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork"),
]

START = """
import multiprocessing, os, sys, threading
from mlc_llm.json_ffi import JSONFFIEngine
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.data import TextData
from mlc_llm.serve.sync_engine import SyncMLCEngine
model = sys.argv[1]
def answer(engine=None):
    engine = engine or SyncMLCEngine(model, "cpu")
    return engine.generate("The cat", GenerationConfig(temperature=0, max_tokens=4))[0][0][0]
def in_child(work):
    child = os.fork()
    if child == 0:
        print(work(), flush=True)
        sys.exit(7)  # with all that a program does at its end
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""


def lines_of(code: str, model: Path) -> list[str]:
    """What a program printed. It has to end, and its children too."""
    done = subprocess.run(
        # -u: a child would print what its parent has not written out yet once more
        [sys.executable, "-u", "-c", START + code, str(model)],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.one_of(2)
@pytest.mark.parametrize("engine", ["None", "engine"])
def test_after_the_parent_has_generated(tiny: Path, engine: str) -> None:
    code = f"""
import time
engine = SyncMLCEngine(model, "cpu")
expected = answer(engine)
time.sleep(0.3)  # so that idle workers sleep: a fork copies the condition that they wait for
in_child(lambda: answer({engine}) == expected)
print(answer(engine) == expected)
"""
    assert lines_of(code, tiny) == ["True", "True"]


@pytest.mark.slow
def test_in_a_pool_and_in_a_child_of_a_child(tiny: Path) -> None:
    code = """
expected = answer()
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(answer, [None, None]) == [expected] * 2)
in_child(lambda: answer() == expected and in_child(answer) is None)
"""
    first, inner, outer = lines_of(code, tiny)
    assert (first, outer) == ("True", "True") and inner


def test_after_a_parent_that_used_threads_only(tiny: Path) -> None:
    code = """
threaded = JSONFFIEngine(model, "cpu")
hello = [{"role": "user", "content": "hello"}]
list(threaded.chat.completions.create(messages=hello, max_tokens=3))
in_child(lambda: bool(answer()))
threaded.terminate()
"""
    assert lines_of(code, tiny) == ["True"]


def test_while_another_thread_steps(tiny: Path) -> None:
    code = """
engine = SyncMLCEngine(model, "cpu")
expected = answer(engine)
inside, forked = threading.Event(), threading.Event()
def callback(outputs):
    inside.set()
    forked.wait()
engine._ffi["set_request_stream_callback"](callback)
config = GenerationConfig(max_tokens=1)
engine.add_request(engine.create_request("a", TextData("x"), config))
thread = threading.Thread(target=engine.step)
thread.start()
inside.wait()
def work():
    try:
        engine.step()
    except Exception as error:
        print(type(error).__name__, error)
    return answer() == expected
in_child(work)
forked.set()
thread.join()
"""
    error, works = lines_of(code, tiny)
    assert error.startswith("MLCError this engine belongs to process") and works == "True"
    assert error.endswith("cannot be used in a forked one; make the engine after the fork")


def test_no_thread_outlives_the_engines(tiny: Path) -> None:
    code = """
import gc, time
answer()
gc.collect()
for _ in range(6):
    engine = JSONFFIEngine(model, "cpu")
    hello = [{"role": "user", "content": "hello"}]
    list(engine.chat.completions.create(messages=hello, max_tokens=3))
    engine.terminate()
    del engine
    answer()
    gc.collect()
latest = time.monotonic() + 20
while "mlc-" in str(threading.enumerate()) and time.monotonic() < latest:
    time.sleep(0.01)
print(*(thread.name for thread in threading.enumerate()), sep=",")
"""
    (line,) = lines_of(code, tiny)
    assert line == "MainThread"
