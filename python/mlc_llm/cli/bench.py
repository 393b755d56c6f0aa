"""`mlc_llm bench`: measure a server of OpenAI's API."""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from mlc_llm.cli.guard import OK
from mlc_llm.cli.remote import key_of
from mlc_llm.cli.terminal import Output, note
from mlc_llm.errors import MLCError, UserError

if TYPE_CHECKING:
    from mlc_llm.bench.client import Target
    from mlc_llm.bench.figures import Point
    from mlc_llm.bench.workload import Workload

MOST = 1 << 20
MOST_CLIENTS = 4096
SOME_FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--url", required=True, help="the server, such as http://127.0.0.1:8000")
    parser.add_argument("--api-key", metavar="KEY", help="its key (default: as for chat --url)")
    parser.add_argument("--model", metavar="NAME", help="a name of the server (default: its first)")
    group = parser.add_argument_group("load")
    load = group.add_mutually_exclusive_group()
    load.add_argument(
        "--concurrency",
        metavar="LIST",
        help="so many clients at a time, each waiting for its answer: 1,8,32 (default: 1,4,16)",
    )
    load.add_argument(
        "--rate", metavar="LIST", help="so many requests a second, at random times: 0.5,1,2"
    )
    group.add_argument(
        "--requests", type=int, default=64, metavar="N", help="at each point (default: %(default)s)"
    )
    group.add_argument(
        "--warm-up", type=int, default=1, metavar="N",
        help="requests before the first point, which do not count (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--timeout", type=float, default=600.0, metavar="S",
        help="a request that takes longer is an error (default: %(default)s)",
    )  # fmt: skip
    _add_texts(parser.add_argument_group("requests"))
    out = parser.add_argument_group("output")
    out.add_argument("--csv", type=Path, metavar="FILE", help="all figures, one line a point")
    out.add_argument("--plot", type=Path, metavar="FILE", help="a plot, as SVG")


def _add_texts(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--prompt-words", default="128", metavar="N",
        help="random words of a prompt: a number, or a range as 16-512 (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--answer-tokens", default="64", metavar="N",
        help="the most tokens of an answer: a number, or a range (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--shared-words", type=int, default=0, metavar="N",
        help="so many words at the beginning are the same in all prompts (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--ignore-eos", action="store_true",
        help="answers have all their tokens (servers of this program with --enable-debug; others "
        "may ignore or refuse it)",
    )  # fmt: skip
    group.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        metavar="T",
        help="0: always the likeliest token (default: %(default)s)",
    )
    group.add_argument(
        "--seed", type=int, default=0, metavar="N",
        help="of prompts, lengths and times: the same seed asks the same (default: %(default)s)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Measure each point, and show the table. Exit code 1 if a request failed."""
    loads = _loads(args)
    work = _workload(args)
    for flag, path in (("--csv", args.csv), ("--plot", args.plot)):
        if path is not None:
            _check_output(flag, path)
    target = _target(args)
    note(f"{target.model} at {args.url}: times are measured on this side, network included")
    points = asyncio.run(_measure(target, work, loads, args))
    from mlc_llm.bench.report import csv_text, svg, table

    output = Output()
    output.write(table(points))
    output.end_line()
    if args.csv is not None:
        args.csv.write_text(csv_text(points), encoding="utf-8")
    if args.plot is not None:
        args.plot.write_text(svg(points, f"{target.model} at {args.url}"), encoding="utf-8")
    return SOME_FAILED if any(point.errors for point in points) else OK


def _check_output(flag: str, path: Path) -> None:
    """Raises `UserError` if no file can be written there: a measurement takes long."""
    if path.is_dir():
        raise UserError(f"{flag} {path}: is a folder, should be a file")
    if path.exists() and not os.access(path, os.W_OK):
        raise UserError(f"{flag} {path}: the file cannot be written")
    if not path.exists() and not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise UserError(f"{flag} {path}: the folder cannot be written")


async def _measure(
    target: Target, work: Workload, loads: list[float], args: argparse.Namespace
) -> list[Point]:
    from mlc_llm.bench.client import send
    from mlc_llm.bench.run import at_concurrency, at_rate
    from mlc_llm.bench.workload import requests_of

    for wanted, _ in zip(requests_of(work, -1), range(args.warm_up), strict=False):
        first = await send(target, wanted.prompt, wanted.answer_tokens)
        if first.error is not None:
            why = f"{first.error}: {first.said}" if first.said else first.error
            raise MLCError(f"{args.url}: the first request failed: {why}")
    points = []
    for number, load in enumerate(loads):
        if args.rate is not None:
            points.append(await at_rate(target, work, load, number))
        else:
            points.append(await at_concurrency(target, work, int(load), number))
        done = points[-1]
        note(f"{done.load} {load:g}: {work.requests} requests in {done.seconds:.1f} s")
    return points


def _target(args: argparse.Namespace) -> Target:
    """The server, after a look at its models. Raises `MLCError`."""
    from mlc_llm.bench.client import Target
    from mlc_llm.cli.remote_session import open_remote

    key = key_of(args.api_key)
    session = open_remote(args.url, key, args.model)
    address = session.server.address
    fixed: list[tuple[str, object]] = [("temperature", args.temperature)]
    if args.ignore_eos:
        fixed.append(("debug_config", {"ignore_eos": True}))
    return Target(
        host=address.host,
        port=address.port or (443 if address.secure else 80),
        path=address.path,
        secure=address.secure,
        model=session.model,
        headers=() if key is None else (("Authorization", f"Bearer {key}"),),
        fixed=tuple(fixed),
        timeout_s=args.timeout,
    )


def _workload(args: argparse.Namespace) -> Workload:
    from mlc_llm.bench.workload import Workload

    for flag, value, least in (
        ("--requests", args.requests, 1),
        ("--warm-up", args.warm_up, 0),
        ("--shared-words", args.shared_words, 0),
    ):
        if not least <= value <= MOST:
            raise UserError(f"{flag} {value}: should be {least} to {MOST}")
    if not args.timeout > 0:
        raise UserError(f"--timeout {args.timeout:g}: should be above 0")
    prompt = _range("--prompt-words", args.prompt_words)
    if args.shared_words >= prompt[0] and args.shared_words:
        words = f"should be less than the {prompt[0]} words of the shortest prompt"
        raise UserError(f"--shared-words {args.shared_words}: {words}")
    return Workload(
        args.requests, prompt, _range("--answer-tokens", args.answer_tokens),
        args.shared_words, args.seed,
    )  # fmt: skip


def _loads(args: argparse.Namespace) -> list[float]:
    flag = "--concurrency" if args.rate is None else "--rate"
    text = args.rate or args.concurrency or "1,4,16"
    words = f"{flag} {text}: should be "
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        raise UserError(words + "numbers with commas between them") from None
    if args.rate is None:
        if not all(one.is_integer() and 1 <= one <= MOST_CLIENTS for one in found):
            raise UserError(words + f"whole numbers from 1 to {MOST_CLIENTS}")
    elif not all(1e-3 <= one <= 1e5 for one in found):
        raise UserError(words + "numbers from 0.001 to 100000")
    return found


def _range(flag: str, text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    try:
        found = int(first), int(last if dash else first)
    except ValueError:
        raise UserError(f"{flag} {text}: should be a number, or a range as 16-512") from None
    if not 1 <= found[0] <= found[1] <= MOST:
        raise UserError(f"{flag} {text}: should be 1 to {MOST}, the lesser number first")
    return found
