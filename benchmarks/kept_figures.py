"""Figures of classes in a file beside the scripts, a line of JSON for each class.

Neither torch nor TVM is imported.
"""

from __future__ import annotations

import json
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mlc_llm.models.registry import Architecture

One = TypeVar("One")
UNNAMED = ("date", "cpu")
"""Facts that say themselves what they are."""


def read_kept(file: Path) -> dict[str, Any]:
    """By the class in config.json."""
    if not file.exists():
        return {}
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def write_kept(file: Path, rows: Sequence[Architecture], figures: Mapping[str, object]) -> None:
    """In the order of the rows."""
    known = [row.config for row in rows if row.config in figures]
    lines = [f"{json.dumps(name)}: {json.dumps(figures[name])}" for name in known]
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def measure_each(
    rows: Sequence[Architecture],
    figures: dict[str, One],
    measured: Callable[[Architecture, Path], One],
    write: Callable[[dict[str, One]], None],
) -> list[str]:
    """Measure these classes and keep each result at once. Returns those whose measurement failed;
    they keep their earlier figures. measured: gets an empty folder too."""
    failed = []
    for row in rows:
        print(row.config, flush=True)
        try:
            with tempfile.TemporaryDirectory() as folder:
                figures[row.config] = measured(row, Path(folder))
        except Exception:  # the next one may be well
            traceback.print_exc()
            failed.append(row.config)
            continue
        write(figures)
    return failed


def facts_text(facts: Mapping[str, str]) -> str:
    """Date, processor and versions in a line."""
    return ", ".join(one if name in UNNAMED else f"{name} {one}" for name, one in facts.items())


def measured_notes(facts: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Where figures come from. facts: by class."""
    seen: dict[str, list[str]] = {}
    for name, one in facts.items():
        seen.setdefault(facts_text(one), []).append(name)
    for text, names in seen.items():
        whom = "" if len(seen) == 1 else f" {', '.join(names)}:"
        yield f"* Measured:{whom} {text}."
