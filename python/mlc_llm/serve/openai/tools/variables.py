"""Values of a request that a chat template reads: `chat_template_kwargs`, `reasoning_effort`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.errors import InvalidField
from mlc_llm.serve.openai.tools.families import Template

FIELD = "chat_template_kwargs"
RESERVED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"}
    | {"raise_exception", "strftime_now", "namespace", "range", "dict", "lipsum", "cycler"}
    | {"joiner", "loop", "self", "caller", "varargs", "kwargs", "true", "false", "none", "True"}
    | {"False", "None", "not", "and", "or", "in", "is", "if", "else", "elif", "endif", "for"}
    | {"endfor", "set", "endset", "macro", "endmacro", "call", "filter", "import", "include"}
    | {"defined", "undefined", "string", "mapping", "iterable", "content", "role", "generation"}
)
"""What a template reads from elsewhere, and words of its language."""
_EFFORTS_OFF = ("none",)
_SWITCHES = ("enable_thinking", "thinking")


def template_variables(
    template: Template | None, given: Mapping[str, object], effort: str | None
) -> dict[str, object]:
    """The values for a template. given: names and plain values of the request.

    Raises `InvalidField` for a name that the template does not read. effort: becomes
    `reasoning_effort` where the template reads that, or else switches thinking on or off.
    """
    for name in given:
        if not _reads(template, name):
            words = "this model's chat template does not read it"
            raise InvalidField(f"{FIELD}.{name}", given[name], words)
    made = dict(given)
    if effort is not None:
        name, value = _effort(template, effort) or ("", None)
        if name:
            made.setdefault(name, value)
    return made


def effort_has_effect(template: Template | None, effort: str) -> bool:
    """Whether this effort changes what the template writes."""
    return _effort(template, effort) is not None


def _effort(template: Template | None, effort: str) -> tuple[str, object] | None:
    if _reads(template, "reasoning_effort"):
        return "reasoning_effort", effort
    switch = next((name for name in _SWITCHES if _reads(template, name)), None)
    return None if switch is None else (switch, effort not in _EFFORTS_OFF)


def _reads(template: Template | None, name: str) -> bool:
    """Whether a template reads a value of this name, as far as its text shows."""
    if not isinstance(template, ChatTemplate) or name in RESERVED or not name.isidentifier():
        return False
    return re.search(rf"(?<![\w.'\"]){re.escape(name)}\b", _code(template.source)) is not None


def _code(source: str) -> str:
    """The expressions and statements of a template."""
    found, at = [], 0
    while (begin := _BEGIN.search(source, at)) and (end := _END.search(source, begin.end())):
        found.append(source[begin.start() : end.end()])
        at = end.end()
    return " ".join(found)


# One pattern for both ends would look for an end behind each beginning again.
_BEGIN, _END = re.compile(r"\{[{%]"), re.compile(r"[}%]\}")
