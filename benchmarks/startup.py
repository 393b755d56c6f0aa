"""Time from the command to the first byte of the answer, whole process included.

    python benchmarks/startup.py [--model FILE.gguf] [--prompt TEXT] [--raw] [--runs N]
        [--against TREE]

The first run has no compiled model in its cache (but the model file itself); the later runs find
what it compiled. Each run is `mlc_llm generate` in a fresh process. Another checkout can be started
in turns with this one, with the same packages.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from common import HERE, Spread, model_path, print_configuration
from ours import versions

TOKENS = 16
NAMES = ("to the first byte", "in all")


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
    parser.add_argument("--prompt", help="a question, or with --raw the beginning of a text")
    parser.add_argument("--runs", type=int, default=5, help="runs after the first")
    parser.add_argument("--raw", action="store_true", help="without the chat template")
    parser.add_argument("--against", type=Path, metavar="TREE", help="another checkout")
    arguments = parser.parse_args()
    prompt = arguments.prompt or ("The sky is" if arguments.raw else "Why is the sky blue?")
    model = model_path(arguments.model).resolve()
    print_configuration("start", model=model.name, tokens=TOKENS, **versions())
    trees = [HERE.parent, *([] if arguments.against is None else [arguments.against.resolve()])]
    with TemporaryDirectory() as homes:

        def start(tree: Path) -> tuple[float, float]:
            home, more = f"{homes}/{trees.index(tree)}", {"PYTHONPATH": str(tree / "python")}
            return first_byte(model, prompt, home, raw=arguments.raw, more=more)

        first = [start(tree) for tree in trees]
        turns = [[start(tree) for tree in trees] for _ in range(arguments.runs)]
    for tree, (byte, total), later in zip(trees, first, zip(*turns, strict=True), strict=True):
        print(tree.name)
        print(f"first run (compiles)    {byte:.1f} s to the first byte, {total:.1f} s in all")
        for name, values in zip(NAMES, zip(*later, strict=True), strict=True):
            print(f"later runs              {Spread.of(values)} s {name}")


if __name__ == "__main__":
    main()
