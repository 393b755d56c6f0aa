"""Plainer forms of a conversation, for chat templates that refuse its system messages.

Some take one system message at the beginning (Qwen 3.5), and some take none (Gemma 2).
"""

from __future__ import annotations

from collections.abc import Sequence

from mlc_llm.protocol.messages import TemplateMessage


def system_first(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """The messages with one system message, at the beginning: the texts of those that stand there
    are joined. A later one stands in a turn of the user.

    This is the next turn, or the one before. It is a turn of its own between two answers. Between
    a call and what is made of its result nothing may stand; there it is the turn that asked.
    """
    first = _leading(messages)
    found: list[TemplateMessage] = []
    waiting: list[str | None] = []
    lost: list[str | None] = []
    for message in messages[first:]:
        if message["role"] == "system":
            waiting.append(message["content"])
            continue
        if waiting and message["role"] == "user":
            text = _joined([*waiting, message["content"]])
            found.append({**message, "content": text})
        else:
            if waiting:
                lost += _put_behind(found, waiting, is_result=message["role"] == "tool")
            found.append(message)
        waiting = []
    if waiting:
        lost += _put_behind(found, waiting, is_result=False)
    texts = [one["content"] for one in messages[:first]] + lost
    return [{"role": "system", "content": _joined(texts)}, *found] if texts else found


def without_system(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """The messages without the first one, if that is the system's: its text stands before the
    first one of the user."""
    if messages[0]["role"] != "system":
        return list(messages)
    text, rest = messages[0]["content"] or "", list(messages[1:])
    if not rest or rest[0]["role"] != "user":
        return [{"role": "user", "content": text}, *rest]
    return [{**rest[0], "content": _joined([text, rest[0]["content"]])}, *rest[1:]]


def _leading(messages: Sequence[TemplateMessage]) -> int:
    """How many system messages the conversation begins with."""
    roles = [one["role"] for one in messages]
    return next((i for i, role in enumerate(roles) if role != "system"), len(roles))


def _put_behind(
    found: list[TemplateMessage], texts: Sequence[str | None], *, is_result: bool
) -> Sequence[str | None]:
    """Puts texts into a turn of the user at the end of `found`, or before it. is_result: a result
    of a tool comes next. The texts come back if there is no such turn."""
    last = found[-1] if found else None
    is_answer = last is not None and last["role"] == "assistant" and not last.get("tool_calls")
    if is_answer and not is_result:
        found.append({"role": "user", "content": _joined(texts)})
        return ()
    for i in reversed(range(len(found))):
        if found[i]["role"] == "user":
            found[i] = {**found[i], "content": _joined([found[i]["content"], *texts])}
            return ()
    return texts


def _joined(texts: Sequence[str | None]) -> str:
    """With an empty line between them."""
    return "\n\n".join(text for text in texts if text)
