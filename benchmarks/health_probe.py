"""Calls `/health` of a server until its input ends; prints the slowest answer in seconds.

It is a process of its own, so that it does not wait for the clients of `server.py overload`.
"""

from __future__ import annotations

import sys
import threading
import time

from served import get

PAUSE_S = 0.2


def main() -> None:
    port, most, over = int(sys.argv[1]), 0.0, threading.Event()

    def wait() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait, daemon=True).start()
    while not over.wait(PAUSE_S):
        started = time.perf_counter()
        get(port, "/health")
        most = max(most, time.perf_counter() - started)
    print(most)


if __name__ == "__main__":
    main()
