"""A program that changes bytes until a parser fails with anything but one line of ours. It follows
which code of the parser runs (atheris, on libFuzzer). `test_parsers.py` gives it whole files.

    TMPDIR=/dev/shm python tests/fuzz/parser_fuzzer.py gguf SEEDS -max_total_time=3600

It leaves a folder in TMPDIR, because libFuzzer ends the process itself.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["mlc_llm"]):
    from parser_targets import TARGETS, read_or_refuse


def main() -> None:
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, lambda data: read_or_refuse(target, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
