"""The two ways to render a template. Loaded at the first rendering, since Jinja loads slowly."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import jinja2

from mlc_llm.conversation_template import sandbox
from mlc_llm.conversation_template.sandbox import Answer, compile_template
from mlc_llm.conversation_template.worker import TimeIsUp, Worker, WorkerDied
from mlc_llm.errors import ModelFileError

__all__ = ["Worker", "compile_template", "render_here", "within"]


def render_here(template: jinja2.Template, values: Mapping[str, object]) -> Answer:
    """Render in this process. The answer is like that of `sandbox.serve`."""
    try:
        return {"text": sandbox.render(template, values)}
    except Exception as error:  # a template's expressions may raise anything
        return sandbox.describe(error)


@contextlib.contextmanager
def within(time_limit: float) -> Iterator[None]:
    """Turns the errors of a worker into `ModelFileError`. `time_limit` is in seconds."""
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
