"""The shape that an answer must have: `--schema`, `--regex` or `--grammar`."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mlc_llm.cli.flags import naming_flags
from mlc_llm.cli.terminal import decoded
from mlc_llm.errors import UserError
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.protocol.json_text import parse_json

if TYPE_CHECKING:
    from mlc_llm.cli.answers import Answer

MAX_FILE_BYTES = 2**20
"""The largest file of a schema or a grammar. The engine accepts a fourth of it."""

SYNTAXES = {".lark": "lark", ".gbnf": "gbnf", ".ebnf": "gbnf"}
"""Ending of a file's name -> the language of the grammar in it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the three flags. Only one of them may be given."""
    group = parser.add_argument_group("shape of the answer").add_mutually_exclusive_group()
    group.add_argument(
        "--schema", metavar="FILE", help="an answer in JSON that follows this schema"
    )
    group.add_argument("--regex", metavar="TEXT", help="an answer of this regular expression")
    group.add_argument(
        "--grammar",
        metavar="FILE",
        help="an answer of this grammar: Lark in *.lark, GBNF (EBNF) in *.gbnf or *.ebnf",
    )


def wanted(args: argparse.Namespace) -> dict[str, object] | None:
    """The `response_format`. None for free text. Raises `UserError` for a bad file."""
    if args.schema is not None:
        text = _read(args.schema, "--schema")
        if not isinstance(parse_json(text, f"--schema {args.schema}"), (dict, bool)):
            raise UserError(f"--schema {args.schema}: a JSON schema is an object, true or false")
        return {"type": "json_object", "schema": text}
    if args.regex is not None:
        return _grammar("regex", args.regex)
    if args.grammar is not None:
        syntax = SYNTAXES.get(Path(args.grammar).suffix.lower())
        if syntax is None:
            endings = ", ".join(SYNTAXES)
            raise UserError(
                f"--grammar {args.grammar}: the name must end with one of {endings}, because the "
                "ending tells the language of the grammar"
            )
        return _grammar(syntax, _read(args.grammar, "--grammar"))
    return None


def naming_shape(config: GenerationConfig) -> AbstractContextManager[None]:
    """Inside, errors of the engine about the shape of `config` name the flag."""
    if not config.needs_grammar:
        return nullcontext()
    written = config.response_format.grammar
    if written is None:
        return naming_flags({"response_format.schema": "--schema"})
    flag = "--regex" if written.syntax == "regex" else "--grammar"
    return naming_flags({"response_format.grammar.definition": flag})


class KnowsLimits(Protocol):
    """What answers come from."""

    def why_cut(self, answer: Answer) -> str:
        """The limit that ended an answer with the finish reason `length`."""


def warnings(answer: Answer, session: KnowsLimits, config: GenerationConfig) -> list[str]:
    """Messages for the user about an answer that did not end by itself."""
    limit = session.why_cut(answer) if answer.finish_reason == "length" else None
    return [words for words in (limit, why_unfinished(answer, config)) if words is not None]


def why_unfinished(answer: Answer, config: GenerationConfig) -> str | None:
    """A message about an answer that ended before its shape was complete, or None."""
    if not config.needs_grammar or answer.finish_reason == "abort":
        return None
    if config.response_format.type == "json_object":
        return None if _is_json(answer.text) else "the JSON is cut and not complete"
    if answer.finish_reason == "length":
        return "the answer is cut, so it may not have the shape that you asked for"
    return None


def _is_json(text: str) -> bool:
    try:
        parse_json(text, "the answer")
    except UserError:
        return False
    return True


def _grammar(syntax: str, definition: str) -> dict[str, object]:
    return {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}


def _read(name: str, flag: str) -> str:
    """The text of a file. Raises `UserError` that names the flag and the file."""
    try:
        with Path(name).expanduser().open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{flag} {name}: {reason}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise UserError(f"{flag} {name}: longer than {MAX_FILE_BYTES} bytes")
    return decoded(raw, f"{flag} {name}")
