"""The grammar of an answer: thoughts, then text or calls, as one grammar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mlc_llm.protocol.error_protocol import validated
from mlc_llm.protocol.response_format import GrammarPart, RequestResponseFormat
from mlc_llm.record import record
from mlc_llm.serve.openai.tools.answer_tags import AnswerTags
from mlc_llm.serve.openai.tools.lark import ANY, Split, fixed, pattern, text_without, until
from mlc_llm.serve.openai.tools.thinking import Opening, ThinkTags

ANSWER = "answer"
"""The name of the part that is the format of the request."""


class CallRules(NamedTuple):
    """The grammar of calls."""

    mark: str
    """See `CallLayout.mark`."""
    only_at_start: bool
    behind_mark: str
    """What follows the mark."""
    rules: Sequence[str]
    """What it refers to, without `start`."""
    parts: Sequence[GrammarPart]


@record()
class Thoughts:
    """How the model may think in front of its answer."""

    tags: ThinkTags
    opening: Opening


def answer_grammar(
    calls: CallRules | None,
    thoughts: Thoughts | None,
    wanted: RequestResponseFormat,
    split: Split,
    *,
    must_call: bool,
    channels: Sequence[str] | None = None,
    tags: AnswerTags | None = None,
) -> RequestResponseFormat:
    """The format that the engine gets.

    calls: None if no tool can be called. thoughts: None if the model does not think. wanted: the
    format of the answer where no tool is called. must_call: a tool is called. channels: the rules
    `before` and `final`, of a model that writes its answer as messages in channels. tags: None if
    nothing stands around the text of an answer.
    """
    if channels is not None:
        return _in_channels(calls, channels, wanted, split, must_call=must_call)
    lead, rules, without = _thoughts(thoughts, split)
    if calls is None and not ((lead or tags) and wanted.needs_grammar):
        return wanted
    parts = [*(calls.parts if calls is not None else ())]
    rules += calls.rules if calls is not None else ()
    if wanted.needs_grammar and not must_call:
        parts.append(_answer_part(wanted))
    answer, text = (_around(tags, one, split) for one in (f"@{ANSWER}", "TEXT"))
    if calls is None:
        body = answer
    elif must_call:
        body = _forced(calls, split)
    elif wanted.needs_grammar:
        body = f"{_forced(calls, split)} | {answer}"
    else:
        # Lines behind the thoughts are theirs: text that took them would hide a call behind them.
        body, more = _free(calls, split, without, text, line_first=not lead)
        rules += more
    return _lark([f"start: {lead} body".replace("  ", " "), f"body: {body}", *rules], parts)


def _in_channels(
    calls: CallRules | None,
    channels: Sequence[str],
    wanted: RequestResponseFormat,
    split: Split,
    *,
    must_call: bool,
) -> RequestResponseFormat:
    """Thoughts and preambles, then a call or the answer, each a message of its own."""
    if calls is None and not wanted.needs_grammar:
        return wanted
    options: list[str] = []
    rules: list[str] = list(channels)
    parts: list[GrammarPart] = []
    if calls is not None:
        options.append(_forced(calls, split))
        rules += calls.rules
        parts += calls.parts
    if not must_call:
        options.append(f"final @{ANSWER}" if wanted.needs_grammar else "final TEXT")
        rules.append(f"TEXT: {ANY}")
        parts += [_answer_part(wanted)] if wanted.needs_grammar else []
    return _lark([f"start: before ({' | '.join(options)})", *rules], parts)


def _lark(lines: Sequence[str], parts: Sequence[GrammarPart]) -> RequestResponseFormat:
    grammar = {"syntax": "lark", "definition": "\n".join(lines), "parts": tuple(parts)}
    return validated(RequestResponseFormat, {"type": "grammar", "grammar": grammar}, "tools")


def _answer_part(wanted: RequestResponseFormat) -> GrammarPart:
    field = "response_format" + (".schema" if wanted.grammar is None else "")
    return GrammarPart(name=ANSWER, form=wanted, field=field)


def _thoughts(thoughts: Thoughts | None, split: Split) -> tuple[str, list[str], list[str]]:
    """What stands for the thoughts; its rules; texts that a text without thoughts does not begin
    with."""
    if thoughts is None or thoughts.opening is Opening.BEHIND:
        return "", [], []
    tags = thoughts.tags
    end, rules = until("thought", split(tags.end), "ANY")
    rules = [f"ANY: {ANY}", "LINES: /\\n{0,2}/", *rules]
    if thoughts.opening is Opening.INSIDE:
        return f"{end} LINES", rules, []
    begin = split(tags.begin)
    if isinstance(begin[0], int):
        return f"({fixed(*begin)} {end} LINES)?", rules, []
    rules.append(f"THINK: /\\s*{pattern(tags.begin)}/")
    return f"(THINK {end} LINES)?", rules, [tags.begin]


def _forced(calls: CallRules, split: Split) -> str:
    return f"{fixed(*split(calls.mark))} {calls.behind_mark}".strip()


def _around(tags: AnswerTags | None, reference: str, split: Split) -> str:
    return reference if tags is None else tags.around(reference, split)


def _free(
    calls: CallRules, split: Split, without: Sequence[str], text: str, *, line_first: bool
) -> tuple[str, list[str]]:
    """Text, or text with calls behind it. text: refers to `TEXT`, with the tags around it."""
    if calls.only_at_start:
        form = text_without([*without, calls.mark], line_first=line_first)
        return f"{_forced(calls, split)} | {text}", [f"TEXT: {form}"]
    head, rules = until("head", split(calls.mark), "TEXT")
    form = text_without(without, line_first=line_first)
    return f"{head} {calls.behind_mark} | {text}", [f"TEXT: {form}", *rules]
