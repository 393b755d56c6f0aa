"""Pieces of grammars in Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence

from mlc_llm.serve.openai.tools.matching import NUMBER

Split = Callable[[str], Sequence[str | int]]
"""Cuts a text at control tokens: returns strings, and the ids of the tokens between them."""

ANY = r"/(.|\n)*/"
_NUMBER = "/[0-9]{1,3}/"


def fixed(*pieces: str | int) -> str:
    """Strings and ids of control tokens, in a row. Neighbouring strings are one. `NUMBER` in a
    string is any number."""
    found: list[str | int] = []
    for piece in pieces:
        if isinstance(piece, str) and found and isinstance(found[-1], str):
            found[-1] += piece
        elif piece != "":
            found.append(piece)
    return " ".join(f"<[{one}]>" if isinstance(one, int) else _quoted(one) for one in found)


def _quoted(text: str) -> str:
    parts = [json.dumps(one, ensure_ascii=False) if one else "" for one in text.split(NUMBER)]
    return f" {_NUMBER} ".join(parts).strip()


def until(name: str, mark: Sequence[str | int], text: str) -> tuple[str, list[str]]:
    """Text up to the first `mark`, and the mark: what refers to it, and its rules.

    name: for the rules. mark: from `Split`. text: the terminal of the text.
    """
    first = mark[0]
    if isinstance(first, int):
        return f"({text} {fixed(*mark)})", []
    if len(mark) == 1:
        # A lazy lexeme ends at the first mark.
        return name, [f"{name}[lazy]: {text} {fixed(first)}"]
    # The control token ends the text, which has the beginning of the mark at its end.
    whole = f"{name.upper()}_WITH_BEGINNING"
    rule = f"{whole}: {text} & /(.|\\n)*{pattern(first)}/"
    return f"({whole} {fixed(*mark[1:])})", [rule]


def text_without(starts: Iterable[str], *, line_first: bool = True) -> str:
    """A terminal of any text that begins with none of these texts, behind any white space.

    line_first: the text may begin with an empty line.
    """
    unwanted = [f"\\s*{pattern(start)}(.|\\n)*" for start in starts]
    unwanted += [] if line_first else ["\\n(.|\\n)*"]
    return ANY + "".join(f" & ~/{one}/" for one in unwanted)


def pattern(text: str) -> str:
    """A regular expression that matches this text alone."""
    return re.sub(r"[\\.+*?()|\[\]{}^$#&~/-]", r"\\\g<0>", text).replace("\n", "\\n")
