"""Past calls and results, in the form that a chat template wants."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import cast

from mlc_llm.protocol.conversation_protocol import Conversation
from mlc_llm.protocol.messages import GivenTool, TemplateMessage
from mlc_llm.serve.openai.system_messages import without_system
from mlc_llm.serve.openai.tools.families import (
    Template,
    family_of,
    has_place_for_tools,
    shows_calls,
    source_of,
)
from mlc_llm.serve.openai.tools.family import Family, History
from mlc_llm.serve.openai.tools.generic import (
    arguments_json,
    calls_as_text,
    results_as_user,
    with_tools,
)
from mlc_llm.serve.openai.tools.json_families import HERMES

_LETTERS = string.ascii_letters + string.digits
_WANTS_NONE = re.compile(r"message\[.content.\] is none\s*-?%\}")
_GOES_THROUGH = re.compile(
    r"""(arguments|args|params)(\[.\w+.\])?\s*(\.items\(|\|\s*(items|dictsort))"""
    r"|in [\w.]*arguments\s*-?%\}"
)
"""A template that shows arguments one by one, so that they have to be an object."""
_WRITES_ROLES = re.compile(r"\bmessage(\.role|\[.role.\])\s*[+~]")
"""A template that writes the roles of messages as they are."""
_REFUSES_BOTH = "Cannot pass both content and thinking"
"""In the template of gpt-oss."""
_REFUSES_SYSTEM = "System role not supported"
"""In the templates of Gemma 2."""


def shown_messages(
    messages: Sequence[TemplateMessage], tools: Sequence[GivenTool], template: Template
) -> tuple[list[TemplateMessage], bool]:
    """The messages as this template can show them, and whether it shows the tools itself. There
    are tools, or calls or results among the messages.

    What it has no place for stands in texts: tools in the system message, calls in the text of the
    assistant, results in texts of the user.
    """
    known = family_of(template)
    family = known or HERMES
    named = isinstance(template, Conversation)
    itself = (named or known is not None) and has_place_for_tools(template)
    found = list(messages)
    is_generic = known is None and not named and bool(tools)
    if is_generic or not shows_calls(template):
        found = calls_as_text(found, family)
    else:
        found = one_by_one(found) if family.history.one_call else found
        wants_objects = family.history.objects or _GOES_THROUGH.search(source_of(template))
        found = _with_objects(found, family) if wants_objects else found
        wanted = family.history
        if "tojson" in source_of(template):
            wanted = replace(wanted, text_arguments=False)
        found = [_with_text(_adapted(one, wanted), template) for one in found]
        found = [_with_thoughts(one, template) for one in found]
    if is_generic or not _shows_results(template, known is not None):
        found = results_as_user(found)
    if tools and not itself:
        found = with_tools(found, tools, family)
        if _REFUSES_SYSTEM in source_of(template):
            found = without_system(found)
    return found, itself


def _shows_results(template: Template, has_form: bool) -> bool:
    """has_form: the template shows a known form of calls, so any role that it writes includes that
    of results."""
    if isinstance(template, Conversation):
        return "tool" in template.roles
    named = any(mark in template.source for mark in ('"tool"', "'tool'", "tool_call_id"))
    return named or (has_form and _WRITES_ROLES.search(template.source) is not None)


def call_family(template: Template | None) -> Family:
    """The form of calls that a model is asked for."""
    return family_of(template) or HERMES


def _adapted(message: TemplateMessage, history: History) -> TemplateMessage:
    if history.id_chars is not None and "tool_call_id" in message:
        short = _short(str(cast("dict[str, object]", message)["tool_call_id"]), history.id_chars)
        message = cast("TemplateMessage", {**message, "tool_call_id": short})
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {**message, "tool_calls": [_adapted_call(call, history) for call in calls]}


def one_by_one(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """The messages, with one call in each; the result of a call follows it."""
    found: list[TemplateMessage] = []
    results = {str(_field(one, "tool_call_id")): one for one in messages if one["role"] == "tool"}
    placed: set[int] = set()
    for message in messages:
        calls = message.get("tool_calls", [])
        if len(calls) < 2:
            found += [message] if id(message) not in placed else []
            continue
        for i, call in enumerate(calls):
            found.append({**message, "content": None if i else message["content"]})
            found[-1]["tool_calls"] = [call]
            result = results.get(str(call.get("id")))
            if result is not None and id(result) not in placed:
                placed.add(id(result))
                found.append(result)
    return found


def _with_objects(messages: Sequence[TemplateMessage], family: Family) -> list[TemplateMessage]:
    """The messages, with texts for those whose calls have arguments that are no objects, and for
    the results of these."""
    runs: list[list[TemplateMessage]] = []
    for message in messages:
        if message["role"] == "tool" and runs:
            runs[-1].append(message)
        else:
            runs.append([message])
    texts = (
        run if _has_objects(run[0]) else results_as_user(calls_as_text(run, family)) for run in runs
    )
    return [message for run in texts for message in run]


def _has_objects(message: TemplateMessage) -> bool:
    """Whether the arguments of all calls are objects. Without a call they are."""
    functions = [
        cast("dict[str, object]", one["function"]) for one in message.get("tool_calls", [])
    ]
    return all(isinstance(one["arguments"], Mapping) for one in functions)


def _field(message: TemplateMessage, name: str) -> object:
    return cast("dict[str, object]", message).get(name)


def _with_thoughts(message: TemplateMessage, template: Template) -> TemplateMessage:
    """Some templates call past thoughts `thinking`; one of them takes no text beside these."""
    thoughts, source = _field(message, "reasoning_content"), source_of(template)
    if not thoughts or "message.thinking" not in source:
        return message
    if message["content"] and _REFUSES_BOTH in source:
        return message
    return cast("TemplateMessage", {**message, "thinking": thoughts})


def _with_text(message: TemplateMessage, template: Template) -> TemplateMessage:
    """Most templates want a text beside calls; a few find calls where there is none."""
    if message["content"] is not None or _WANTS_NONE.search(source_of(template)):
        return message
    return {**message, "content": ""}


def _adapted_call(call: dict[str, object], history: History) -> dict[str, object]:
    found = {"type": "function", **call}
    if history.id_chars is not None:
        found["id"] = _short(str(call.get("id", "")), history.id_chars)
    if history.text_arguments:
        function = cast("dict[str, object]", call["function"])
        found["function"] = {**function, "arguments": arguments_json(function["arguments"])}
    return found


def _short(call_id: str, chars: int) -> str:
    """An id of so many letters and digits: the same for the same id."""
    if len(call_id) == chars and call_id.isascii() and call_id.isalnum():
        return call_id
    number = int.from_bytes(sha256(call_id.encode()).digest(), "big")
    return "".join(_LETTERS[number // len(_LETTERS) ** i % len(_LETTERS)] for i in range(chars))
