"""Entry of the `mlc_llm` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mlc_llm.cli.guard import guarded
from mlc_llm.cli.parser import build_parser
from mlc_llm.support.logging import set_up


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (`guard.EXIT_CODES` lists them).

    Raises SystemExit for `--help`, `--version` and wrong usage, as argparse does.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    return guarded(lambda: _run(words), debug="--debug" in words)


def _run(words: Sequence[str]) -> int:
    args = build_parser(words[:1]).parse_args(words)
    set_up(debug=args.debug)
    return int(args.run(args))


if __name__ == "__main__":
    sys.exit(main())
