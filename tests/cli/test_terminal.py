"""Output to a terminal and to a pipe."""

from __future__ import annotations

import io

from mlc_llm.cli.terminal import Output


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_no_control_characters() -> None:
    screen = Screen()
    Output(screen).write("a\x1b]0;title\x07b\tc\n\x9bd é 漢")
    assert screen.getvalue() == "a\ufffd]0;title\ufffdb\tc\n\ufffdd é 漢"


def test_a_pipe_gets_the_text_as_it_is() -> None:
    pipe = io.StringIO()
    Output(pipe).write("a\x1bb")
    assert pipe.getvalue() == "a\x1bb"


def test_an_encoding_that_lacks_a_character() -> None:
    raw = io.BytesIO()
    output = Output(io.TextIOWrapper(raw, encoding="ascii"))
    output.write("é.")
    assert raw.getvalue() == b"?."


def test_end_line_adds_only_what_is_missing() -> None:
    pipe = io.StringIO()
    output = Output(pipe)
    output.end_line()
    output.write("a")
    output.end_line()
    output.end_line()
    assert pipe.getvalue() == "a\n"
