"""The grammar of calls in a `CallLayout`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from mlc_llm.protocol.error_protocol import validated
from mlc_llm.protocol.response_format import GrammarPart, RequestResponseFormat
from mlc_llm.serve.openai.tools.family import Function
from mlc_llm.serve.openai.tools.form_grammar import CallRules
from mlc_llm.serve.openai.tools.lark import Split, fixed
from mlc_llm.serve.openai.tools.layout import CallLayout

MAX_CALLS = 16
"""In one answer: small models repeat themselves without end."""


class Body(NamedTuple):
    """The grammar of the arguments of one function."""

    reference: str
    """What stands for it in another rule."""
    rules: Sequence[str]
    parts: Sequence[GrammarPart]


def layout_rules(
    layout: CallLayout,
    tools: Sequence[Function],
    split: Split,
    *,
    parallel: bool,
    body: Callable[[Function, int], Body] | None = None,
) -> CallRules:
    """The rules of one call, or of one and more. body: of the arguments of one of the functions;
    None: a JSON object."""
    bodies = [(body or json_body)(one, i) for i, one in enumerate(tools)]
    rules = [f"call: {_one_of(layout, layout.first, tools, bodies, split)}"]
    behind = "call"
    if parallel and layout.again:
        rules.append(f"more: {_one_of(layout, layout.again, tools, bodies, split)}")
        behind += f" more{{0,{MAX_CALLS - 1}}}"
    if layout.close:
        behind += " " + fixed(*split(layout.close))
    for one in bodies:
        rules += one.rules
    parts = [part for one in bodies for part in one.parts]
    return CallRules(layout.mark, layout.only_at_start, behind, rules, parts)


def json_body(function: Function, number: int) -> Body:
    """Arguments that are a JSON object."""
    part = schema_part(f"f{number}", function.schema, function.field)
    return Body(f"@f{number}", (), [part])


def _one_of(
    layout: CallLayout, lead: str, tools: Sequence[Function], bodies: Sequence[Body], split: Split
) -> str:
    # A name is ordinary text, whatever it is.
    middle, last = split(layout.middle), fixed(*split(layout.last))
    return " | ".join(
        f"{fixed(*split(lead), layout.spelled(one.name), *middle)} {body.reference} {last}".strip()
        for one, body in zip(tools, bodies, strict=True)
    )


def schema_part(name: str, schema: Mapping[str, object], field: str) -> GrammarPart:
    """A JSON schema as a part of a grammar."""
    form = validated(RequestResponseFormat, {"type": "json_object", "schema": schema}, field)
    return GrammarPart(name=name, form=form, field=field)
