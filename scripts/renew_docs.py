"""Updates the parts of three pages of docs/ that come from the code, and nothing else: of api.md,
guide.md and server.md.

These parts are between `<!-- from the code: NAME -->` and `<!-- end -->`. NAME is a key of `BLOCKS`
or the file of an example. A test compares the pages with the code.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, cast

from pydantic import BaseModel

from mlc_llm import errors
from mlc_llm.json_ffi.engine import Completions, JSONFFIEngine
from mlc_llm.protocol import chat_parameters
from mlc_llm.protocol.debug_protocol import DebugConfig
from mlc_llm.protocol.field_docs import FieldDoc, field_docs
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve import data, limits, metrics
from mlc_llm.serve.answers import ChatAnswer, Generated, Usage
from mlc_llm.serve.async_engine import AsyncMLCEngine
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.config_fields import MODES
from mlc_llm.serve.counters import PrefixLookups
from mlc_llm.serve.engine import ChatCompletions, Embeddings, MLCEngine
from mlc_llm.serve.engine import Completions as TextCompletions
from mlc_llm.serve.memory_plan import KVSize, ModelSize
from mlc_llm.serve.openai.tools.families import RULES
from mlc_llm.serve.request import Request
from mlc_llm.serve.sync_engine import SyncMLCEngine
from mlc_llm.serve.threaded_engine import ThreadedEngine
from mlc_llm.tokenizers import TextStreamer, Tokenizer

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "docs" / name for name in ("api.md", "guide.md", "server.md")]
WIDTH = 100
BLOCK = re.compile(r"(<!-- from the code: (.+?) -->\n).*?(<!-- end -->)", flags=re.DOTALL)

Rows = Iterable[tuple[str, ...]]
Mode = Literal["local", "interactive", "server"]


def renewed(page: str) -> str:
    """The page with every block updated. Raises KeyError for an unknown name."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{block(found[2])}\n\n{found[3]}", page)


def block(name: str) -> str:
    """The text of a block."""
    if name.startswith("examples/"):
        return code((ROOT / name).read_text(encoding="utf-8").strip(), "python")
    return BLOCKS[name]()


def with_methods(cls: type, *, also: tuple[str, ...] = (), inner: tuple[str, ...] = ()) -> str:
    """A class: its constructor, its docstring and its methods. inner: methods that are left out.
    also: if given, the only methods."""
    made = vars(cls)["__init__"]
    parts = [code(signature(made, cls.__name__)), words(cls), words(made)]
    for name, value in vars(cls).items():
        is_public = name == name.lower() and not name.startswith("_")
        if is_public and name not in inner and (not also or name in also):
            parts += method(name, value)
    return "\n\n".join(part for part in parts if part)


def method(name: str, value: object) -> list[str]:
    """A heading, the signature and the docstring; nothing for a value that is no method."""
    function = getattr(value, "__func__", value)
    if not inspect.isfunction(function):
        return []
    return [f"**`{name}`**", code(signature(function, name)), words(function)]


def signature(function: Callable[..., object], name: str) -> str:
    """As in the source, without `def` and `self`. On several lines if it is too long for one."""
    found = inspect.signature(function)
    returned = "" if name[0].isupper() else f" -> {found.return_annotation}"
    given = list(_parameters(found))
    start = f"async {name}(" if inspect.iscoroutinefunction(function) else f"{name}("
    line = f"{start}{', '.join(given)}){returned}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([start, *(f"    {one}," for one in given), f"){returned}"])


def _parameters(found: inspect.Signature) -> Iterable[str]:
    has_star = False
    for one in found.parameters.values():
        if one.name in ("self", "cls"):
            continue
        if one.kind is one.KEYWORD_ONLY and not has_star:
            has_star = True
            yield "*"
        stars = "**" if one.kind is one.VAR_KEYWORD else ""
        default = "" if one.default is one.empty else f" = {one.default!r}"
        yield f"{stars}{one.name}: {one.annotation}{default}"


def words(thing: object) -> str:
    """The own docstring, without the fields that `help` adds to it; empty if there is none."""
    own = thing.__dict__.get("__doc__") if isinstance(thing, type) else thing.__doc__
    text = own if isinstance(own, str) else getattr(own, "_own", "")
    return inspect.cleandoc(text)


def code(text: str, language: str = "py") -> str:
    """A code block. Its language is not `python`: the tests run these blocks."""
    return f"```{language}\n{text}\n```"


def table(head: tuple[str, ...], rows: Rows) -> str:
    first, *more = (f"| {' | '.join(cell(one) for one in line)} |" for line in [head, *rows])
    return "\n".join([first, "|---" * len(head) + "|", *more])


def cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def fields(cls: type) -> str:
    """A config: every field with its type, its default and its meaning."""
    docs = field_docs(cls)
    rows = [(f"`{d.name}`", f"`{d.kind}`", f"`{default(cls, d)}`", d.text) for d in docs]
    return f"{words(cls)}\n\n{table(('field', 'type', 'default', 'meaning'), rows)}"


def default(cls: type, doc: FieldDoc) -> str:
    """The default of a field, as `help` shows it. Classes of pydantic keep it elsewhere."""
    return repr(getattr(cls(), doc.name)) if issubclass(cls, BaseModel) else doc.default


def parameters(classes: tuple[type, ...]) -> str:
    """The arguments of `create`, which are the fields of these classes."""
    docs = [doc for cls in classes for doc in field_docs(cls)]
    rows = [(f"`{d.name}`", f"`{d.kind}`", d.text) for d in docs]
    return table(("argument", "type", "meaning"), rows)


def attributes(cls: type) -> str:
    """A value: its docstring, and its fields and properties with their docstrings."""
    rows = [(f"`{d.name}`", f"`{d.kind}`", d.text) for d in field_docs(cls)]
    for name, value in vars(cls).items():
        if isinstance(value, property) and not name.startswith("_"):
            kind = inspect.signature(value.fget).return_annotation  # type: ignore[arg-type]
            rows.append((f"`{name}`", f"`{kind}`", words(value.fget)))
    return f"{words(cls)}\n\n{table(('attribute', 'type', 'meaning'), rows)}"


def numbers(cls: type, names: Iterable[str]) -> str:
    """Metrics, each with its unit and its meaning."""
    texts = {doc.name: doc.text for doc in field_docs(cls)}
    rows = [(f"`{n}`", unit(n), texts.get(n) or words(getattr(cls, n))) for n in names]
    return table(("name", "unit", "meaning"), rows)


def unit(name: str) -> str:
    """The unit of a metric by its name. Raises StopIteration for an unknown ending."""
    return next(words for ending, words in UNITS if name.endswith(ending))


UNITS = (
    ("precision", "a name"),
    ("tokens_per_s", "tokens a second"),
    ("_time_sum", "seconds"),
    ("_s", "seconds"),
    ("tokens", "tokens"),
    ("tokens_sum", "tokens"),
    ("_sum", "requests"),
    ("last_divergence", "object"),
)
"""Ending of a name -> unit. The first ending that fits counts."""


def modes() -> str:
    """What each mode infers, by the function that infers it."""
    windows = (2048, 8192, 32768)
    head = ("`mode`", "answers at a time", *(f"context of {one}" for one in windows))
    rows = [
        (
            f"`{mode}`",
            str(limits.sequences_of(mode)),
            *(_pages(cast(Mode, mode), one) for one in windows),
        )
        for mode in MODES
    ]
    return table(head, rows)


def _pages(mode: Mode, context_window: int) -> str:
    """Tokens that the pages hold if memory is no limit."""
    group = KVSize(layers=30, elements=2 * 30 * 3 * 64, element_bytes=2)
    size = ModelSize(
        (group,), query_width=9 * 64, kv_width=3 * 64, head_dim=64, hidden_size=576,
        intermediate_size=1536, vocab_size=49152, context_window=context_window,
        weight_bytes=10**8,
    )  # fmt: skip
    complete, _ = limits.complete_config(EngineConfig(mode=mode), size, free_memory=2**50)
    return str(complete.max_total_sequence_length)


def error_tree() -> str:
    lines = (errors.__doc__ or "").splitlines()
    drawn = [line[4:] for line in lines if line.startswith("    ")]
    return code("\n".join(drawn), "text")


INNER = ("make_and_add", "check_usable", "stop")
"""Methods of `ThreadedEngine` that only other engines call."""


def families() -> str:
    """Which texts in a chat template mean which form of calls, and a call in each."""
    called = ("get_weather", '{"city": "Rome", "days": 2}')
    rows = [
        (" and ".join(f"`{mark}`" for mark in marks), f"`{one.name}`", f"`{one.written([called])}`")
        for marks, one in RULES
    ]
    return table(("the template has", "form", "a call"), rows)


BLOCKS: dict[str, Callable[[], str]] = {
    "forms of calls": families,
    "SyncMLCEngine": lambda: with_methods(SyncMLCEngine),
    "Generated": lambda: re.sub(r"(?m)^(\w+):", r"* `\1`:", words(Generated)),
    "ChatAnswer": lambda: attributes(ChatAnswer),
    "ThreadedEngine": lambda: with_methods(ThreadedEngine, inner=INNER),
    "JSONFFIEngine": lambda: with_methods(JSONFFIEngine),
    "Completions": lambda: "\n\n".join(
        [
            *method("chat.completions.create", Completions.create),
            parameters(chat_parameters.CHAT_CLASSES),
        ]
    ),
    "MLCEngine": lambda: "\n\n".join(
        [
            with_methods(MLCEngine),
            *method("chat.completions.create", ChatCompletions.create),
            *method("completions.create", TextCompletions.create),
            *method("embeddings.create", Embeddings.create),
        ]
    ),
    "completion parameters": lambda: parameters(chat_parameters.COMPLETION_CLASSES),
    "embedding parameters": lambda: parameters(chat_parameters.EMBEDDING_CLASSES),
    "AsyncMLCEngine": lambda: with_methods(AsyncMLCEngine),
    "TextData": lambda: words(data.TextData),
    "TokenData": lambda: words(data.TokenData),
    "Request": lambda: words(Request),
    "RequestStreamOutput": lambda: "\n\n".join(
        [words(data.RequestStreamOutput), *method("unpack", data.RequestStreamOutput.unpack)]
    ),
    "SingleRequestStreamOutput": lambda: attributes(data.SingleRequestStreamOutput),
    "Tokenizer": lambda: with_methods(Tokenizer, also=("encode", "decode", "token_bytes")),
    "TextStreamer": lambda: with_methods(TextStreamer),
    "EngineConfig": lambda: fields(EngineConfig),
    "GenerationConfig": lambda: fields(GenerationConfig),
    "DebugConfig": lambda: fields(DebugConfig),
    "modes": modes,
    "Usage": lambda: attributes(Usage),
    "request metrics": lambda: numbers(
        metrics.RequestMetrics, [*metrics.REQUEST_METRICS, "precision"]
    ),
    "engine metrics": lambda: numbers(metrics.EngineMetricsRecorder, metrics.ENGINE_METRICS),
    "prefix cache": lambda: numbers(PrefixLookups, [doc.name for doc in field_docs(PrefixLookups)]),
    "errors": error_tree,
}


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")
