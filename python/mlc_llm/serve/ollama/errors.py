"""Errors in the shape of Ollama's API."""

from __future__ import annotations


def error_body(message: str) -> dict[str, object]:
    """The body of an error answer, and the last line of a stream that failed."""
    return {"error": message}
