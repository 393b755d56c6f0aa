"""What a user does on the chat page, and a scripted server for what the echo engine cannot say."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

SSE = {"content-type": "text/event-stream; charset=utf-8"}
CHAT = "**/v1/chat/completions"
DONE = "data: [DONE]\n\n"


def send(page: Any, text: str) -> None:
    """Write a message and send it."""
    page.fill("#question", text)
    page.press("#question", "Enter")


def ask(page: Any, text: str) -> str:
    """Send a message and wait for the end of its answer, which is returned."""
    count = page.locator(".message.assistant .stats").count()
    send(page, text)
    page.locator(".message.assistant .stats").nth(count).wait_for()
    return last_answer(page)


def last_answer(page: Any) -> str:
    found: str = page.locator(".message.assistant .answer").last.inner_text()
    return found


def until(page: Any, expression: str) -> None:
    """Wait until the expression is true. (Playwright's own way evaluates text as code in the page,
    which the page's policy refuses.)"""
    end = time.monotonic() + 60
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"never true: {expression}"
        page.wait_for_timeout(10)


def delta(**fields: str) -> str:
    chunk = {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}
    return f"data: {json.dumps(chunk)}\n\n"


def ended(reason: str = "stop", **usage: int) -> str:
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    counts = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12, **usage}
    return f"data: {json.dumps(last)}\n\ndata: {json.dumps({'choices': [], 'usage': counts})}\n\n"


def script(page: Any, parts: Sequence[str]) -> list[Any]:
    """All chats get this stream at once. Returns the list that their requests go into."""
    seen: list[Any] = []

    def answer(route: Any) -> None:
        seen.append(route.request.post_data_json)
        route.fulfill(status=200, headers=SSE, body="".join(parts))

    page.route(CHAT, answer)
    return seen


def refuse(page: Any, status: int, message: str, headers: dict[str, str] | None = None) -> None:
    """All chats get this error."""
    body = {"error": {"message": message, "type": "t", "param": None, "code": None}}
    page.unroute(CHAT)
    page.route(CHAT, lambda route: route.fulfill(status=status, headers=headers, json=body))


def markdown(page: Any, source: str) -> str:
    """The HTML that the page makes of an answer."""
    code = """async (source) => {
        const { render } = await import('/page/markdown.js');
        const made = document.createElement('div');
        render(made, source);
        return made.innerHTML;
    }"""
    found: str = page.evaluate(code, source)
    return found
