"""How Ray's router, which hears of replicas, tells the code of this process that uses them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from mlc_llm.ray.wire import ReplicaStats

Place = tuple[str, str]
"""The names of an application and of a deployment in it."""
Replicas = Mapping[str, "ReplicaStats | None"]
"""By the names of replicas: what each says; None: nothing yet."""

_lock = threading.Lock()
_last: dict[Place, Replicas] = {}
_watchers: dict[Place, Callable[[Replicas], object]] = {}


def tell(place: Place, replicas: Replicas) -> None:
    """These are all replicas now. Any thread may call it."""
    with _lock:
        _last[place] = replicas
        watcher = _watchers.get(place)
    if watcher is not None:
        watcher(replicas)


def watch(place: Place, watcher: Callable[[Replicas], object]) -> None:
    """Call it with each list, also with the last one that there was. It must not wait; any thread
    may call it."""
    with _lock:
        _watchers[place] = watcher
        replicas = _last.get(place)
    if replicas is not None:
        watcher(replicas)
