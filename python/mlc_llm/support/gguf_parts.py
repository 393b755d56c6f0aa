"""Names of split .gguf files: `NAME-00001-of-00003.gguf`."""

from __future__ import annotations

import re

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.gguf)?", re.IGNORECASE | re.DOTALL)


def is_later_part(name: str) -> bool:
    """Whether a file is a part of a split model, but not the first one."""
    part = _PART.fullmatch(name)
    return part is not None and int(part[2]) > 1


def is_tower(name: str) -> bool:
    """Whether a file is named as llama.cpp names towers of images, and no model of its own."""
    return "mmproj" in name.lower()


def same_model(name: str, first: str) -> bool:
    """Whether two names are of one file, or of two parts of one model."""
    one, other = _PART.fullmatch(name), _PART.fullmatch(first)
    if one is None or other is None:
        return name == first
    return one.group(1, 3) == other.group(1, 3)


def stem_of(name: str) -> str:
    """A name without the number of the part and without `.gguf`."""
    whole = name[: -len(".gguf")] if name.lower().endswith(".gguf") else name
    part = _PART.fullmatch(whole)
    return part[1] if part else whole
