"""Compares a text that comes in pieces with a fixed one."""

from __future__ import annotations

DIFFERS, NEEDS_MORE = -1, -2
NUMBER = "\0"
"""In a fixed text: any number here."""


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
        begin = at
        while letter == NUMBER and at < len(text) and text[at].isdigit():
            at += 1
        if at == len(text):
            return NEEDS_MORE
        if letter != NUMBER and text[at] == letter:
            at += 1
        if at == begin:
            return DIFFERS
    return at
