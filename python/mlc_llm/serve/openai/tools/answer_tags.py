"""Tags around the text of an answer, which are no part of it: `<|START_RESPONSE|>` and the like."""

from __future__ import annotations

from mlc_llm.record import record
from mlc_llm.serve.openai.tools.lark import Split, fixed
from mlc_llm.serve.openai.tools.reading import held_back


@record()
class AnswerTags:
    """What stands around the text. The model may leave out both."""

    begin: str
    end: str

    def around(self, reference: str, split: Split) -> str:
        """The grammar of a text with these tags, or without. reference: the text."""
        begin, end = (fixed(*split(tag)) for tag in (self.begin, self.end))
        return f"({begin})? {reference} ({end})?"


class TagRemover:
    """Removes the tags from a text that comes in pieces."""

    def __init__(self, tags: AnswerTags) -> None:
        self._tags = tags
        self._held = ""
        self._has_begun = self._has_ended = False

    def put(self, text: str) -> str:
        """The text that is certain."""
        if self._has_ended:
            return ""
        self._held += text
        if not self._has_begun and not self._is_decided():
            return ""
        certain, tag, _ = self._held.partition(self._tags.end)
        self._has_ended = bool(tag)
        kept = 0 if tag else held_back(certain, self._tags.end)
        self._held = certain[len(certain) - kept :]
        return certain[: len(certain) - kept]

    def finish(self) -> str:
        """The text has ended: what was held back."""
        rest, self._held = self._held, ""
        return rest

    def _is_decided(self) -> bool:
        """Whether the text begins with the tag, which is removed then."""
        found = self._held.lstrip()
        if found.startswith(self._tags.begin):
            self._held = found[len(self._tags.begin) :]
        elif self._tags.begin.startswith(found):
            return False
        self._has_begun = True
        return True
