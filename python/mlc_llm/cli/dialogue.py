"""The messages of a chat, kept within the context window of the model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from mlc_llm.cli.answers import Answer
from mlc_llm.cli.conversation import Message
from mlc_llm.errors import ContextLengthExceeded
from mlc_llm.protocol.generation_config import GenerationConfig

if TYPE_CHECKING:
    from mlc_llm.cli.session import Session

ANSWER_SHARE = 4
"""A fourth of the context window stays free for the answer."""

LONGEST_RESERVE = 512
"""At most so many tokens stay free for the answer."""


class Turns:
    """The messages so far. A question that failed is forgotten; a stopped answer is kept."""

    is_remote = False
    """A server answers, and what `config` leaves open is its own."""

    def __init__(self, config: GenerationConfig, system: str | None) -> None:
        self.config = config
        self._system: list[Message] = []
        if system is not None:
            self._system = [{"role": "system", "content": system}]
        self._turns: list[list[Message]] = []
        self.last: Answer | None = None

    def reset(self) -> None:
        """Forget all messages except the system message."""
        self._turns = []

    @property
    def messages(self) -> list[Message]:
        """All messages so far, the system message first."""
        return [*self._system, *(message for turn in self._turns for message in turn)]

    def replace(self, messages: list[Message]) -> None:
        """Continue another conversation (see `conversation.load_messages`).

        If it has no system message, the present one stays.
        """
        first = 1 if messages and messages[0]["role"] == "system" else 0
        self._system = messages[:first] or self._system
        self._turns = [messages[i : i + 2] for i in range(first, len(messages), 2)]
        self.last = None

    def _keep(self, before: list[list[Message]], question: Message, answer: Answer) -> None:
        self._turns = [*before, [question, {"role": "assistant", "content": answer.text}]]
        self.last = answer


class Dialogue(Turns):
    """The messages of a chat with a model that is open here."""

    def __init__(self, session: Session, config: GenerationConfig, system: str | None) -> None:
        super().__init__(config, system)
        self._session = session

    def ask(
        self, text: str, on_text: Callable[[str], None], on_dropped: Callable[[str], None]
    ) -> Answer:
        """Answer `text`, and remember both.

        If old turns are dropped to make room, `on_dropped` gets a message before the answer. Raises
        `ContextLengthExceeded` if `text` alone leaves no room, and the errors of `Session.answer`.
        """
        question: Message = {"role": "user", "content": text}
        kept, ids = self._fit(question)
        dropped = len(self._turns) - len(kept)
        if dropped:
            on_dropped(dropped_words(self._turns[:dropped], self._session.window))
        answer = self._session.answer(ids, self.config, on_text)
        self._keep(kept, question, answer)
        return answer

    def stats(self) -> str:
        """The numbers of the last answer, and how full the context is."""
        if self.last is None:
            return "no answer yet"
        used, window = self.last.total_tokens, self._session.window
        return f"{self.last.stats()}; context {used} of {window} tokens, {len(self._turns)} turns"

    def _fit(self, question: Message) -> tuple[list[list[Message]], list[int]]:
        """The latest turns that leave room for an answer, and the ids of the whole prompt."""
        window = self._session.window
        limit = window - min(window // ANSWER_SHARE, LONGEST_RESERVE)
        for first in range(len(self._turns)):
            kept = self._turns[first:]
            with contextlib.suppress(ContextLengthExceeded):  # too long to be tokenised
                ids = self._ids(kept, question)
                if len(ids) <= limit:
                    return kept, ids
        ids = self._ids([], question)
        if len(ids) >= window:
            raise ContextLengthExceeded(len(ids), window)
        return [], ids

    def _ids(self, turns: list[list[Message]], question: Message) -> list[int]:
        said = [message for turn in turns for message in turn]
        return self._session.chat_ids([*self._system, *said, question])


def dropped_words(turns: list[list[Message]], window: int | None) -> str:
    """A message about turns that are forgotten. window: tokens; None: only the server knows."""
    first = " ".join(turns[0][0]["content"].split())
    shown = first if len(first) <= 40 else first[:40] + "..."
    what = "the oldest turn" if len(turns) == 1 else f"the {len(turns)} oldest turns"
    size = "" if window is None else f" of {window} tokens"
    return f"the context{size} is full: dropped {what}, from {shown!r}"
