"""The messages of gpt-oss: thoughts, calls and the answer, each in a channel."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum

from mlc_llm.serve.openai.tools.family import Function, History
from mlc_llm.serve.openai.tools.form_grammar import CallRules
from mlc_llm.serve.openai.tools.json_scan import JsonScan
from mlc_llm.serve.openai.tools.lark import ANY, Split, fixed, until
from mlc_llm.serve.openai.tools.layout_rules import json_body
from mlc_llm.serve.openai.tools.reading import CallPiece, Reading, held_back, joined, new_call_id

CHANNEL, MESSAGE, START, END = "<|channel|>", "<|message|>", "<|start|>", "<|end|>"
_ENDS = (END, "<|call|>", "<|return|>", START)
_RECIPIENT = "to=functions."
_BEGINS = (CHANNEL, START, " to=")
_MOST_HEAD = 512
"""Characters of what stands in front of a message."""


class _Kind(Enum):
    HEAD = "in front of a message"
    THOUGHT = "analysis"
    TEXT = "final, or commentary for the user"
    CALL = "commentary to a function"
    PLAIN = "no message at all"


class HarmonyReader:
    """Implements `CallReader`. It finds the thoughts too, in the channel `analysis`.

    Two texts in a row, of a preamble and the answer say, are set apart by an empty line.
    """

    def __init__(self, names: Sequence[str]) -> None:
        """names: of the functions that may be called."""
        self._names = sorted(names, key=len, reverse=True)
        self._kind = _Kind.HEAD
        self._held = ""
        self._has_arguments = False
        self._scan = JsonScan()
        self._begun: set[_Kind] = set()
        self._is_fresh = False
        """The message has no text yet."""
        self.calls = 0
        self.is_inside = False

    @property
    def is_thinking(self) -> bool:
        return self._kind is _Kind.THOUGHT

    def put(self, text: str) -> Reading:
        self._held += text
        found = Reading()
        while True:
            kind, length = self._kind, len(self._held)
            found = joined(found, self._head() if kind is _Kind.HEAD else self._body())
            if self._kind is kind and len(self._held) == length:
                return found

    def finish(self, *, is_cut: bool) -> Reading:
        rest, self._held = self._held, ""
        if self._kind is not _Kind.HEAD:
            return joined(self._given(rest), Reading() if is_cut else self._end())
        return Reading() if is_cut or self._begun else Reading(rest)

    def _head(self) -> Reading:
        head, mark, rest = self._held.partition(MESSAGE)
        if mark:
            self._held, self._is_fresh = rest, True
            return self._begin(head)
        looks = any(head.startswith(one) or one.startswith(head) for one in _BEGINS)
        if (looks and len(head) <= _MOST_HEAD) or self._begun:
            return Reading()
        self._kind = _Kind.PLAIN
        return Reading()

    def _begin(self, head: str) -> Reading:
        recipient = re.search(re.escape(_RECIPIENT) + r"([^\s<]+)", head)
        if recipient is not None and recipient[1] in self._names:
            self._kind, self.is_inside, self._has_arguments = _Kind.CALL, True, False
            self._scan = JsonScan()
            self.calls += 1
            return Reading(calls=[CallPiece(self.calls - 1, new_call_id(), recipient[1], "")])
        self._kind = _Kind.THOUGHT if f"{CHANNEL}analysis" in head else _Kind.TEXT
        return Reading()

    def _body(self) -> Reading:
        if self._kind is _Kind.PLAIN:
            rest, self._held = self._held, ""
            return Reading(rest)
        places = [(self._held.find(mark), mark) for mark in _ENDS if mark in self._held]
        if not places:
            certain = len(self._held) - max(held_back(self._held, mark) for mark in _ENDS)
            text, self._held = self._held[:certain], self._held[certain:]
            return self._given(text)
        place, mark = min(places)
        text, rest = self._held[:place], self._held[place:]
        self._held = rest if mark == START else rest[len(mark) :]
        return joined(self._given(text), self._end())

    def _given(self, text: str) -> Reading:
        """A part of a message."""
        if not text:
            return Reading()
        if self._kind is _Kind.CALL:
            self._has_arguments = True
            self.is_inside = self.is_inside and self._scan.end_in(text) is None
            return Reading(calls=[CallPiece(self.calls - 1, None, None, text)])
        if self._is_fresh and self._kind in self._begun:
            text = "\n\n" + text
        self._is_fresh = False
        self._begun.add(self._kind)
        return Reading(reasoning=text) if self._kind is _Kind.THOUGHT else Reading(text)

    def _end(self) -> Reading:
        """The message is whole."""
        kind, self._kind, self.is_inside = self._kind, _Kind.HEAD, False
        self._begun.add(kind)
        if kind is _Kind.CALL and not self._has_arguments:
            return Reading(calls=[CallPiece(self.calls - 1, None, None, "{}")])
        return Reading()


class HarmonyFamily:
    """Implements `Family`. There is one call in an answer."""

    name = "harmony"
    history = History(one_call=True)

    def rules(self, functions: Sequence[Function], split: Split, *, parallel: bool) -> CallRules:
        """The whole message with the call; its mark is that of any message."""
        bodies = [json_body(one, i) for i, one in enumerate(functions)]
        constrain = split(" <|constrain|>json" + MESSAGE)
        calls = " | ".join(
            f"{fixed('commentary ' + _RECIPIENT + one.name, *constrain)} {body.reference}"
            for one, body in zip(functions, bodies, strict=True)
        )
        parts = [part for body in bodies for part in body.parts]
        return CallRules(CHANNEL, True, "call", [f"call: {calls}"], parts)

    def reader(self, functions: Sequence[Function]) -> HarmonyReader:
        return HarmonyReader([one.name for one in functions])

    def written(self, calls: Sequence[tuple[str, str]]) -> str:
        return f"<|end|>{START}assistant".join(
            f"{CHANNEL}commentary {_RECIPIENT}{name} <|constrain|>json{MESSAGE}{arguments}"
            for name, arguments in calls
        )


def message_rules(split: Split) -> list[str]:
    """`before`: any thoughts and preambles. `final`: what stands in front of the answer."""
    end, rules = until("message_text", split(END), ANY)
    again = fixed(*split(f"{START}assistant"))
    heads = " | ".join(fixed(*split(f"{CHANNEL}{one}{MESSAGE}")) for one in _BEFORE)
    final = fixed(*split(f"{CHANNEL}final{MESSAGE}"))
    return [*rules, f"before: (({heads}) {end} {again})*", f"final: {final}"]


_BEFORE = ("analysis", "commentary")

HARMONY = HarmonyFamily()
