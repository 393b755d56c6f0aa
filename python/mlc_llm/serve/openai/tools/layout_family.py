"""Families whose calls follow a `CallLayout`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from mlc_llm.record import record
from mlc_llm.serve.openai.tools.family import Function, History
from mlc_llm.serve.openai.tools.form_grammar import CallRules
from mlc_llm.serve.openai.tools.lark import Split
from mlc_llm.serve.openai.tools.layout import CallLayout
from mlc_llm.serve.openai.tools.layout_rules import layout_rules
from mlc_llm.serve.openai.tools.read_layout import LayoutReader


@record()
class LayoutFamily:
    """Implements `Family`."""

    name: str
    layout: CallLayout
    history: History = field(default_factory=History)

    def rules(self, functions: Sequence[Function], split: Split, *, parallel: bool) -> CallRules:
        return layout_rules(self.layout, functions, split, parallel=parallel)

    def reader(self, functions: Sequence[Function]) -> LayoutReader:
        return LayoutReader(self.layout, [one.name for one in functions])

    def written(self, calls: Sequence[tuple[str, str]]) -> str:
        return self.layout.written(calls)
