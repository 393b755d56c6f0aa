"""A program ends as it says, whatever its daemon threads do in an engine at that time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from threaded_harness import watched

from mlc_llm.serve.sync_engine import SyncMLCEngine
from mlc_llm.testing.tiny_model import write_tiny_model

START = """
import sys, threading
from mlc_llm.protocol.generation_config import GenerationConfig
model = sys.argv[1]
is_under_way = threading.Event()
def for_ever(work):
    def run():
        while True:
            try:
                work()
            except Exception:
                pass
    threading.Thread(target=run, daemon=True).start()
"""
STREAMS = """
from mlc_llm.json_ffi import JSONFFIEngine
engine = JSONFFIEngine(model, "cpu")
hello = [{"role": "user", "content": "hello"}]
def read():
    for chunk in engine.chat.completions.create(messages=hello, max_tokens=9):
        is_under_way.set()
for _ in range(4):
    for_ever(read)
"""
GENERATE = """
from mlc_llm.serve.sync_engine import SyncMLCEngine
engine = SyncMLCEngine(model, "cpu")
def generate():
    engine.generate("hello", GenerationConfig(max_tokens=9))
    is_under_way.set()
for_ever(generate)
"""
OWN_LOOPS = """
import json
from mlc_llm.serve.threaded_engine import ThreadedEngine
engine = ThreadedEngine.Create()
engine.init_threaded_engine("cpu", lambda outputs: is_under_way.set())
for loop in (engine.run_background_loop, engine.run_background_stream_back_loop):
    threading.Thread(target=loop, daemon=True).start()
engine.reload(json.dumps({"model": model}))
engine.add_request(engine.create_request("a", "hello", '{"max_tokens": 4000}'))
"""
BLOCKED_CALLBACK = """
from mlc_llm.serve import engine_calls
engine_calls.CALLBACK_SECONDS = 0.1
from mlc_llm.serve.threaded_engine import ThreadedEngine
engine = ThreadedEngine.Create()
def callback(outputs):
    is_under_way.set()
    threading.Event().wait()
engine.init_threaded_engine("cpu", callback)
for loop in (engine.run_background_loop, engine.run_background_stream_back_loop):
    threading.Thread(target=loop, daemon=True).start()
engine.reload('{"model": "mock://echo"}')
engine.add_request(engine.create_request("a", "hello", "{}"))
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLC_LLM_HOME", str(tmp_path_factory.mktemp("cache")))
        model = write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
        SyncMLCEngine(str(model), "cpu")  # compiles it for the programs
        yield model


@pytest.mark.one_of(3)
@pytest.mark.parametrize("code", [STREAMS, GENERATE, OWN_LOOPS], ids=["streams", "sync", "loops"])
def test_with_daemon_threads_in_an_engine(
    code: str, tiny: Path, pytestconfig: pytest.Config
) -> None:
    with watched(pytestconfig, 400):
        for _ in range(3):  # most, but not all, of these ended with SIGABRT
            assert end_of(code, tiny) == 5


def test_a_callback_that_never_returns_does_not_keep_the_program(tmp_path: Path) -> None:
    assert end_of(BLOCKED_CALLBACK, tmp_path) == 5


def end_of(code: str, model: Path) -> int:
    """The exit status of a program that leaves when the engine is at work."""
    code = START + code + "is_under_way.wait()\nsys.exit(5)\n"
    return subprocess.run(
        [sys.executable, "-c", code, str(model)], capture_output=True, timeout=120, check=False
    ).returncode
