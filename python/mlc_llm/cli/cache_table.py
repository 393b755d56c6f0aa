"""What `mlc_llm list` and `mlc_llm remove` print about things in the cache, and how they find
those of a model."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from mlc_llm.cli.amounts import size_words
from mlc_llm.errors import UserError
from mlc_llm.support.cached import DOWNLOADED, Entry, entries

_COLUMNS = ("model", "kind", "size", "last use")


def things(root: Path) -> list[Entry]:
    """What the cache folder holds for models."""
    return [one for one in entries(root) if one.kind != "other"] if root.is_dir() else []


def of_models(found: Sequence[Entry], names: Iterable[str]) -> list[Entry]:
    """The entries of models. Raises `UserError` for a name of which there is nothing.

    A model may be named by its file, without the ending, by a path, or by its repository, to
    which everything belongs that was made of its files.
    """
    chosen: list[Entry] = []
    for name in names:
        mine = _of_model(found, name)
        if not mine:
            raise UserError(f"the cache has nothing of {name!r}; mlc_llm list shows what it has")
        chosen += [one for one in mine if one not in chosen]
    return chosen


def _of_model(found: Sequence[Entry], name: str) -> list[Entry]:
    repository = name.rstrip("/")
    for start in ("hf://", "https://huggingface.co/"):
        if repository.lower().startswith(start):
            repository = repository[len(start) :]
    wanted = {name, f"{name}.gguf", Path(name).name, repository}
    for one in found:
        if one.kind in DOWNLOADED and one.model == repository:
            wanted |= {file.name for file in one.path.rglob("*.gguf")}
    return [one for one in found if one.model in wanted]


def as_json(root: Path, key: str, found: Sequence[Entry]) -> str:
    """One JSON object; `key` names the list of entries."""
    total = sum(one.size for one in found)
    values = {"folder": str(root), key: [_values(one) for one in found], "bytes": total}
    return json.dumps(values, indent=2) + "\n"


def as_table(root: Path, words: str, found: Sequence[Entry]) -> str:
    """A table, and a line with the sum: `words` stand between the size and the folder."""
    total = sum(one.size for one in found)
    lines = [*_table(found), "", f"{size_words(total)} {words} {root}"]
    return "\n".join(lines) + "\n"


def _table(found: Sequence[Entry]) -> list[str]:
    rows = [_COLUMNS, *(_row(one) for one in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    return [
        "  ".join(
            text.rjust(width) if name == "size" else text.ljust(width)
            for text, width, name in zip(row, widths, _COLUMNS, strict=True)
        ).rstrip()
        for row in rows
    ]


def _row(one: Entry) -> tuple[str, ...]:
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.last_use))
    return (_printable(one.model), one.kind, size_words(one.size), used)


def _values(one: Entry) -> dict[str, str | int]:
    """The values for JSON. `last_use` is in seconds since 1970."""
    return {
        "model": one.model,
        "kind": one.kind,
        "path": str(one.path),
        "bytes": one.size,
        "last_use": int(one.last_use),
    }


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
