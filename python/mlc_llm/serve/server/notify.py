"""Tells systemd how the server is, if it asks (`Type=notify`). Source: sd_notify(3)."""

from __future__ import annotations

import contextlib
import os
import socket
import time

READY, STOPPING, WATCHDOG = "READY=1", "STOPPING=1", "WATCHDOG=1"


class Supervisor:
    """The supervisor of this process. Without one, nothing happens."""

    def __init__(self) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "")
        microseconds = os.environ.get("WATCHDOG_USEC", "")
        self._every_s = int(microseconds) / 2e6 if microseconds.isdecimal() else None
        self._next = 0.0

    def say(self, message: str) -> None:
        """Send a message; it may get lost."""
        if not self._address:
            return
        path = self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
            made.setblocking(False)
            made.sendto(message.encode(), "\0" + path[1:] if path.startswith("@") else path)

    def is_well(self) -> None:
        """Call it often while all is well. The supervisor ends a process that says nothing for too
        long (`WatchdogSec`)."""
        if self._every_s is not None and time.monotonic() >= self._next:
            self._next = time.monotonic() + self._every_s
            self.say(WATCHDOG)
