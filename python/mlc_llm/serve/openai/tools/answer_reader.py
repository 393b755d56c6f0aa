"""Reads the whole of an answer: thoughts first, then text and calls."""

from __future__ import annotations

from mlc_llm.serve.openai.tools.answer_tags import TagRemover
from mlc_llm.serve.openai.tools.harmony import HarmonyReader
from mlc_llm.serve.openai.tools.reading import CallReader, Reading, joined
from mlc_llm.serve.openai.tools.thinking import ThinkReader


class AnswerReader:
    """Reads the text of one choice, in pieces of any length: what it finds is the same."""

    def __init__(
        self,
        thinking: ThinkReader | None,
        calls: CallReader | None,
        tags: TagRemover | None = None,
    ) -> None:
        """None: the model does not think, has nothing to call, or writes no tags."""
        self._thinking, self._calls, self._tags = thinking, calls, tags

    @property
    def is_thinking(self) -> bool:
        """The next token belongs to the thoughts, as far as is known."""
        if self._thinking is None:
            return isinstance(self._calls, HarmonyReader) and self._calls.is_thinking
        return self._thinking.is_thinking

    @property
    def may_think(self) -> bool:
        """The thoughts have not ended, as far as is known."""
        if self._thinking is None:
            return isinstance(self._calls, HarmonyReader)
        return not self._thinking.is_behind

    @property
    def has_called(self) -> bool:
        """There are calls, and all are whole."""
        calls = self._calls
        return calls is not None and calls.calls > 0 and not calls.is_inside

    def put(self, text: str) -> Reading:
        """Add a piece of the text."""
        found = Reading(text) if self._thinking is None else self._thinking.put(text)
        return self._without_tags(self._with_calls(found))

    def finish(self, *, is_cut: bool = False) -> Reading:
        """The text has ended: what was held back. is_cut: the model did not end it."""
        found = Reading() if self._thinking is None else self._with_calls(self._thinking.finish())
        if self._calls is not None:
            found = joined(found, self._calls.finish(is_cut=is_cut))
        rest = self._without_tags(found)
        return rest if self._tags is None else joined(rest, Reading(self._tags.finish()))

    def _without_tags(self, found: Reading) -> Reading:
        return found if self._tags is None else found._replace(text=self._tags.put(found.text))

    def _with_calls(self, found: Reading) -> Reading:
        if self._calls is None or not found.text:
            return found
        read = self._calls.put(found.text)
        return Reading(read.text, found.reasoning + read.reasoning, read.calls)
