"""Lines that end between words."""

from __future__ import annotations

import io

import pytest

from mlc_llm.cli import wrapping
from mlc_llm.cli.wrapping import WordWrap, WrappedOutput

ROOM = 20
TEXT = "The quick brown fox jumps over the lazy dog."
LINES = "The quick brown fox\njumps over the lazy\ndog."


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def wrapped(text: str, *, piece: int, width: int = ROOM + 1) -> str:
    wrap = WordWrap(lambda: width)
    pieces = [text[i : i + piece] for i in range(0, len(text), piece)]
    return "".join(map(wrap.put, pieces)) + wrap.flush()


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (TEXT, LINES),
        ("", ""),
        ("one\n\ntwo\n", "one\n\ntwo\n"),
        ("one two  ", "one two  "),
        ("    indented words of code", "    indented words\nof code"),
        ("x" * 20 + " y", "x" * 20 + "\ny"),
        ("see " + "x" * 30 + " y", "see\n" + "x" * 30 + "\ny"),
        ("漢字" * 6, "漢字" * 5 + "\n漢字"),
        ("a" + "漢" * 10, "a" + "漢" * 9 + "\n漢"),
        ("e\u0301" * 20 + " y", "e\u0301" * 20 + "\ny"),
    ],
)
def test_lines(text: str, lines: str, piece: int) -> None:
    assert wrapped(text, piece=piece) == lines


def test_a_tiny_terminal_wraps_by_itself() -> None:
    assert wrapped(TEXT, piece=5, width=10) == TEXT


def test_a_whole_word_is_shown_at_the_space_behind_it() -> None:
    wrap = WordWrap(lambda: 80)
    assert [wrap.put(piece) for piece in ("Hel", "lo", " wor", "ld.\n")] == [
        "",
        "",
        "Hello",
        " world.\n",
    ]


def test_a_terminal_is_wrapped_and_a_pipe_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrapping, "_columns", lambda: ROOM + 1)
    screen, pipe = Screen(), io.StringIO()
    for stream in (screen, pipe):
        output = WrappedOutput(stream)
        for char in TEXT:
            output.write(char)
        output.end_line()
        output.write("\x1b[31m and again")
        output.end_line()
    assert screen.getvalue() == LINES + "\n\ufffd[31m and again\n"
    assert pipe.getvalue() == TEXT + "\n\x1b[31m and again\n"
