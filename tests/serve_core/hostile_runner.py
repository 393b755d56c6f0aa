"""Compiles and follows grammars, each in a process of its own whose time and memory are limited.

Run as a script: takes {"formats": {name: format}, "model": path or null} as JSON on its input and
prints one JSON object, a `Run` by name.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

MOST_SECONDS = 5
"""Of processor time, for compiling and a hundred tokens."""
MOST_BYTES = 300 * 2**20
_SPARE_ADDRESSES = 4 * MOST_BYTES
"""Address space is taken in large steps that are never all used."""
_STEPS = 100


@dataclass
class Run:
    """What became of one grammar."""

    said: str = ""
    """Why it was refused or failed; empty when it was followed."""
    is_refused: bool = False
    """Before any token, as the caller's mistake."""
    tokens: int = 0
    seconds: float = 0.0
    worst_step: float = 0.0
    """Seconds of the slowest token: its mask and its acceptance."""
    bytes: int = 0
    """By which the process grew at most."""
    died: str = ""


def measured(formats: Mapping[str, Any], model: str | None = None) -> dict[str, Run]:
    """Run all in a fresh process. `model`: whose vocabulary is used; None is that of the tests."""
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps({"formats": formats, "model": model}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return {name: Run(**values) for name, values in json.loads(done.stdout).items()}


def main() -> None:
    """Everything is imported and warm before the first fork."""
    from grammar_tools import compiler

    given = json.load(sys.stdin)
    made = compiler() if given["model"] is None else _compiler_of(given["model"])
    _follow(made, {"type": "json_object"}, Run())
    print(json.dumps({name: _apart(made, one) for name, one in given["formats"].items()}))


def _compiler_of(model: str) -> Any:
    from mlc_llm.serve.core.grammar.compiler import GrammarCompiler
    from mlc_llm.serve.opening.bundle import open_model

    bundle = open_model(model)
    return GrammarCompiler(bundle.tokenizer, bundle.tokenizer.vocab_size, bundle.stop_token_ids)


def _apart(compiler: Any, value: Any) -> dict[str, Any]:
    """Follow one grammar in a child; what it found, or how it died."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _limit()
        run = Run()
        _follow(compiler, value, run)
        os.write(write, json.dumps(asdict(run)).encode())
        os._exit(0)
    os.close(write)
    with open(read, encoding="utf-8") as pipe:
        text = pipe.read()
    _, status, usage = os.wait4(child, 0)
    if text:
        return json.loads(text)  # type: ignore[no-any-return]
    signal = os.waitstatus_to_exitcode(status)
    return asdict(Run(died=f"ended with {signal}", seconds=usage.ru_utime + usage.ru_stime))


def _limit() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    addresses = pages * resource.getpagesize() + _SPARE_ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (addresses, addresses))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _follow(compiler: Any, value: Any, run: Run) -> None:
    """Compile a grammar and draw tokens under its mask until the text is whole."""
    from mlc_llm.errors import RequestError, UserError
    from mlc_llm.protocol.generation_config import GenerationConfig

    start, memory = time.process_time(), _peak()
    try:
        wanted = GenerationConfig(response_format=value).response_format
        _draw(compiler.compile(wanted).matcher(), run)
    except UserError as error:
        run.said, run.is_refused = str(error), True
    except RequestError as error:
        run.said = str(error)
    run.seconds = time.process_time() - start
    run.bytes = _peak() - memory


def _draw(matcher: Any, run: Run) -> None:
    from grammar_tools import allowed_ids

    rng = np.random.default_rng(1)
    while not matcher.is_finished and run.tokens < _STEPS:
        start = time.process_time()
        token = int(rng.choice(allowed_ids(matcher.mask())))
        if matcher.ends(token):
            return
        matcher.accept(token)
        matcher.forced_tokens()
        run.tokens += 1
        run.worst_step = max(run.worst_step, time.process_time() - start)


def _peak() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    main()
