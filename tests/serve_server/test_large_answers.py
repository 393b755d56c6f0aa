"""Large answers are built beside the event loop, which serves others meanwhile."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from server_harness import Running
from threaded_harness import PATIENCE_SECONDS

from mlc_llm.serve.openai.chunk_models import WholeChat
from mlc_llm.serve.openai.chunks import ChoicePiece, Chunk
from mlc_llm.serve.openai.completion_logprobs import TokenLists
from mlc_llm.serve.openai.completions import WholeCompletion
from mlc_llm.serve.responses.answers import Head
from mlc_llm.serve.server.streams.large import LARGE, size_of

CHAT = {"messages": [{"role": "user", "content": "a" * 200}], "logprobs": True, "top_logprobs": 20}
ECHO = {"prompt": "a" * 600, "echo": True, "logprobs": 5, "max_tokens": 1}
INPUT = {"input": "a" * 200, "top_logprobs": 20, "stream": True}
ANSWERS: dict[str, tuple[type, str, str, dict[str, Any]]] = {
    "chat": (WholeChat, "response", "/v1/chat/completions", CHAT),
    "completion": (WholeCompletion, "response", "/v1/completions", ECHO),
    "responses": (Head, "ended", "/v1/responses", INPUT),
    "stream": (TokenLists, "of_prompt", "/v1/completions", {**ECHO, "stream": True}),
}


class Held:
    """Work that waits for `gate`, and notes where it is done."""

    def __init__(self, usual: Any) -> None:
        self.usual, self.threads = usual, list[str]()
        self.entered, self.gate = threading.Event(), threading.Event()

    def function(self) -> Any:
        def held(*given: Any) -> Any:
            self.threads.append(threading.current_thread().name)
            self.entered.set()
            assert self.gate.wait(PATIENCE_SECONDS)
            return self.usual(*given)

        return held


@pytest.mark.parametrize("name", ANSWERS)
def test_others_are_served_while_it_is_built(
    server: Running, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, method, path, body = ANSWERS[name]
    held = Held(getattr(owner, method))
    monkeypatch.setattr(owner, method, held.function())
    found: list[int] = []
    asking = threading.Thread(
        target=lambda: found.append(server.call("POST", path, body).status), daemon=True
    )
    asking.start()
    try:
        assert held.entered.wait(PATIENCE_SECONDS)
        assert "mlc-prepare" in held.threads[0]
        assert server.call("GET", "/health").status == 200
    finally:
        held.gate.set()
    asking.join(PATIENCE_SECONDS)
    assert found == [200]
    server.wait_idle()


def test_small_answers_need_no_other_thread(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(WholeChat.response)
    held.gate.set()
    monkeypatch.setattr(WholeChat, "response", held.function())
    assert server.chat("hello", logprobs=True).status == 200
    assert len(held.threads) == 1 and "mlc-prepare" not in held.threads[0]


def test_what_counts() -> None:
    piece = ChoicePiece(0, "text", None, ["12345", "678"])
    assert size_of(Chunk([piece, piece]), 9) == 16
    assert size_of(Chunk([], prompt_logprobs=["1234"]), 3) == 12
    assert size_of(Chunk([], embedding=[0.5] * LARGE), 1) == LARGE
    assert size_of(Chunk([ChoicePiece(0, "text", None, None)], usage_json="{}"), 1) == 0
