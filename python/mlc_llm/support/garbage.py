"""When Python looks for garbage in a command: not before the model is open.

Nearly everything that a start makes is used until the end, and to look for garbage in it takes a
sixth of the time of a start.
"""

from __future__ import annotations

import gc


class NoCollection:
    """A context manager around a whole command: until `collect_from_now` or its end, Python looks
    for no garbage."""

    def __enter__(self) -> None:
        gc.disable()

    def __exit__(self, *_: object) -> None:
        gc.enable()


def collect_from_now() -> None:
    """Let Python look for garbage again, but not in what has been made so far."""
    gc.freeze()
    gc.enable()
