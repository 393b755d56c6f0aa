"""The streams of requests by their ids, and one request's stream: its end, and its abort."""

from __future__ import annotations

import os
import threading

import pytest

from mlc_llm.errors import InvalidField, MLCError
from mlc_llm.serve.streams import IdInUse, OpenStreams, RequestStream


def stream(aborted: list[str], name: str = "a") -> RequestStream[int]:
    return RequestStream(name, aborted.append)


def test_a_stream_is_read_to_its_end() -> None:
    aborted: list[str] = []
    with stream(aborted) as one:
        one.put(1)
        one.put(0)
        one.end(2, 3)
        assert list(one) == [1, 0, 2, 3]
        assert list(one) == [], "and no further"
    one.close()
    assert aborted == [], "there is nothing to abort after the end"


def test_a_reader_waits_for_what_comes() -> None:
    one, heard = stream([]), list[int]()
    reader = threading.Thread(target=lambda: heard.extend(one))
    reader.start()
    for i in range(100):
        one.put(i)
    one.end()
    reader.join()
    assert heard == list(range(100))


def test_a_forked_process_reads_nothing_and_aborts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that would put the items is not there."""
    aborted: list[str] = []
    one = stream(aborted)
    items = iter(one)
    one.put(1)
    assert next(items) == 1
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(MLCError, match="cannot be used in a forked one"):
        next(items)
    one.close()
    assert aborted == []


def test_closing_aborts_once() -> None:
    aborted: list[str] = []
    one = stream(aborted)
    one.put(1)
    one.close()
    one.close()
    one.put(2)  # what comes late harms nobody
    one.end(3)
    one.close()
    assert aborted == ["a"]


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, GeneratorExit])
def test_an_exception_in_the_reader_aborts(error: type[BaseException]) -> None:
    aborted: list[str] = []
    with pytest.raises(error), stream(aborted) as one:
        one.put(1)
        for _ in one:
            raise error
    assert aborted == ["a"]


def test_an_end_that_nobody_has_read_yet_is_an_end() -> None:
    aborted: list[str] = []
    with stream(aborted) as one:
        one.end(1)
    assert aborted == []


def test_an_id_is_one_streams_at_a_time() -> None:
    streams: OpenStreams[RequestStream[int]] = OpenStreams()
    first, second = stream([]), stream([])
    streams.open("a", first)
    with pytest.raises(IdInUse, match="request_id = 'a' is not allowed: it is in use") as caught:
        streams.open("a", second)
    assert isinstance(caught.value, InvalidField)
    assert streams.find("a") is first and streams.find("b") is None
    assert streams.ids() == ["a"] and len(streams) == 1


def test_a_stream_leaves_its_own_place_only() -> None:
    streams: OpenStreams[RequestStream[int]] = OpenStreams()
    first, second = stream([]), stream([])
    streams.open("a", first)
    streams.leave("a", second)
    assert streams.take("a") is first and streams.take("a") is None
    streams.open("a", second)
    streams.leave("a", first)
    assert streams.find("a") is second
    streams.leave("a", second)
    assert len(streams) == 0
