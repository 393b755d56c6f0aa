"""`mlc_llm pull`: download a model now, or its newest version."""

from __future__ import annotations

import argparse
import json
import sys

from mlc_llm.cli.amounts import size_words
from mlc_llm.cli.guard import OK
from mlc_llm.errors import UserError
from mlc_llm.support.cached import bytes_in
from mlc_llm.support.gguf_parts import same_model
from mlc_llm.support.hub_address import FORMS, meant_address
from mlc_llm.support.model_source import ModelSource, fetched, resolve_model
from mlc_llm.support.progress import set_quiet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help=f"{FORMS} (default: the default model)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="print nothing")


def run(args: argparse.Namespace) -> int:
    """Download and print where the model lies. Raises what `resolve_model` raises."""
    set_quiet(args.quiet)
    if args.model is not None and "://" not in args.model:
        meant = meant_address(args.model)
        hint = f"did you mean {meant}?" if meant else f"give {FORMS}"
        raise UserError(f"{args.model!r} cannot be downloaded; {hint}")
    source = resolve_model(None) if args.model is None else fetched(args.model, renew=True)
    if args.json:
        sys.stdout.write(json.dumps(_values(source), indent=2) + "\n")
    elif not args.quiet:
        sys.stdout.write(f"{source.name}: {size_words(_size(source))} in {source.path}\n")
    return OK


def _values(source: ModelSource) -> dict[str, str | int]:
    return {"model": source.name, "path": str(source.path), "bytes": _size(source)}


def _size(source: ModelSource) -> int:
    """Bytes of the model's folder, or of its file with the other parts of a split one."""
    if source.kind == "folder":
        return bytes_in(source.path)
    beside = source.path.parent.iterdir()
    return sum(bytes_in(one) for one in beside if same_model(one.name, source.path.name))
