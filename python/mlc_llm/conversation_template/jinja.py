"""`ChatTemplate`: the chat template of a model file, rendered within limits."""

from __future__ import annotations

import hashlib
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from mlc_llm.conversation_template.known import KNOWN
from mlc_llm.errors import InvalidField, ModelFileError

if TYPE_CHECKING:
    import jinja2

    from mlc_llm.conversation_template.sandbox import Answer, Failed
    from mlc_llm.conversation_template.worker import Worker

MAX_SOURCE = 256 * 2**10
"""Characters of a template. The longest known templates have about 30,000."""
MAX_INPUT = 8 * 2**20
"""Characters of all texts in the messages and tools together."""
MAX_DEPTH = 256
"""The schema of a tool may have 64 objects inside each other, each with a map of its properties."""
MAX_INT_BITS = 1024
TIME_LIMIT = 5.0


class ChatTemplate:
    """A chat template in Jinja, as Transformers reads it. Several threads may use it.

    `bos` and `eos` are the texts of these tokens. The template knows them as `bos_token` and
    `eos_token`. `tokens` are the names and texts of others, such as `pad_token`. `tool_use` is the
    model's other template, for chats with tools: whoever renders chooses one of the two.

    The template is not trusted: a process of its own renders it. This process is killed after
    `time_limit` seconds and started again when needed. A fork starts a new one. The templates in
    `known.py` need no process.
    """

    def __init__(
        self,
        source: str,
        *,
        bos: str = "",
        eos: str = "",
        tokens: Mapping[str, str] = MappingProxyType({}),
        tool_use: ChatTemplate | None = None,
        time_limit: float = TIME_LIMIT,
    ) -> None:
        """Raises `ModelFileError` for a template that is too long. Nothing runs yet."""
        if len(source) > MAX_SOURCE:
            raise ModelFileError(
                f"chat template: {len(source)} characters, more than the {MAX_SOURCE} allowed"
            )
        self.source = source
        self.bos = bos
        self.eos = eos
        self.tokens = tokens
        self.tool_use = tool_use
        self.time_limit = time_limit
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        digest = hashlib.sha256(source.encode(errors="surrogatepass")).hexdigest()
        self._known = KNOWN.get(digest)
        self._compiled: jinja2.Template | None = None
        _templates.add(self)

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt as text. variables: more values that the template reads.

        Raises `InvalidField` if the messages are too long or the template refuses them, and
        `ModelFileError` if the template has an error or exceeds a limit.
        """
        values = {
            **self.tokens,
            **(variables or {}),
            "messages": list(messages),
            "tools": None if tools is None else list(tools),
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            "bos_token": self.bos,
            "eos_token": self.eos,
        }
        check_values(values)
        if self._known is not None:
            written = self._known(messages, add_generation_prompt)
            answer = self._here(values) if written is None else {"text": written}
        else:
            with self._lock:
                answer = self._elsewhere(values)
        if "text" in answer:
            return str(answer["text"])
        raise _error(answer)

    def close(self) -> None:
        """End the processes, if there are any. The next rendering starts another one."""
        with self._lock:
            if self._worker is not None:
                self._worker.close()
            self._worker = None
        if self.tool_use is not None:
            self.tool_use.close()

    def forget_parent(self) -> None:
        """In a forked process: forget the worker, which is the parent's, and take a new lock, since
        another thread of the parent may hold the old one."""
        self._lock = threading.Lock()
        self._worker = None

    def _here(self, values: Mapping[str, object]) -> Answer:
        from mlc_llm.conversation_template import rendering

        if self._compiled is None:
            self._compiled = rendering.compile_template(self.source)
        return rendering.render_here(self._compiled, values)

    def _elsewhere(self, values: Mapping[str, object]) -> Answer:
        from mlc_llm.conversation_template import rendering

        with rendering.within(self.time_limit):
            if self._worker is None or not self._worker.is_alive:
                self._worker = rendering.Worker(self.source)
            return self._worker.render(values, self.time_limit)


_templates: weakref.WeakSet[ChatTemplate] = weakref.WeakSet()


def _forget_parent() -> None:
    for template in _templates:
        template.forget_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)


def _error(answer: Failed) -> InvalidField | ModelFileError:
    if answer["by_template"]:
        return InvalidField("messages", "...", f"the model's chat template says: {answer['error']}")
    return ModelFileError(f"chat template: {answer['error']}")


def check_values(values: object) -> None:
    """Raise `InvalidField` for values that are not JSON values, are nested too deeply or are too
    long."""
    length = 0
    level = [values]
    for _ in range(MAX_DEPTH):
        length += sum(len(value) for value in level if isinstance(value, str))
        if length > MAX_INPUT:
            raise InvalidField("messages", "...", f"more than {MAX_INPUT} characters of text")
        level = [inner for value in level for inner in _inner_values(value)]
        if not level:
            return
    raise InvalidField("messages", "...", f"nested more than {MAX_DEPTH} deep")


def _inner_values(value: object) -> list[object]:
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, int) and value.bit_length() > MAX_INT_BITS:
        raise InvalidField("messages", "...", f"a number of more than {MAX_INT_BITS} bits")
    if value is None or isinstance(value, str | int | float):
        return []
    raise InvalidField("messages", type(value).__name__, "only plain data (JSON) can be rendered")
