"""The entry of the `mlc_llm` command. It imports very little, so that it soon handles Ctrl-C."""

from __future__ import annotations

import os
import sys

from mlc_llm.support.garbage import NoCollection
from mlc_llm.support.leaving import ignore_interrupts, leave_on_interrupt

TYPE_CHECKING = False  # `typing` takes as long to load as the rest of this file
if TYPE_CHECKING:
    from collections.abc import Sequence


def program() -> int:
    """`main` as a process: Ctrl-C ends it at once, at any place.

    While an answer streams, the first Ctrl-C ends only the answer (`interrupt.py`).
    """
    leave_on_interrupt()
    from mlc_llm.cli.streams import occupy_closed_streams

    try:
        occupy_closed_streams()
        return main()
    finally:
        ignore_interrupts()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code (`guard.EXIT_CODES` lists them).

    Raises SystemExit for `--help`, `--version` and wrong usage, like argparse.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    # NumPy's threads would use the cores at the start. We multiply no matrices with it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # One prompt needs no threads, and without them the library cannot fail to start one.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with NoCollection():  # a command that opens a model ends it before the first answer
        from mlc_llm.cli.guard import guarded

        return guarded(lambda: _run(words), debug="--debug" in words)


def _run(words: Sequence[str]) -> int:
    from mlc_llm.cli.parser import build_parser
    from mlc_llm.cli.streams import check_output
    from mlc_llm.support.logging import set_up

    args = build_parser(words[:1]).parse_command(words)
    set_up(debug=args.debug)
    check_output()
    return int(args.run(args))


if __name__ == "__main__":
    sys.exit(program())
