"""How many threads compute. TVM reads its environment at the first parallel kernel, so this runs
before any. A value that the user has set stays."""

from __future__ import annotations

import logging
import os

from mlc_llm.errors import InvalidField
from mlc_llm.support.machine import usable_cores

THREADS_VARIABLE = "MLC_NUM_THREADS"
SPINS = 1_000
"""How often an idle worker yields before it sleeps: for half a millisecond, longer than the pause
between two steps. TVM's own number is three hundred times that. Where other programs have the
cores, each time takes milliseconds, and the worker is in the way of the thread that computes. It
outlives its engine so long too: engines made in a row kept some twenty threads."""

logger = logging.getLogger(__name__)


def configure_threads(ranks: int = 1) -> int:
    """Sets TVM's number of threads, returns it. ranks: processes that compute together, each with
    an equal share of the cores; a number that the user has set is that of each. Raises
    InvalidField for a bad number."""
    available = max(usable_cores() // ranks, 1)
    wanted = os.environ.get(THREADS_VARIABLE)
    count = available if wanted is None else _parse(THREADS_VARIABLE, wanted)
    if count > available:
        logger.warning(
            "%s=%d, but only %d cores are available: expect it to be slower",
            THREADS_VARIABLE, count, available,
        )  # fmt: skip
    os.environ.setdefault("TVM_NUM_THREADS", str(count))
    # Pinning the caller to one core would starve a server's other threads on it.
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", str(SPINS))
    return _parse("TVM_NUM_THREADS", os.environ["TVM_NUM_THREADS"])


def compiling_threads() -> int:
    """How many threads compile: as many as would compute. It sets nothing, because how many compute
    is decided later, when it is known among how many ranks. Raises InvalidField."""
    for variable in ("TVM_NUM_THREADS", THREADS_VARIABLE):
        if variable in os.environ:
            return _parse(variable, os.environ[variable])
    return usable_cores()


def _parse(variable: str, text: str) -> int:
    """A number of threads. Raises InvalidField."""
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= 1024:
        raise InvalidField(variable, text, "a whole number from 1 to 1024")
    return int(text)
