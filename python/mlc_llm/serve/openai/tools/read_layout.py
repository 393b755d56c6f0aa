"""Reads the calls of a `CallLayout` in a text that comes in pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

from mlc_llm.serve.openai.tools.json_scan import JsonScan
from mlc_llm.serve.openai.tools.layout import CallLayout
from mlc_llm.serve.openai.tools.marks import MarkFinder
from mlc_llm.serve.openai.tools.matching import DIFFERS, NEEDS_MORE, follow
from mlc_llm.serve.openai.tools.reading import CallPiece, Reading, new_call_id


class ArgumentsReader(Protocol):
    """Reads the arguments of one call."""

    def put(self, text: str) -> tuple[str, str | None]:
        """Add a piece of the text. Returns the next part of the JSON; and the text behind the
        arguments, once they have ended."""
        ...


class JsonBody:
    """Arguments that are a JSON object."""

    def __init__(self) -> None:
        self._scan = JsonScan()

    def put(self, text: str) -> tuple[str, str | None]:
        end = self._scan.end_in(text)
        return (text, None) if end is None else (text[:end], text[end:])


class _Stage(Enum):
    TEXT = "before the mark"
    HEAD = "from the mark, or from the end of a call, to the arguments"
    ARGUMENTS = "inside them"
    LAST = "behind the arguments of a call"
    BEHIND = "behind all calls"


class LayoutReader:
    """Implements `CallReader`.

    Arguments are given out as they come: the grammar of the answer keeps them whole. A head that
    is none, because a name is unknown say, is text, and so is all that follows.
    """

    def __init__(
        self,
        layout: CallLayout,
        names: Sequence[str],
        body: Callable[[str], ArgumentsReader] | None = None,
    ) -> None:
        """names: of the functions that may be called. body: reads the arguments of one of them;
        None: they are a JSON object."""
        self._layout, self._make_body = layout, body
        self._opens = layout.opens if body is not None else "{"
        self._names = {layout.spelled(name): name for name in names}
        self._finder = MarkFinder(layout.mark, only_at_start=layout.only_at_start)
        self._stage = _Stage.TEXT
        self._held = ""
        self._body: ArgumentsReader = JsonBody()
        self._is_opening = False
        """The text ended inside the opening of a call that is not the first."""
        self._has_rest = False
        """Some text stands behind the calls."""
        self.calls = 0

    @property
    def is_inside(self) -> bool:
        return self._stage is _Stage.ARGUMENTS or self._is_opening

    def put(self, text: str) -> Reading:
        before = ""
        if self._stage is _Stage.TEXT:
            before, behind = self._finder.put(text)
            if behind is None:
                return Reading(before)
            self._stage, text = _Stage.HEAD, behind
        self._held += text
        pieces: list[CallPiece] = []
        while self._step(pieces):
            pass
        return Reading(before + self._behind(), calls=pieces)

    def finish(self, *, is_cut: bool) -> Reading:
        if self._stage is _Stage.TEXT:
            return Reading(self._finder.finish())
        if self._stage in (_Stage.ARGUMENTS, _Stage.LAST):
            return Reading()
        if self._stage is _Stage.HEAD and is_cut:
            is_close = follow(self._held, self._layout.close) == NEEDS_MORE
            self._is_opening = self.calls > 0 and bool(self._held.strip()) and not is_close
            return Reading()
        self._give_up()
        return Reading(self._behind())

    def _step(self, pieces: list[CallPiece]) -> bool:
        """Read on in what is held; False if that needs more text, or if no call follows."""
        if self._stage is _Stage.HEAD:
            return self._head(pieces)
        if self._stage is _Stage.ARGUMENTS:
            return self._arguments(pieces)
        return self._stage is _Stage.LAST and self._last()

    def _head(self, pieces: list[CallPiece]) -> bool:
        lead = self._layout.again if self.calls else self._layout.first
        middle = self._layout.middle + self._opens
        ends = {
            name: follow(self._held, lead + spelled + middle)
            for spelled, name in self._names.items()
            if lead or not self.calls
        }
        found = next((name for name, end in ends.items() if end > 0), None)
        if found is not None:
            self._held = self._held[ends[found] - len(self._opens) :]
            self._stage = _Stage.ARGUMENTS
            self._body = JsonBody() if self._make_body is None else self._make_body(found)
            pieces.append(CallPiece(self.calls, new_call_id(), found, ""))
            self.calls += 1
            return True
        close = follow(self._held, self._layout.close) if self.calls else DIFFERS
        if close > 0:
            self._held = self._held[close:]
        if NEEDS_MORE not in (*ends.values(), close):
            self._give_up()
        return False

    def _arguments(self, pieces: list[CallPiece]) -> bool:
        part, rest = self._body.put(self._take())
        if part:
            pieces.append(CallPiece(self.calls - 1, None, None, part))
        if rest is not None:
            self._stage, self._held = _Stage.LAST, rest
        return rest is not None

    def _last(self) -> bool:
        end = follow(self._held, self._layout.last)
        if end == NEEDS_MORE:
            return False
        self._held = self._held[max(end, 0) :]
        self._stage = _Stage.HEAD
        return True

    def _give_up(self) -> None:
        """No call follows: what is held is text."""
        if self._stage is _Stage.HEAD and not self.calls:
            self._held = self._finder.passed + self._held
        self._stage = _Stage.BEHIND

    def _behind(self) -> str:
        """The text behind all calls, or in place of them. White space behind a call belongs to
        it."""
        if self._stage is not _Stage.BEHIND:
            return ""
        text = self._take()
        if self.calls and not self._has_rest:
            text = text.lstrip()
            self._has_rest = bool(text)
        return text

    def _take(self) -> str:
        taken, self._held = self._held, ""
        return taken
