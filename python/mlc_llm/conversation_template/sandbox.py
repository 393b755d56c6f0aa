"""Renders one chat template. `serve` does it in a worker process, behind a pipe.

Jinja's sandbox prevents that a template runs code. It does not limit time and memory: nested loops,
`'%1000000000d' % 1`, `|center(1e9)`. So a template of unknown origin is rendered in a process that
has little memory and may be killed at any moment. This file imports only jinja2 and the standard
library, so that the process starts quickly.

Messages on the pipe: 4 bytes of length (big-endian), then JSON in ASCII. First in: the template.
First out: {"ready": true}. Then, for each {"values": ..., "seconds": ...}, one answer: {"text":
...} or {"error": ..., "by_template": ...}.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import IO, Any, NoReturn, TypedDict, final

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

try:
    import resource
except ImportError:  # not a POSIX system: there, only time limits a template
    resource = None  # type: ignore[assignment]

MAX_OUTPUT = 16 * 2**20
"""Characters of a rendered prompt."""
MAX_MESSAGE = 8 * MAX_OUTPUT
MEMORY = 768 * 2**20
"""Bytes of address space of a worker."""


@final
class Rendered(TypedDict):
    """The answer of a template that was rendered."""

    text: str


@final
class Failed(TypedDict):
    """The answer of a template that failed."""

    error: str
    by_template: bool
    """The template itself refuses the messages."""


Answer = Rendered | Failed


class Task(TypedDict):
    """What the worker is asked to render, and the seconds that it has for that."""

    values: Mapping[str, object]
    seconds: float


class Refused(Exception):
    """The template itself refuses the messages, through `raise_exception`."""


class TooLong(Exception):
    """The output is longer than MAX_OUTPUT."""


class _Generation(Extension):
    """`{% generation %}` marks the assistant's words for training. Here it changes nothing, but
    what is set inside is not known behind it."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 reads a plain set

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


class _PlainNamespace(Namespace):
    """A namespace that refuses names with a meaning in Python."""

    def __setitem__(self, name: str, value: object) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a namespace cannot hold {name!r}")
        super().__setitem__(name, value)


def _namespace(*pairs: Any, **values: object) -> _PlainNamespace:
    made = _PlainNamespace()
    for name, value in dict(*pairs, **values).items():
        made[str(name)] = value
    return made


class _Environment(ImmutableSandboxedEnvironment):
    """Templates may also change lists: what they get is a copy of their own."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, list) and attr in _OF_LISTS:
            return True
        return super().is_safe_attribute(obj, attr, value)


_OF_LISTS = frozenset({"append", "extend", "insert", "pop", "remove", "clear", "reverse"})


def compile_template(source: str) -> jinja2.Template:
    """The template, with the helpers that templates of models use.

    Raises `jinja2.TemplateSyntaxError`. Compiling computes constants, so it may take very long.
    """
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals.update(raise_exception=_refuse, strftime_now=_now, namespace=_namespace)
    return environment.from_string(source)


def render(template: jinja2.Template, values: Mapping[str, object]) -> str:
    """The text. Raises `Refused`, `TooLong`, and anything that the template's expressions raise."""
    pieces, length = [], 0
    for piece in template.generate(values):
        length += len(piece)
        if length > MAX_OUTPUT:
            raise TooLong(f"the text is longer than {MAX_OUTPUT} characters")
        pieces.append(piece)
    return "".join(pieces)


def _refuse(message: object) -> NoReturn:
    raise Refused(str(message))


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON. The filter of jinja2 escapes HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_listed,
    )


def _listed(value: object) -> list[object]:
    """What a filter such as `map` gives is no list yet."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def read_message(pipe: IO[bytes]) -> Any:
    """The next message. None at the end of the pipe, also in the middle of a message."""
    head = _read(pipe, 4)
    size = int.from_bytes(head, "big")
    if len(head) < 4 or size > MAX_MESSAGE:
        return None
    body = _read(pipe, size)
    return json.loads(body) if len(body) == size else None


def write_message(pipe: IO[bytes], message: object) -> None:
    """Write one message. Lone surrogates are kept: they are written as escapes."""
    body = json.dumps(message).encode("ascii")
    left = memoryview(len(body).to_bytes(4, "big") + body)
    while left:  # a pipe without a buffer may write only a part
        left = left[pipe.write(left) :]
    pipe.flush()


def _read(pipe: IO[bytes], size: int) -> bytes:
    """`size` bytes, or fewer if the pipe ends."""
    found = bytearray()
    while len(found) < size and (part := pipe.read(size - len(found))):
        found += part
    return bytes(found)


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until the pipe ends. This is all that the worker does."""
    _limit_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    source = read_message(requests)
    write_message(answers, {"ready": True})
    template: jinja2.Template | None = None

    def answer(request: Task) -> Answer:
        nonlocal template
        template = template or compile_template(source)
        return {"text": render(template, request["values"])}

    while (request := read_message(requests)) is not None:
        _alarm(request["seconds"])
        write_message(answers, _guarded(answer, request))
        _alarm(0)


def _guarded(answer: Callable[[Task], Answer], request: Task) -> Answer:
    try:
        return answer(request)
    except Exception as error:
        return describe(error)


def describe(error: Exception) -> Failed:
    """The error, for the other side of the pipe."""
    if isinstance(error, MemoryError):
        return {"error": f"needs more than {MEMORY >> 20} MiB of memory", "by_template": False}
    by_template = isinstance(error, Refused)
    name = "" if by_template else f"{type(error).__name__}: "
    return {"error": (name + str(error))[:500], "by_template": by_template}


def _limit_memory() -> None:
    if resource is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def _alarm(seconds: float) -> None:
    """Die of a signal after this time. The parent kills a slow worker, but it may have ended."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)
