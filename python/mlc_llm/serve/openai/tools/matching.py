"""Compares a text that comes in pieces with a fixed one."""

from __future__ import annotations

DIFFERS, NEEDS_MORE = -1, -2


def follow(text: str, literal: str) -> int:
    """Where `literal` ends in a text that begins with it, whatever white space either has.

    `DIFFERS` if the text begins otherwise, `NEEDS_MORE` if it ends before that is known.
    """
    at = 0
    for letter in literal:
        if letter.isspace():
            continue
        while at < len(text) and text[at].isspace():
            at += 1
        if at == len(text):
            return NEEDS_MORE
        if text[at] != letter:
            return DIFFERS
        at += 1
    return at
