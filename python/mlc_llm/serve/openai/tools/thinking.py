"""Thinking before the answer: `<think>...</think>`, and tags of the same kind."""

from __future__ import annotations

from enum import Enum

from mlc_llm.record import record
from mlc_llm.serve.openai.tools.reading import Reading, held_back


@record()
class ThinkTags:
    """What stands around the thoughts. White space beside the tags belongs to them."""

    begin: str
    end: str


class Opening(Enum):
    """Where an answer begins, as the prompt has left it."""

    BEFORE = "the model may begin to think"
    INSIDE = "the template has opened the block"
    BEHIND = "the template has closed the block"


def opening_of(prompt: str, tags: ThinkTags) -> Opening:
    """How the end of a prompt leaves the block."""
    tail = prompt.rstrip()
    if tail.endswith(tags.begin.rstrip()):
        return Opening.INSIDE
    return Opening.BEHIND if tail.endswith(tags.end) else Opening.BEFORE


class ThinkReader:
    """Splits a text that comes in pieces into the thoughts and what follows them."""

    def __init__(self, tags: ThinkTags, opening: Opening) -> None:
        self._tags = tags
        self._held = ""
        self._stage = opening
        self._has_begun = False
        """Some text stands behind the tag before it."""

    @property
    def is_thinking(self) -> bool:
        return self._stage is Opening.INSIDE

    @property
    def is_behind(self) -> bool:
        """The thoughts have ended, or there are none."""
        return self._stage is Opening.BEHIND

    def put(self, text: str) -> Reading:
        """The thoughts and the text that are certain. A tag is in neither."""
        self._held += text
        if self._stage is Opening.BEFORE and not self._is_decided():
            return Reading()
        thought = self._thought() if self._stage is Opening.INSIDE else ""
        return Reading(self._behind() if self._stage is Opening.BEHIND else "", thought)

    def finish(self) -> Reading:
        """The text has ended: what was held back."""
        rest, self._held = self._held, ""
        if self._stage is Opening.INSIDE:
            return Reading(reasoning=rest.rstrip())
        return Reading(text=rest)

    def _is_decided(self) -> bool:
        begin, found = self._tags.begin, self._held.lstrip()
        if found.startswith(begin):
            self._stage, self._held = Opening.INSIDE, found[len(begin) :]
        elif begin.startswith(found):
            return False
        else:
            self._stage, self._has_begun = Opening.BEHIND, True
        return True

    def _thought(self) -> str:
        """The next part of the thoughts. White space at their end waits for what follows."""
        if not self._has_begun:
            self._held = self._held.lstrip("\n")
        text, mark, rest = self._held.partition(self._tags.end)
        if mark:
            self._stage, self._held, self._has_begun = Opening.BEHIND, rest, False
            return text.rstrip()
        certain = text[: len(text) - held_back(text, self._tags.end)].rstrip()
        self._has_begun = self._has_begun or bool(certain)
        self._held = text[len(certain) :]
        return certain

    def _behind(self) -> str:
        text, self._held = self._held, ""
        if not self._has_begun:
            text = text.lstrip("\n")
            self._has_begun = bool(text)
        return text
