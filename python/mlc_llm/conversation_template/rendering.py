"""The two ways to render a template. Loaded with the first rendering, for Jinja takes its time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import jinja2

from mlc_llm.conversation_template import sandbox
from mlc_llm.conversation_template.sandbox import compile_template
from mlc_llm.conversation_template.worker import TimeIsUp, Worker, WorkerDied
from mlc_llm.errors import ModelFileError

__all__ = ["Worker", "compile_template", "render_here", "within"]


def render_here(template: jinja2.Template, values: Mapping[str, Any]) -> dict[str, Any]:
    """Render in this process; answers as `sandbox.serve` does."""
    try:
        return {"text": sandbox.render(template, values)}
    except Exception as error:  # a template's expressions may raise anything
        return sandbox.describe(error)


@contextlib.contextmanager
def within(time_limit: float) -> Iterator[None]:
    """What ends a worker's work, as `ModelFileError`; `time_limit` in seconds."""
    try:
        yield
    except TimeIsUp:
        raise ModelFileError(
            f"chat template: stopped, rendering took more than {time_limit:g} s"
        ) from None
    except WorkerDied:
        raise ModelFileError(
            "chat template: the process that renders it ended (out of memory or stack)"
        ) from None
