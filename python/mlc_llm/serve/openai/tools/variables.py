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
_OFF = "none"
_SWITCHES = ("enable_thinking", "thinking")
_RANKS = {
    _OFF: 0, "no_think": 0, "minimal": 1, "low": 2, "medium": 3, "high": 4, "xhigh": 5, "max": 6,
}  # fmt: skip
"""Of efforts. `no_think` is the word of Hy3."""


def template_variables(
    template: Template | None, given: Mapping[str, object], effort: str | None
) -> dict[str, object]:
    """The values for a template. given: names and plain values of the request.

    Raises `InvalidField` for a name that the template does not read. effort: switches thinking on
    or off where the template has a switch, and becomes `reasoning_effort` where it reads that. One
    that is not in the template's list becomes the nearest one.
    """
    for name in given:
        if not _reads(template, name):
            words = "this model's chat template does not read it"
            raise InvalidField(f"{FIELD}.{name}", given[name], words)
    return dict(given) if effort is None else {**_of_effort(template, effort), **given}


def effort_has_effect(template: Template | None, effort: str) -> bool:
    """Whether this effort changes what the template writes. One that becomes another does not."""
    made = _of_effort(template, effort)
    level = str(made.get("reasoning_effort", effort))
    return bool(made) and _RANKS.get(level) == _RANKS.get(effort)


def _of_effort(template: Template | None, effort: str) -> dict[str, object]:
    """The values of an effort for a template."""
    switch = next((name for name in _SWITCHES if _reads(template, name)), None)
    found: dict[str, object] = {} if switch is None else {switch: effort != _OFF}
    if _reads(template, "reasoning_effort") and not (switch and effort == _OFF):
        found["reasoning_effort"] = _nearest(template, effort)
    return found


def _nearest(template: Template | None, effort: str) -> str:
    """The effort that is nearest to this one in the template's list; itself without a list. Of two
    that are as near it is the higher one. None at all is near to no other one."""
    listed = _LIST.search(_code(template.source)) if isinstance(template, ChatTemplate) else None
    names: list[str] = [] if listed is None else _NAME.findall(listed[1])
    ranks = {_RANKS[name]: name for name in names if name in _RANKS}
    if effort in names or not ranks:
        return effort
    wanted = _RANKS[effort]
    best = min(ranks, key=lambda one: ((one == 0) != (wanted == 0), abs(one - wanted), -one))
    return ranks[best]


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
_LIST = re.compile(r"(?<![\w.])reasoning_effort not in [(\[]([^()\[\]]*)[)\]]")
_NAME = re.compile(r"['\"](\w+)['\"]")
_BEGIN, _END = re.compile(r"\{[{%]"), re.compile(r"[}%]\}")
