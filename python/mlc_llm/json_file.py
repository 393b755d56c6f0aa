"""JSON files that come with a model. They are not trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mlc_llm.errors import ModelFileError
from mlc_llm.plain_file import read_plain, reason


def read_json(path: Path, most: int) -> Any:
    """The value in a file of at most `most` bytes. Raises ModelFileError."""
    try:
        return json.loads(read_plain(path, most).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: {reason(error)}") from None


def read_json_object(path: Path, most: int, *, may_be_missing: bool = False) -> dict[str, Any]:
    """The object in a file of at most `most` bytes. Raises ModelFileError.

    may_be_missing: an empty object stands for a file that is not there. A link that leads nowhere
    is there.
    """
    if may_be_missing and not is_there(path):
        return {}
    value = read_json(path, most)
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: should hold a JSON object")
    return value


def is_there(path: Path) -> bool:
    """Whether something has this name, if only a link that leads nowhere. Raises ModelFileError."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path}: {reason(error)}") from None
    return True
