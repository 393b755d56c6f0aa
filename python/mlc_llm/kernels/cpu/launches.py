"""Several parallel loops in one launch: threads are woken up once, and meet between the loops.

    with one_launch():
        with all_meet():
            for ... in T.parallel(...)       what all threads need
        for ... in T.parallel(...)           what reads it

All statements in it are run by each thread; a parallel loop is shared out among them. A meeting is
a good deal cheaper than the end of a launch and the beginning of another one.
"""

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T


def one_launch() -> Any:
    """The statements in it are one launch. There has to be a parallel loop among them."""
    return T.attr({"pragma_parallel_launch_point": 1})


def all_meet() -> Any:
    """Behind the statements in it, each thread waits until all threads have done theirs."""
    return T.attr({"pragma_parallel_barrier_when_finish": 1})
