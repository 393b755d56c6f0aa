"""`mlc_llm generate`: answer one prompt, streaming, and stop."""

from __future__ import annotations

import argparse
import sys

from mlc_llm.cli import options
from mlc_llm.cli.guard import INTERRUPTED, OK
from mlc_llm.cli.session import Answer, Session, open_session
from mlc_llm.cli.terminal import Output, checked_argument, note, read_all
from mlc_llm.errors import UserError
from mlc_llm.support.progress import set_quiet

MAX_PROMPT_BYTES = 64 * 2**20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "prompt",
        nargs="?",
        metavar="PROMPT",
        help="the question; '-' or nothing reads standard input",
    )
    options.add_model(parser)
    parser.add_argument(
        "--raw",
        action="store_true",
        help="continue PROMPT itself, without the chat template; control tokens in it count",
    )
    options.add_sampling(parser)
    group = parser.add_argument_group("output")
    group.add_argument(
        "--json", action="store_true", help="print one JSON object at the end instead of streaming"
    )
    group.add_argument("--stats", action="store_true", help="print speed to standard error")
    group.add_argument("--quiet", action="store_true", help="no progress and no notes")


def run(args: argparse.Namespace) -> int:
    """Everything that can be wrong with the arguments is said before the model is opened."""
    set_quiet(args.quiet)
    config = options.generation_config(args)
    if args.raw and args.system is not None:
        raise UserError("--system has no place in a --raw prompt; leave one of the two out")
    prompt = _prompt(args.prompt)
    output = Output()
    session = open_session(args.model, args.device)
    ids = _ids(session, prompt, args)
    answer = session.answer(
        ids,
        options.completed(config, session.model.defaults),
        on_text=_ignore if args.json else output.write,
    )
    if args.json:
        output.write(answer.asjson())
    output.end_line()
    _say_more(answer, session, args)
    return INTERRUPTED if answer.finish_reason == "abort" else OK


def _prompt(given: str | None) -> str:
    if given is not None and given != "-":
        prompt = checked_argument(given)
    elif given is None and sys.stdin.isatty():
        raise UserError('there is no prompt; give one: mlc_llm generate "Why is the sky blue?"')
    else:
        prompt = read_all(sys.stdin.buffer, MAX_PROMPT_BYTES)
    if not prompt.strip():
        raise UserError("the prompt is empty; give some text")
    return prompt


def _ids(session: Session, prompt: str, args: argparse.Namespace) -> list[int]:
    if args.raw:
        return session.raw_ids(prompt)
    messages = [{"role": "user", "content": prompt}]
    if args.system is not None:
        messages.insert(0, {"role": "system", "content": checked_argument(args.system)})
    return session.chat_ids(messages)


def _say_more(answer: Answer, session: Session, args: argparse.Namespace) -> None:
    if args.quiet:
        return
    if answer.finish_reason == "length" and not args.json:
        note(f"[{session.why_cut(answer)}]")
    if args.stats:
        note(f"[{answer.stats()}]")


def _ignore(text: str) -> None:
    pass
