"""A model on a server, in the place of one that is open here (`session.py`, `dialogue.py`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from mlc_llm.cli.answers import Answer, Timings, rate
from mlc_llm.cli.conversation import Message
from mlc_llm.cli.dialogue import Turns, dropped_words
from mlc_llm.cli.interrupt import catch_interrupt
from mlc_llm.cli.remote_http import Address, EventReader, RemoteServer, TooLong
from mlc_llm.cli.terminal import note
from mlc_llm.errors import MLCError, UserError
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.protocol.json_text import parse_json

FIELDS = {"stop_strs": "stop"}
"""Field of `GenerationConfig` -> its name in OpenAI's API, where it differs."""


def open_remote(url: str, key: str | None, model: str | None) -> RemoteSession:
    """The model of a server that was named, or its first. Raises `MLCError`."""
    if key is not None and not (key.isascii() and key.isprintable()):
        raise UserError("the key of the server should have only printable ASCII characters")
    server = RemoteServer(Address(url), key)
    entries = server.models()
    if model is None and not entries:
        raise MLCError(f"{server.address.shown}: the server has no model")
    name = model or str(entries[0]["id"])
    entry = next((one for one in entries if one["id"] == name), {})
    window = entry.get("context_length") or entry.get("max_model_len")
    return RemoteSession(server, name, window if isinstance(window, int) else None)


class RemoteSession:
    """A model on a server."""

    def __init__(self, server: RemoteServer, model: str, window: int | None) -> None:
        """window: the most tokens of a prompt and its answer, if the server tells it."""
        self.server, self.model, self.window = server, model, window
        self.address = server.address.shown
        self._said: set[str] = set()

    def answer(
        self,
        prompt: str | Sequence[Message],
        config: GenerationConfig,
        on_text: Callable[[str], None] = lambda text: None,
    ) -> Answer:
        """Like `Session.answer`. prompt: a text to continue, or messages."""
        asked: dict[str, object] = {"model": self.model, "stream_options": {"include_usage": True}}
        asked |= {"prompt": prompt} if isinstance(prompt, str) else {"messages": list(prompt)}
        path = "/completions" if isinstance(prompt, str) else "/chat/completions"
        run = _Run()
        reader = self.server.stream(path, asked | _fields(config))
        try:
            self._run(reader, run, on_text)
        finally:
            reader.close()
        self._say(reader, run)
        return run.answer(self.model)

    def dialogue(self, config: GenerationConfig, system: str | None) -> RemoteDialogue:
        """A chat with this model."""
        return RemoteDialogue(self, config, system)

    def why_cut(self, answer: Answer) -> str:
        """See `Session.why_cut`."""
        if self.window is not None and (answer.total_tokens or 0) >= self.window:
            return f"stopped: the context of {self.window} tokens is full"
        count = answer.completion_tokens
        where = "at the longest answer" if count is None else f"at {count} tokens"
        return f"stopped {where}; --max-tokens sets this limit"

    def _run(self, reader: EventReader, run: _Run, on_text: Callable[[str], None]) -> None:
        with catch_interrupt() as interrupt:
            for event in reader:
                if interrupt:
                    run.finish_reason = "abort"
                    return
                if event:
                    on_text(run.put(event))

    def _say(self, reader: EventReader, run: _Run) -> None:
        words = []
        if reader.ignored:
            words.append(f"the server ignores: {reader.ignored}")
        if run.thoughts:
            words.append(f"the model thought first; {run.thoughts} characters are not shown")
        for one in words:
            if one not in self._said:
                self._said.add(one)
                note(f"[{one}]")


class RemoteDialogue(Turns):
    """The messages of a chat with a server's model."""

    is_remote = True

    def __init__(
        self, session: RemoteSession, config: GenerationConfig, system: str | None
    ) -> None:
        super().__init__(config, system)
        self._session = session

    def ask(
        self, text: str, on_text: Callable[[str], None], on_dropped: Callable[[str], None]
    ) -> Answer:
        """Answer `text`, and remember both.

        If the server says that the conversation is too long, the oldest turn is dropped and it is
        asked again. Raises `MLCError`.
        """
        question: Message = {"role": "user", "content": text}
        for first in range(len(self._turns) + 1):
            kept = self._turns[first:]
            said = [message for turn in kept for message in turn]
            try:
                answer = self._session.answer(
                    [*self._system, *said, question], self.config, on_text
                )
            except TooLong:
                if not kept:
                    raise
                continue
            if first:
                on_dropped(dropped_words(self._turns[:first], self._session.window))
            self._keep(kept, question, answer)
            return answer
        raise AssertionError("the last try has returned or raised")

    def stats(self) -> str:
        """The numbers of the last answer, and how full the context is."""
        if self.last is None:
            return "no answer yet"
        used, window = self.last.total_tokens, self._session.window
        full = "" if None in (used, window) else f"; context {used} of {window} tokens"
        return f"{self.last.stats()}{full}, {len(self._turns)} turns"


class _Run:
    """The events of an answer so far. Times are those of this side of the network."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.finish_reason: str | None = None
        self.thoughts = 0
        self._usage: dict[str, Any] = {}
        self._started = time.perf_counter()
        self._first: float | None = None
        self._last = self._started

    def put(self, event: dict[str, Any]) -> str:
        """Add one event. Returns its text."""
        usage, choices = event.get("usage"), event.get("choices")
        self._usage = usage if isinstance(usage, dict) else self._usage
        choice = choices[0] if isinstance(choices, list) and choices else {}
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        delta = choice.get("delta") or {}
        text = delta.get("content") or choice.get("text") or ""
        thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
        if text or thought:
            self._last = time.perf_counter()
            self._first = self._first or self._last
            self.thoughts += len(thought)
            self.pieces.append(text)
        return str(text)

    def answer(self, model: str) -> Answer:
        """The answer, after the last event."""
        prompt, made = (
            _count(self._usage.get(f"{one}_tokens")) for one in ("prompt", "completion")
        )
        ttft = None if self._first is None else self._first - self._started
        return Answer(
            model=model,
            text="".join(self.pieces),
            finish_reason=self.finish_reason or "stop",
            prompt_tokens=prompt,
            completion_tokens=made,
            timings=Timings(
                load_s=None,
                ttft_s=ttft,
                total_s=time.perf_counter() - self._started,
                prefill_tokens_per_s=rate(prompt or 0, ttft),
                decode_tokens_per_s=rate((made or 0) - 1, self._last - (self._first or self._last)),
            ),
        )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _fields(config: GenerationConfig) -> dict[str, object]:
    """The given fields as OpenAI's API names them. A max_tokens of -1 has no name there: it is
    left out, and the server decides."""
    given = {name: value for name, value in config.given.items() if value is not None}
    shape = given.pop("response_format", None)
    if given.get("max_tokens") == -1:
        del given["max_tokens"]
    found = {FIELDS.get(name, name): value for name, value in given.items()}
    if config.needs_grammar and shape is not None:
        schema = parse_json(config.response_format.json_schema or "{}", "--schema")
        wanted = {"name": "answer", "schema": schema}
        found["response_format"] = {"type": "json_schema", "json_schema": wanted}
    return found
