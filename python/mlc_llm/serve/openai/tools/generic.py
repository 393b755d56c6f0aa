"""Tools in templates that have no place for them: a text in the system message."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import cast

from mlc_llm.protocol.messages import GivenTool, TemplateMessage
from mlc_llm.serve.openai.tools.family import Family

_INTRODUCTION = (
    "You can call functions. Each line between <tools> and </tools> describes one, as JSON:\n"
    "<tools>\n{tools}\n</tools>\n\n"
    "To call a function, write its name, and its arguments as JSON, in this form:\n{form}\n\n"
    "The result comes between <tool_response> and </tool_response>."
)
_EXAMPLE = ("name-of-the-function", '{"name-of-an-argument": "its value"}')


def with_tools(
    messages: Sequence[TemplateMessage], tools: Sequence[GivenTool], family: Family
) -> list[TemplateMessage]:
    """The messages, with the tools described in the first system message."""
    functions = [json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools]
    text = _INTRODUCTION.replace("{form}", family.written([_EXAMPLE]))
    text = text.replace("{tools}", "\n".join(functions))
    first, rest = messages[0], list(messages[1:])
    if first["role"] == "system":
        return [{**first, "content": f"{first['content'] or ''}\n\n{text}".lstrip()}, *rest]
    return [{"role": "system", "content": text}, first, *rest]


def calls_as_text(messages: Sequence[TemplateMessage], family: Family) -> list[TemplateMessage]:
    """The messages, with past calls in the text of the assistant."""
    return [_written(message, family) for message in messages]


def results_as_user(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """The messages, with the results of tools as texts of the user. Results in a row are one."""
    found: list[TemplateMessage] = []
    is_behind_result = False
    for message in messages:
        is_result = message["role"] == "tool"
        if is_result:
            text = f"<tool_response>\n{message['content'] or ''}\n</tool_response>"
            if is_behind_result:
                text = f"{found.pop()['content']}\n{text}"
            found.append({"role": "user", "content": text})
        else:
            found.append(message)
        is_behind_result = is_result
    return found


def _written(message: TemplateMessage, family: Family) -> TemplateMessage:
    calls = message.get("tool_calls")
    if not calls:
        return message
    named = [cast("Mapping[str, object]", call["function"]) for call in calls]
    text = family.written([(str(one["name"]), arguments_json(one["arguments"])) for one in named])
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    content = f"{message['content']}\n{text}" if message["content"] else text
    return cast("TemplateMessage", {**rest, "content": content})


def arguments_json(arguments: object) -> str:
    """Past arguments as JSON text; a text is no JSON, and stays as it is."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
