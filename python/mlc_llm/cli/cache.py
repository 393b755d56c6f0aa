"""`mlc_llm cache list` and `mlc_llm cache clear`: show and remove the files kept for models.

Running engines go on: the files that they have open stay readable until they end.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from mlc_llm.cli.amounts import size_words
from mlc_llm.cli.guard import OK
from mlc_llm.errors import UserError
from mlc_llm.support.cached import MADE_HERE, Entry, entries, remove
from mlc_llm.support.files import cache_root
from mlc_llm.support.progress import set_quiet

_COLUMNS = ("model", "kind", "size", "last use")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("action", metavar="ACTION", choices=("list", "clear"), help="list or clear")
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="only the files of this model, as list names it; clear removes its download too",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="clear: remove downloads too (without --all and NAME, they are kept)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="clear: print nothing")


def run(args: argparse.Namespace) -> int:
    """Print the list, or what was removed. Raises `UserError` for an unknown name."""
    _refuse_contradictions(args)
    set_quiet(args.quiet)
    root = cache_root()
    found = [one for one in _entries(root) if one.kind != "other"]
    if args.name is not None:
        found = _of_model(found, args.name)
    if args.action == "clear":
        if args.name is None and not args.all:
            found = [one for one in found if one.kind in MADE_HERE]
        for one in found:
            remove(one)
    if not (args.quiet and args.action == "clear"):
        sys.stdout.write(_report(args, root, found))
    return OK


def _refuse_contradictions(args: argparse.Namespace) -> None:
    if args.all and args.action != "clear":
        raise UserError("--all goes with clear; list shows everything")
    if args.all and args.name is not None:
        raise UserError("--all and NAME exclude each other; leave one out")


def _entries(root: Path) -> list[Entry]:
    return entries(root) if root.is_dir() else []


def _of_model(found: Sequence[Entry], name: str) -> list[Entry]:
    """The entries of a model. It may be named by its file, without the ending, or by a path."""
    names = {name, f"{name}.gguf", Path(name).name}
    chosen = [one for one in found if one.model in names]
    if not chosen:
        raise UserError(f"the cache has nothing of {name!r}; mlc_llm cache list shows what it has")
    return chosen


def _report(args: argparse.Namespace, root: Path, found: Sequence[Entry]) -> str:
    total = sum(one.size for one in found)
    if args.json:
        key = "removed" if args.action == "clear" else "entries"
        values = {"folder": str(root), key: [_values(one) for one in found], "bytes": total}
        return json.dumps(values, indent=2) + "\n"
    if not found:
        return f"nothing to {args.action} in {root}\n"
    done = "removed from" if args.action == "clear" else "in"
    lines = [*_table(found), "", f"{size_words(total)} {done} {root}"]
    return "\n".join(lines) + "\n"


def _table(found: Sequence[Entry]) -> list[str]:
    rows = [_COLUMNS, *(_row(one) for one in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    return [
        "  ".join(
            text.rjust(width) if name == "size" else text.ljust(width)
            for text, width, name in zip(row, widths, _COLUMNS, strict=True)
        ).rstrip()
        for row in rows
    ]


def _row(one: Entry) -> tuple[str, ...]:
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.last_use))
    return (_printable(one.model), one.kind, size_words(one.size), used)


def _values(one: Entry) -> dict[str, str | int]:
    """The values for JSON. `last_use` is in seconds since 1970."""
    return {
        "model": one.model,
        "kind": one.kind,
        "path": str(one.path),
        "bytes": one.size,
        "last_use": int(one.last_use),
    }


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
