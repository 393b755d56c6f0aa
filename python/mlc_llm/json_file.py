"""JSON files that come with a model. They are not trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mlc_llm.errors import ModelFileError


def read_json(path: Path, most: int) -> Any:
    """The value in a file of at most `most` bytes. Raises ModelFileError."""
    try:
        if path.stat().st_size > most:
            raise ModelFileError(f"{path}: larger than {most} bytes")
        return json.loads(path.read_text(encoding="utf-8"))
    except ModelFileError:  # a ValueError too
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: {error}") from None


def read_json_object(path: Path, most: int, *, may_be_missing: bool = False) -> dict[str, Any]:
    """The object in a file of at most `most` bytes. Raises ModelFileError.

    may_be_missing: an empty object stands for a file that is not there.
    """
    if may_be_missing and not _is_there(path):
        return {}
    value = read_json(path, most)
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: should hold a JSON object")
    return value


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path}: {error}") from None
