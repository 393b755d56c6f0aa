"""Renders one chat template; in a worker process, behind a pipe (`serve`).

Jinja's sandbox keeps a template from running code, not from taking time and memory for ever:
nested loops, `'%1000000000d' % 1`, `|center(1e9)`. So templates of unknown origin are rendered in
a process that may be killed at any moment, with little memory. This file imports jinja2 and the
standard library only, so that the process starts quickly.

Messages on the pipe: 4 bytes of length (big-endian), then JSON in ASCII. First in: the template.
First out: {"ready": true}. Then, for each {"values": ..., "seconds": ...}, one answer: {"text":
...} or {"error": ..., "by_template": ...}.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import IO, Any, NoReturn

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

try:
    import resource
except ImportError:  # not a POSIX system: time alone limits a template there
    resource = None  # type: ignore[assignment]

MAX_OUTPUT = 16 * 2**20
"""Characters of a rendered prompt."""
MAX_MESSAGE = 8 * MAX_OUTPUT
MEMORY = 768 * 2**20
"""Bytes of address space of a worker."""


class Refused(Exception):
    """The template itself refuses the messages, through `raise_exception`."""


class TooLong(Exception):
    """The output is longer than MAX_OUTPUT."""


class _Generation(Extension):
    """`{% generation %}` marks the assistant's words for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 reads a plain set

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _PlainNamespace(Namespace):
    """A namespace without names that mean something to Python."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a namespace cannot hold {name!r}")
        super().__setitem__(name, value)


def _namespace(*pairs: Any, **values: Any) -> _PlainNamespace:
    made = _PlainNamespace()
    for name, value in dict(*pairs, **values).items():
        made[str(name)] = value
    return made


def compile_template(source: str) -> jinja2.Template:
    """The template, with the helpers that templates of models expect.

    Raises `jinja2.TemplateSyntaxError`. Compiling folds constants, so it too may take for ever.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals.update(raise_exception=_refuse, strftime_now=_now, namespace=_namespace)
    return environment.from_string(source)


def render(template: jinja2.Template, values: Mapping[str, Any]) -> str:
    """The text. Raises `Refused`, `TooLong`, and whatever the template's expressions raise."""
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
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; jinja2's own filter escapes HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def read_message(pipe: IO[bytes]) -> Any:
    """The next message; None at the end of the pipe, or when it breaks off."""
    head = _read(pipe, 4)
    size = int.from_bytes(head, "big")
    if len(head) < 4 or size > MAX_MESSAGE:
        return None
    body = _read(pipe, size)
    return json.loads(body) if len(body) == size else None


def write_message(pipe: IO[bytes], message: Any) -> None:
    """Lone surrogates survive: they are written as escapes."""
    body = json.dumps(message).encode("ascii")
    left = memoryview(len(body).to_bytes(4, "big") + body)
    while left:  # a pipe without a buffer takes a part at a time
        left = left[pipe.write(left) :]
    pipe.flush()


def _read(pipe: IO[bytes], size: int) -> bytes:
    """So many bytes, or less where the pipe ends."""
    found = bytearray()
    while len(found) < size and (part := pipe.read(size - len(found))):
        found += part
    return bytes(found)


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """The worker's life: until the pipe ends."""
    _limit_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's matter
    source = read_message(requests)
    write_message(answers, {"ready": True})
    template: jinja2.Template | None = None

    def answer(request: Mapping[str, Any]) -> dict[str, Any]:
        nonlocal template
        template = template or compile_template(source)
        return {"text": render(template, request["values"])}

    while (request := read_message(requests)) is not None:
        _alarm(request["seconds"])
        write_message(answers, _guarded(answer, request))
        _alarm(0)


def _guarded(
    answer: Callable[[Mapping[str, Any]], dict[str, Any]], request: Mapping[str, Any]
) -> dict[str, Any]:
    try:
        return answer(request)
    except Exception as error:
        return describe(error)


def describe(error: Exception) -> dict[str, Any]:
    """What went wrong, for the other side of the pipe."""
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
    """Die of a signal after a while: the parent kills a slow worker, but may be gone itself."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)
