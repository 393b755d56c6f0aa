"""What the workers of peers share: prompts, and answers to measurements given as lines of JSON.

Runs in the peers' environments, so it imports nothing but the standard library.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, Protocol

VOCABULARY = 30_000
"""Ids below it are in every model that is compared."""


class Engine(Protocol):
    """A model held by a peer."""

    def add(self, depth: int, tokens: int) -> Any:
        """A request with a prompt of `depth` tokens, ended by its `tokens` new ones alone."""

    def finish(self) -> float:
        """Seconds until nothing is left to do."""

    def decode(self, requests: Sequence[Any], tokens: int) -> float:
        """Tokens a second behind the prompts of requests just added, of `tokens` + 1 each."""


def prompt(depth: int, request: int) -> list[int]:
    """Token ids like those of no other request: nothing can be reused."""
    return [(7919 * i + 1000 + 31 * request) % VOCABULARY for i in range(depth)]


def measure(engine: Engine, depth: int, tokens: int, streams: int) -> float:
    """Tokens a second (see `base.Trial`)."""
    requests = [engine.add(depth, tokens + 1) for _ in range(streams)]
    return engine.decode(requests, tokens) if tokens else depth * streams / engine.finish()


def answer(engine: Engine, line: str) -> dict[str, Any]:
    """`{"value": ...}` or `{"error": text}`; the first run of a shape, which may compile, does
    not count. What is no measurement asks whether the model is there."""
    request = json.loads(line)
    if request["do"] != "measure":
        return {"value": 0}
    depth, tokens, streams = (request[key] for key in ("depth", "tokens", "streams"))
    try:
        measure(engine, depth, min(tokens, 2), streams)
        return {"value": measure(engine, depth, tokens, streams)}
    except (RuntimeError, ValueError) as error:
        return {"error": str(error)[:300] or type(error).__name__}


def work(engine: Engine, mode: str) -> None:
    """serve: answer every line of standard input. once: one token behind a 16-token prompt."""
    if mode == "once":
        engine.add(16, 1)
        engine.finish()
        return
    for line in sys.stdin:
        print(json.dumps(answer(engine, line)), flush=True)
