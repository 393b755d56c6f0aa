"""A bound on the optional parts of patterns. The grammar library has none for their memory.

A lexer state of n optional parts in a row takes 2 to 64 bytes times n * n (measured). The time of
the checks here is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mlc_llm.errors import InvalidField

MAX_OPTIONAL = 1000

_IN_PATTERN = re.compile(r"[?*]|\{0|\{,|\|\)|\(\||\|\|")
"""Every text that may make a part optional: it finds all of them, and perhaps more."""
_TOKEN = re.compile(
    r'//[^\n]*|"(?:[^"\\\n]|\\.)*"?|/(?:[^/\\\n]|\\.)*/?|[A-Za-z_][A-Za-z_0-9]*|\{[0,]|[\n:|()?*~]'
)
"""The tokens of Lark that matter here. A literal without an end goes to the end of its line."""
_OPTIONAL = {"?", "*", "~", "{0", "{,", '""'}


@dataclass
class _Definition:
    """The right side of a name."""

    optional: int = 0
    uses: list[str] = field(default_factory=list)


def check_pattern(field: str, pattern: str) -> None:
    """Raise `InvalidField` for a regular expression with too many optional parts."""
    if len(_IN_PATTERN.findall(pattern)) > MAX_OPTIONAL:
        raise _too_many(field, pattern)


def check_lark(field: str, text: str) -> None:
    """Raise `InvalidField` for too many optional parts in a regular expression, or in a terminal
    together with the terminals that it uses."""
    terminals = {}
    for name, tokens in _definitions(text):
        for token in tokens:
            if token.startswith("/"):
                check_pattern(field, token)
        if name.isupper():
            terminals[name] = _definition(tokens)
    if any(count > MAX_OPTIONAL for count in _counts(terminals).values()):
        raise _too_many(field, text)


def _definitions(text: str) -> Iterator[tuple[str, list[str]]]:
    """Every name, and the tokens of its definition."""
    name = ""
    tokens: list[str] = []
    line: list[str] = []
    """The first token of the line and the last one."""
    for found in _TOKEN.finditer(text):
        token = found[0]
        if token == ":" and line and line[0].isidentifier() and ":" not in line:
            yield name, tokens
            name, tokens = line[0], []
        elif token != "\n" and not token.startswith("//"):
            tokens.append(token)
        if token != "?" or line:  # before a name it is a modifier
            line = [] if token == "\n" else [*line[:1], token]
    yield name, tokens


def _definition(tokens: list[str]) -> _Definition:
    found, before = _Definition(), ":"
    for token in [*tokens, ")"]:
        is_empty = token in ("|", ")") and before in (":", "|", "(")
        found.optional += is_empty or token in _OPTIONAL
        if token.startswith("/"):
            found.optional += len(_IN_PATTERN.findall(token))
        elif token.isidentifier() and token.isupper():
            found.uses.append(token)
        before = token
    return found


def _counts(terminals: Mapping[str, _Definition]) -> dict[str, int]:
    """Optional parts of each terminal, with those of the terminals that it uses.

    A terminal inside itself counts as none there: the library reports this error.
    """
    counts: dict[str, int] = {}
    for first in terminals:
        waiting = [first]
        while waiting:
            name = waiting[-1]
            used = [one for one in terminals[name].uses if one in terminals]
            if name not in counts:  # seen for the first time: those inside come first
                counts[name] = 0
                waiting += dict.fromkeys(one for one in used if one not in counts)
                continue
            waiting.pop()
            if not counts[name]:
                total = terminals[name].optional + sum(counts[one] for one in used)
                counts[name] = min(total, MAX_OPTIONAL + 1)
    return counts


def _too_many(field: str, text: str) -> InvalidField:
    allowed = f"a pattern has at most {MAX_OPTIONAL} optional parts (? * {{0,n}} and the like)"
    return InvalidField(field, text, allowed)
