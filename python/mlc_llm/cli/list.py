"""`mlc_llm list`: show the models in the cache, and what was made of them."""

from __future__ import annotations

import argparse
import sys

from mlc_llm.cli.cache_table import as_json, as_table, of_models, things
from mlc_llm.cli.guard import OK
from mlc_llm.support.files import cache_root


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("names", nargs="*", metavar="NAME", help="only what belongs to this model")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the list. Raises `UserError` for an unknown name."""
    root = cache_root()
    found = things(root)
    if args.names:
        found = of_models(found, args.names)
    if args.json:
        sys.stdout.write(as_json(root, "entries", found))
    else:
        sys.stdout.write(as_table(root, "in", found) if found else f"no models in {root}\n")
    return OK
