"""What a family of chat templates has to say about calls of tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from mlc_llm.record import record
from mlc_llm.serve.openai.tools.form_grammar import CallRules
from mlc_llm.serve.openai.tools.lark import Split
from mlc_llm.serve.openai.tools.reading import CallReader


class Function(NamedTuple):
    """A function that may be called."""

    name: str
    schema: dict[str, object]
    """Of its arguments; see `arguments_schema`."""
    field: str
    """To name in errors about the schema."""


@record()
class History:
    """How a chat template wants past calls."""

    text_arguments: bool = False
    """Arguments as JSON text, not as values, unless the template makes JSON itself."""
    id_chars: int | None = None
    """Ids of so many letters and digits. None: any ids."""
    one_call: bool = False
    """A message has one call at most."""
    objects: bool = False
    """Arguments are objects. Calls with others stand in the text of the assistant."""


class Family(Protocol):
    """The form of calls that models of one kind were trained on."""

    @property
    def name(self) -> str: ...

    @property
    def history(self) -> History: ...

    def rules(self, functions: Sequence[Function], split: Split, *, parallel: bool) -> CallRules:
        """The grammar of calls: one, or with `parallel` one and more."""
        ...

    def reader(self, functions: Sequence[Function]) -> CallReader:
        """Reads the calls of one answer."""
        ...

    def written(self, calls: Sequence[tuple[str, str]]) -> str:
        """Calls as the model writes them. calls: names, and arguments as JSON."""
        ...
