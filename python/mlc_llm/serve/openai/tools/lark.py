"""Pieces of grammars in Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence

Split = Callable[[str], Sequence[str | int]]
"""Cuts a text at control tokens: returns strings, and the ids of the tokens between them."""

ANY = r"/(.|\n)*/"


def fixed(*pieces: str | int) -> str:
    """Strings and ids of control tokens, in a row. Neighbouring strings are one."""
    found: list[str | int] = []
    for piece in pieces:
        if isinstance(piece, str) and found and isinstance(found[-1], str):
            found[-1] += piece
        elif piece != "":
            found.append(piece)
    return " ".join(
        f"<[{one}]>" if isinstance(one, int) else json.dumps(one, ensure_ascii=False)
        for one in found
    )


def until(name: str, mark: Sequence[str | int], text: str) -> tuple[str, list[str]]:
    """Text up to the first `mark`, and the mark: what refers to it, and its rules.

    name: for the rules. mark: from `Split`. text: the terminal of the text.
    """
    if not isinstance(mark[0], int):
        # A lazy lexeme ends at the first mark.
        return name, [f"{name}[lazy]: {text} {fixed(mark[0])}", *_rest(name, mark)]
    return f"({text} {fixed(*mark)})", []


def _rest(name: str, mark: Sequence[str | int]) -> list[str]:
    assert len(mark) == 1, f"{name}: text and a control token in one mark"
    return []


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
