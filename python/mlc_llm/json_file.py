"""JSON files that come with a model. They are not trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mlc_llm.errors import ModelFileError


def read_json_object(path: Path, most: int, *, may_be_missing: bool = False) -> dict[str, Any]:
    """The object in a file of at most `most` bytes. Raises ModelFileError.

    may_be_missing: an empty object stands for a file that is not there.
    """
    try:
        if may_be_missing and not path.is_file():
            return {}
        if path.stat().st_size > most:
            raise ModelFileError(f"{path}: larger than {most} bytes")
        value = json.loads(path.read_text(encoding="utf-8"))
    except ModelFileError:  # a ValueError too
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: {error}") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: should hold a JSON object")
    return value
