"""What a model costs beside its speed: seconds to compile it, and memory to serve it.

    python benchmarks/footprint.py --folder FOLDER [--models qwen3-0.6b ...] [--streams 8]

Models that are missing are made in FOLDER. Compiling is timed from an empty folder, packing of
weights apart from it. Memory is that of a process (resident, mapped files included) that opens the
model and serves some streams of 128 + 64 tokens; it finds the library and the packed weights.
"Serving" is the median of all steps, "peak" the most at once (VmHWM), in a prompt's step. The aims:
20 s, and while serving 1.25 times the file, and the keys and values of these tokens.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from common import print_configuration
from compared_models import ALL_MODELS, model_file
from ours import versions
from ours_side import Ours

DEPTH, TOKENS = 128, 64
MOST_COMPILE_S = 20.0
MOST_FILES = 1.25
MB = 1e6
COLUMNS = (
    *("model", "compile, s", "of the processor, s", "≤ 20"),
    *("file, MB", "KV", "open", "serving", "peak", "bound", "within"),
)


def compile_seconds(model: Path) -> tuple[float, float]:
    """Of compiling a library: by the clock, and of the processor."""
    command = [sys.executable, __file__, "--compile", str(model)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    wall, processor = json.loads(done.stdout.splitlines()[-1])
    return wall, processor


def compile_here(model: Path) -> tuple[float, float]:
    """`compile_seconds` in this process, which loads the compiler first."""
    import tvm.relax  # noqa: F401

    from mlc_llm.backends.registry import choose_backend
    from mlc_llm.compiler.build import build_library
    from mlc_llm.loader.gguf import GGUFFile
    from mlc_llm.models.registry import read_gguf

    file = GGUFFile.open(model)
    spec = read_gguf(file.metadata, file.tensors).spec
    with tempfile.TemporaryDirectory() as folder:
        wall, processor = time.perf_counter(), time.process_time()
        build_library(spec, choose_backend(), Path(folder))
        return time.perf_counter() - wall, time.process_time() - processor


def memory(model: Path, streams: int) -> tuple[int, int, int, int]:
    """Bytes of a process that serves it: when it is open, while it serves, the most at once, and
    the keys and values among them."""
    ours = Ours(threads=2)
    ours.prepare(model)
    with closing(ours.open(model)) as session:
        opened = session.ask({"do": "serve", "streams": 0, "depth": DEPTH, "tokens": TOKENS})
        served = session.ask({"do": "serve", "streams": streams, "depth": DEPTH, "tokens": TOKENS})
    return opened["rss"], served["rss"], served["peak"], served["kv"]


def rows(names: Sequence[str], folder: Path, streams: int) -> Iterator[tuple[object, ...]]:
    quantize = folder.parent / "build" / "bin" / "llama-quantize"
    for name in names:
        path = model_file(name, folder, quantize if quantize.exists() else None)
        wall, processor = compile_seconds(path)
        opened, serving, peak, kv = memory(path, streams)
        size = path.stat().st_size
        most = MOST_FILES * size + kv
        yield (
            name, f"{wall:.1f}", f"{processor:.1f}", "yes" if wall <= MOST_COMPILE_S else "no",
            *(f"{one / MB:.0f}" for one in (size, kv, opened, serving, peak, most)),
            "yes" if serving <= most else "no",
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, help="where made models lie")
    parser.add_argument("--models", nargs="+", choices=ALL_MODELS, default=ALL_MODELS)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--compile", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.compile is not None:
        print(json.dumps(compile_here(arguments.compile)))
        return
    if arguments.folder is None:
        parser.error("--folder is needed")
    print_configuration("compiling and memory", streams=arguments.streams, **versions())
    print(f"| {' | '.join(COLUMNS)} |")
    print("|---" * len(COLUMNS) + "|")
    for row in rows(arguments.models, arguments.folder, arguments.streams):
        print(f"| {' | '.join(map(str, row))} |", flush=True)


if __name__ == "__main__":
    main()
