"""Text files with a token or a merge on each line. They are not trusted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mlc_llm.errors import ModelFileError
from mlc_llm.plain_file import read_plain, reason
from mlc_llm.tokenizers.folder_config import MAX_BYTES


def read_lines(path: Path, most: int) -> list[str]:
    """The lines of a file in UTF-8, without their ends. Raises ModelFileError."""
    try:
        lines = read_plain(path, MAX_BYTES).decode("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path}: {reason(error)}") from None
    if lines[-1] == "":
        lines.pop()
    if len(lines) > most:
        raise ModelFileError(f"{path}: more than {most} lines")
    return [line.removesuffix("\r") for line in lines]


@contextmanager
def naming(place: Path, files: Mapping[str, str]) -> Iterator[None]:
    """An error about keys of GGUF becomes one about the files that have these values."""
    try:
        yield
    except ModelFileError as error:
        text = str(error)
        for key, file in files.items():
            text = text.replace(key, file)
        raise ModelFileError(f"{place}: {text}") from None
