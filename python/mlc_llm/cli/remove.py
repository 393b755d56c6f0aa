"""`mlc_llm remove`: remove files that the cache keeps for models.

Running engines go on: the files that they have open stay readable until they end.
"""

from __future__ import annotations

import argparse
import sys

from mlc_llm.cli.cache_table import as_json, as_table, of_models, things
from mlc_llm.cli.guard import OK
from mlc_llm.errors import UserError
from mlc_llm.support.cached import MADE_HERE, Entry, remove
from mlc_llm.support.files import cache_root


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="a model, as mlc_llm list names it: its download and everything made of it",
    )
    parser.add_argument(
        "--made",
        action="store_true",
        help="what was made here of all models; downloads stay",
    )
    parser.add_argument("--all", action="store_true", help="everything, downloads too")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="print nothing")


def run(args: argparse.Namespace) -> int:
    """Remove files and print which. Raises `UserError` for an unknown name."""
    if bool(args.names) + args.made + args.all != 1:
        raise UserError("say what to remove: NAME, --made or --all, one of them")
    root = cache_root()
    found = _chosen(args, things(root))
    for one in found:
        remove(one)
    if args.json:
        sys.stdout.write(as_json(root, "removed", found))
    elif not args.quiet:
        said = as_table(root, "removed from", found)
        sys.stdout.write(said if found else f"nothing to remove in {root}\n")
    return OK


def _chosen(args: argparse.Namespace, found: list[Entry]) -> list[Entry]:
    if args.names:
        return of_models(found, args.names)
    return found if args.all else [one for one in found if one.kind in MADE_HERE]
