"""What makes a Chrome trace valid ("Trace Event Format", JSON array form)."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

Event = dict[str, Any]


def check_chrome_trace(events: list[Event], *, is_over: bool = True) -> None:
    """Every row's stretches begin and end inside one another, in the order of time. is_over: all
    of them have ended."""
    open_names: dict[str, list[str]] = defaultdict(list)
    last: dict[str, int] = defaultdict(int)
    for event in events:
        assert set(event) <= {"name", "ph", "ts", "pid", "tid", "s"}
        assert isinstance(event["ts"], int) and event["ts"] >= last[event["tid"]]
        assert event["pid"] == 1 and isinstance(event["tid"], str)
        last[event["tid"]] = event["ts"]
        if event["ph"] == "B":
            open_names[event["tid"]].append(event["name"])
        elif event["ph"] == "E":
            assert open_names[event["tid"]].pop() == event["name"]
        else:
            assert event["ph"] == "i" and event["s"] == "t"
    assert not is_over or not any(open_names.values()), "a stretch that never ends"
