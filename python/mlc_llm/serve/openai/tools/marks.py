"""Finds where calls begin: the text before is the answer's text."""

from __future__ import annotations

from mlc_llm.serve.openai.tools.reading import held_back


class MarkFinder:
    """Holds back what may be the mark, and the white space in front of it."""

    def __init__(self, mark: str, *, only_at_start: bool) -> None:
        """only_at_start: the mark counts only where the text begins, behind white space."""
        self._mark, self._only_at_start = mark, only_at_start
        self._held = ""
        self._has_passed = False
        """Some text was given out: the mark is not at the start."""
        self.passed = ""
        """The mark, once it has come, with the white space in front of it."""

    def put(self, text: str) -> tuple[str, str | None]:
        """The text that is certain; and what follows the mark, once it has come."""
        self._held += text
        if self._only_at_start:
            return self._at_start()
        before, mark, behind = self._held.partition(self._mark)
        if mark:
            certain = before.rstrip()
            self.passed = before[len(certain) :] + mark
            return certain, behind
        certain = before[: len(before) - held_back(before, self._mark)].rstrip()
        self._held = before[len(certain) :]
        return certain, None

    def finish(self) -> str:
        """The text has ended: what was held back."""
        rest, self._held = self._held, ""
        return rest

    def _at_start(self) -> tuple[str, str | None]:
        found = self._held.lstrip()
        if not self._has_passed and found.startswith(self._mark):
            behind = found[len(self._mark) :]
            self.passed = self._held[: len(self._held) - len(behind)]
            return "", behind
        if not self._has_passed and self._mark.startswith(found):
            return "", None
        self._has_passed = True
        return self.finish(), None
