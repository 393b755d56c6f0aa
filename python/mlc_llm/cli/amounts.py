"""Sizes as text."""

from __future__ import annotations


def size_words(num_bytes: int) -> str:
    """A size in decimal units, as makers of disks use them."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} bytes"
