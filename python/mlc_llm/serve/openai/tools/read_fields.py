"""Reads the arguments of a `FieldForm` and makes JSON of them, piece by piece."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import Enum

from mlc_llm.serve.openai.tools.fields import FieldForm, ValueKind, properties_of
from mlc_llm.serve.openai.tools.json_scan import JsonScan
from mlc_llm.serve.openai.tools.matching import NEEDS_MORE, follow
from mlc_llm.serve.openai.tools.reading import held_back

_SCALAR = re.compile(r"[\w.+-]*")
_WORDS = {"True": "true", "False": "false", "None": "null"}


class _Stage(Enum):
    KEY = "where an argument begins, or the call ends"
    RAW = "inside a text as it is"
    SCALAR = "inside a number or a word"
    NESTED = "inside a text, an array or an object in JSON"
    AFTER = "behind a value"


class FieldsBody:
    """Implements `ArgumentsReader`."""

    def __init__(self, form: FieldForm, schema: Mapping[str, object]) -> None:
        self._form = form
        self._properties = properties_of(schema)
        self._stage = _Stage.KEY
        self._held = ""
        self._scan = JsonScan()
        self._is_first = True
        self._at_start = True
        """Nothing of a raw text was given out."""
        self._passes_line = False
        """The line behind a key has not ended: its end is no part of the raw text."""
        self._end: str | None = None

    def put(self, text: str) -> tuple[str, str | None]:
        self._held += text
        made = []
        while self._end is None:
            piece = self._step()
            if piece is None:
                break
            made.append(piece)
        return "".join(made), self._end

    def _step(self) -> str | None:
        """The next part of the JSON; None if that needs more text."""
        if self._stage is _Stage.KEY:
            return self._key()
        if self._stage is _Stage.RAW:
            return self._raw()
        if self._stage is _Stage.SCALAR:
            return self._scalar()
        if self._stage is _Stage.NESTED:
            return self._nested()
        return self._after()

    def _key(self) -> str | None:
        form = self._form
        lead = ("" if self._is_first else form.comma) + form.key_begin
        needs_more = False
        for name, schema in self._properties.items():
            end = follow(self._held, lead + name + form.behind_key(form.kind(schema)))
            needs_more = needs_more or end == NEEDS_MORE
            if end > 0:
                return self._begin(name, schema, end)
        if needs_more or not self._held.strip():
            return None
        # No argument begins so: the end need not be whole, which a stop string may cut.
        self._end = self._held
        return "{}" if self._is_first else "}"

    def _begin(self, name: str, schema: object, end: int) -> str | None:
        """The key of a value whose first letter is there."""
        form, rest = self._form, self._held[end:]
        raw = form.raw if form.kind(schema) is ValueKind.RAW else None
        if raw is not None:
            start = follow(rest, raw[0])
            if start == NEEDS_MORE:
                return None
            rest, self._stage, self._at_start = rest[max(start, 0) :], _Stage.RAW, True
            self._passes_line = form.key_end.endswith("\n")
        elif not rest.lstrip():
            return None
        else:
            rest = rest.lstrip()
            nested = rest[0] in '"[{'
            self._stage, self._scan = _Stage.NESTED if nested else _Stage.SCALAR, JsonScan()
        self._held = rest
        lead = "{" if self._is_first else ", "
        self._is_first = False
        return f"{lead}{json.dumps(name, ensure_ascii=False)}: " + ('"' if raw is not None else "")

    def _raw(self) -> str | None:
        form = self._form
        assert form.raw is not None
        if self._passes_line:
            if not self._held:
                return None
            self._held, self._passes_line = self._held.removeprefix("\n"), False
        mark = form.raw[1]
        text, found, rest = self._held.partition(mark)
        if self._at_start and not found:
            # An empty text has no line of its own.
            bare, found_bare, rest_bare = self._held.partition(mark.strip())
            if found_bare and not bare:
                text, found, rest = bare, found_bare, rest_bare
        if found:
            self._held, self._stage = rest, _Stage.AFTER
            return _inside_json(text) + '"'
        certain = text[: len(text) - max(held_back(text, mark), held_back(text, mark.strip()))]
        if not certain:
            return None
        self._held, self._at_start = text[len(certain) :], False
        return _inside_json(certain)

    def _scalar(self) -> str | None:
        found = _SCALAR.match(self._held)
        assert found is not None
        if found.end() == len(self._held):
            return None
        self._held, self._stage = self._held[found.end() :], _Stage.AFTER
        return _WORDS.get(found[0], found[0]) if self._form.words else found[0]

    def _nested(self) -> str | None:
        if not self._held:
            return None
        end = self._scan.end_in(self._held)
        part, self._held = self._held[:end], "" if end is None else self._held[end:]
        if end is not None:
            self._stage = _Stage.AFTER
        return part

    def _after(self) -> str | None:
        """What stands behind a value is passed over."""
        kind_end = self._form.value_end.strip()
        if kind_end and not self._held.startswith(kind_end):
            end = follow(self._held, kind_end)
            if end == NEEDS_MORE:
                return None
            self._held = self._held[max(end, 0) :]
        else:
            self._held = self._held[len(kind_end) :]
        self._stage = _Stage.KEY
        return ""


def _inside_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
