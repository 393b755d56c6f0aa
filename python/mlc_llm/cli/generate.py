"""`mlc_llm generate`: answer one prompt, as a stream, and stop."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from mlc_llm.cli import options, remote
from mlc_llm.cli.conversation import Message
from mlc_llm.cli.guard import OK
from mlc_llm.cli.opening import open_session
from mlc_llm.cli.shape import KnowsLimits, naming_shape, warnings
from mlc_llm.cli.terminal import Output, checked_argument, is_piped, note, read_input
from mlc_llm.errors import UserError
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.support.garbage import collect_from_now
from mlc_llm.support.leaving import INTERRUPTED, say_interrupted
from mlc_llm.support.progress import set_quiet

if TYPE_CHECKING:
    from mlc_llm.cli.answers import Answer
    from mlc_llm.cli.session import Session

MAX_PROMPT_BYTES = 64 * 2**20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "prompt",
        nargs="?",
        metavar="PROMPT",
        help="the question; text from a pipe is added to it; with '-' or nothing, "
        "standard input is the question",
    )
    options.add_model(parser)
    options.add_engine(parser)
    parser.add_argument(
        "--raw",
        action="store_true",
        help="continue the text of PROMPT without the chat template; names of control tokens in it "
        "are control tokens (with --url the server decides that, and mlc_llm serve takes them as "
        "text)",
    )
    options.add_sampling(parser)
    remote.add_arguments(parser)
    group = parser.add_argument_group("output")
    group.add_argument(
        "--json", action="store_true", help="print one JSON object at the end instead of streaming"
    )
    group.add_argument("--stats", action="store_true", help="print the speed to standard error")
    group.add_argument("--quiet", action="store_true", help="show no progress and no notes")


def run(args: argparse.Namespace) -> int:
    """Answer the prompt. Mistakes in the arguments are reported before the model is opened."""
    set_quiet(args.quiet)
    remote.check(args)
    config = options.generation_config(args)
    if args.raw and args.system is not None:
        raise UserError("--system cannot be used with --raw; leave one of the two out")
    engine, adapter = options.engine_config(args), options.only_adapter(args)
    prompt = _prompt(args.prompt, quiet=args.quiet)
    output = Output()
    on_text = _ignore if args.json else output.write
    session: KnowsLimits
    if args.url is not None:
        session = there = remote.open_session(args)
        if args.raw and not args.quiet:
            remote.note_control_tokens(prompt)
        answer = there.answer(prompt if args.raw else _messages(prompt, args), config, on_text)
    else:
        session = here = open_session(args.model, args.device, engine, adapter, once=True)
        ids = _ids(here, prompt, args)
        collect_from_now()
        config = options.completed(config, here.model.defaults)
        with naming_shape(config):
            answer = here.answer(ids, config, on_text=on_text)
    return _end(answer, session, config, args, output)


def _end(
    answer: Answer,
    session: KnowsLimits,
    config: GenerationConfig,
    args: argparse.Namespace,
    output: Output,
) -> int:
    if args.json:
        output.write(answer.asjson())
    output.end_line()
    if not args.quiet:
        _say_more(answer, session, config, stats=args.stats)
    if answer.finish_reason != "abort":
        return OK
    say_interrupted()
    return INTERRUPTED


def _prompt(given: str | None, *, quiet: bool) -> str:
    """The argument, and after it, on a new line, the text from a pipe or a file."""
    if given is None and not is_piped():
        raise UserError('there is no prompt; give one: mlc_llm generate "Why is the sky blue?"')
    parts = [] if given in (None, "-") else [checked_argument(given or "")]
    if given == "-" or is_piped():
        parts.append(read_input(MAX_PROMPT_BYTES, quiet=quiet))
    prompt = "\n".join(part for part in parts if part.strip())
    if not prompt:
        raise UserError("the prompt is empty; give some text")
    return prompt


def _ids(session: Session, prompt: str, args: argparse.Namespace) -> list[int]:
    if args.raw:
        return session.raw_ids(prompt)
    return session.chat_ids(_messages(prompt, args))


def _messages(prompt: str, args: argparse.Namespace) -> list[Message]:
    question: Message = {"role": "user", "content": prompt}
    if args.system is None:
        return [question]
    return [{"role": "system", "content": checked_argument(args.system)}, question]


def _say_more(
    answer: Answer, session: KnowsLimits, config: GenerationConfig, *, stats: bool
) -> None:
    for words in warnings(answer, session, config):
        note(f"[{words}]")
    if stats:
        note(f"[{answer.stats()}]")


def _ignore(text: str) -> None:
    pass
