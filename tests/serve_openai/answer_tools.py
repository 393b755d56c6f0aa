"""Reads answers in pieces, and writes what was found in one form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlc_llm.serve.openai.tools.answer_reader import AnswerReader
from mlc_llm.serve.openai.tools.family import Family, Function
from mlc_llm.serve.openai.tools.reading import Reading
from mlc_llm.serve.openai.tools.thinking import Opening, ThinkReader, ThinkTags
from mlc_llm.serve.openai.tools.tool_schema import arguments_schema

CALL_ID = re.compile(r"call_[A-Za-z0-9]{24}\Z")
THINK = ThinkTags("<think>", "</think>")


@dataclass
class Found:
    """What an answer says, whatever its pieces were."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Names and arguments."""

    def put(self, reading: Reading) -> None:
        self.text += reading.text
        self.reasoning += reading.reasoning
        for piece in reading.calls:
            if piece.index == len(self.calls):
                assert piece.id is not None and CALL_ID.match(piece.id)
                assert piece.name is not None
                self.calls.append((piece.name, ""))
            else:
                assert piece.index == len(self.calls) - 1, "calls come one behind the other"
                assert piece.id is None and piece.name is None
            name, arguments = self.calls[-1]
            self.calls[-1] = (name, arguments + piece.arguments)

    @property
    def values(self) -> list[tuple[str, Any]]:
        """The calls with their arguments as values."""
        return [(name, json.loads(arguments)) for name, arguments in self.calls]


def read(reader: AnswerReader, pieces: Iterable[str], *, is_cut: bool = False) -> Found:
    """What the pieces of one answer say."""
    found = Found()
    for piece in pieces:
        found.put(reader.put(piece))
    found.put(reader.finish(is_cut=is_cut))
    return found


def reader_of(
    family: Family | None,
    functions: Sequence[Function],
    tags: ThinkTags | None = None,
    opening: Opening = Opening.BEFORE,
) -> AnswerReader:
    thinking = None if tags is None else ThinkReader(tags, opening)
    return AnswerReader(thinking, None if family is None else family.reader(functions))


def function(name: str, properties: dict[str, Any] | None = None, **more: Any) -> Function:
    given = {} if properties is None else {"type": "object", "properties": properties}
    field = "tools[0].function.parameters"
    return Function(name, arguments_schema({**given, **more}, field), field)


def cut_at(text: str, places: Iterable[int]) -> list[str]:
    """The text in pieces that end at these places."""
    ends = sorted({place % (len(text) + 1) for place in places} | {len(text)})
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
