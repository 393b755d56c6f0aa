"""Time from the command to the first byte of the answer, whole process included.

    python benchmarks/startup.py [--model FILE.gguf] [--prompt TEXT] [--runs N]

The first run has no compiled model in its cache (but the model file itself); the later runs find
what it compiled. Each run is `mlc_llm generate` in a fresh process.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from common import Spread, model_path, print_configuration
from ours import versions

TOKENS = 16


def first_byte(
    model: Path,
    prompt: str,
    home: str,
    *,
    tokens: int = TOKENS,
    raw: bool = False,
    more: Mapping[str, str] = {},
) -> tuple[float, float]:
    """Seconds to the first byte of the answer and to the end of the process.

    raw: without the chat template. more: environment variables.
    """
    options = ["--model", str(model), "--temperature", "0", "--max-tokens", str(tokens), "--quiet"]
    options += ["--raw"] if raw else []
    command = [sys.executable, "-m", "mlc_llm", "generate", prompt, *options]
    environment = os.environ | more | {"MLC_LLM_HOME": home}
    # An installed package has its bytecode; here the first start writes it.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    start = time.perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        got = process.stdout.read(1)
        first = time.perf_counter() - start
        process.stdout.read()
    if process.returncode != 0 or not got:
        raise SystemExit(f"mlc_llm generate failed with exit code {process.returncode}")
    return first, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="GGUF file (the default model if not given)")
    parser.add_argument("--prompt", default="Why is the sky blue?")
    parser.add_argument("--runs", type=int, default=5, help="runs after the first")
    arguments = parser.parse_args()
    model = model_path(arguments.model).resolve()
    print_configuration("start", model=model.name, tokens=TOKENS, **versions())
    with tempfile.TemporaryDirectory() as home:
        first, total = first_byte(model, arguments.prompt, home)
        print(f"first run (compiles)    {first:.1f} s to the first byte, {total:.1f} s in all")
        later = [first_byte(model, arguments.prompt, home) for _ in range(arguments.runs)]
    for name, values in zip(("to the first byte", "in all"), zip(*later, strict=True), strict=True):
        print(f"later runs              {Spread.of(values)} s {name}")


if __name__ == "__main__":
    main()
