"""Where models of Hugging Face lie in the cache."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from hub_server import COMMIT

ADDRESS = "HF://user/repo"
WEIGHTS = bytes(range(256)) * 40


def repository_of(place: Path) -> Path:
    return place / "model_weights" / "hf" / "user" / "repo"


def folder_of(place: Path, commit: str = COMMIT) -> Path:
    return repository_of(place) / commit / "repo"


def mark_of(place: Path) -> Path:
    return repository_of(place) / ".repository.complete.json"


def as_before(place: Path) -> None:
    """Change a download to how older versions had it: all files in the folder of the repository."""
    folder = repository_of(place)
    for mark in folder.glob(".*.complete.json"):
        record = json.loads(mark.read_text())
        source = folder / record.pop("folder")
        for name in record["files"]:
            if (source / name).exists():
                (source / name).rename(folder / name)
        mark.write_text(json.dumps(record))
    shutil.rmtree(folder / COMMIT)


def left(place: Path) -> set[str]:
    return {path.name for path in place.rglob("*") if path.is_file()} - {".lock"}
