"""`mlc_llm bench` against the echo server, and against servers that fail."""

from __future__ import annotations

import asyncio
import csv
import json
import random
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from server_harness import Running, running
from threaded_harness import slow_steps, watched

from mlc_llm.bench.client import Target, _request, send
from mlc_llm.bench.figures import Histogram, Point
from mlc_llm.bench.report import csv_text, svg, table
from mlc_llm.bench.workload import Workload, arrivals, requests_of
from mlc_llm.cli.__main__ import main
from mlc_llm.serve.server.limits.settings import Limits, ServerSettings


@pytest.fixture(autouse=True)
def watch(request: pytest.FixtureRequest) -> Iterator[None]:
    with watched(request.config, 120.0):
        yield


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as made:
        yield made


def bench(server: Running, *words: str) -> int:
    return main(["bench", "--url", f"http://127.0.0.1:{server.port}", *words])


def rows_of(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(file.read_text().splitlines()))


def test_a_run(server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table_file, plot = tmp_path / "run.csv", tmp_path / "run.svg"
    words = ["--concurrency", "1,4", "--requests", "12", "--prompt-words", "8-20"]
    words += ["--answer-tokens", "5-9", "--csv", str(table_file), "--plot", str(plot)]
    assert bench(server, *words) == 0
    rows = rows_of(table_file)
    assert [(row["load"], row["value"], row["requests"]) for row in rows] == [
        ("concurrency", "1", "12"),
        ("concurrency", "4", "12"),
    ]
    for row in rows:
        assert row["errors"] == "0" and float(row["answer_tokens_per_s"]) > 0
        for name in ("ttft", "gap", "total"):
            p50, p90, p99 = (float(row[f"{name}_p{p}_ms"]) for p in (50, 90, 99))
            assert 0 < p50 <= p90 <= p99
        assert float(row["ttft_p50_ms"]) <= float(row["total_p99_ms"])
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3 and "TTFT p50" in out
    assert "measured on this side" in err
    drawn = ElementTree.fromstring(plot.read_text())
    assert len(drawn.findall(".//{*}polyline")) == 5
    server.wait_idle()


def test_tokens_are_the_servers(server: Running, tmp_path: Path) -> None:
    """The echo answers with the bytes of the prompt, so all numbers are known."""
    file = tmp_path / "run.csv"
    bench(server, "--concurrency", "2", "--requests", "6", "--answer-tokens", "7", "--warm-up", "0",
          "--csv", str(file))  # fmt: skip
    (row,) = rows_of(file)
    seconds = float(row["seconds"])
    assert float(row["answer_tokens_per_s"]) == pytest.approx(6 * 7 / seconds, rel=0.02)
    prompts = [len(one.prompt) for one in requests_of(Workload(6, (128, 128), (7, 7)), 0)]
    assert float(row["prompt_tokens_per_s"]) == pytest.approx(sum(prompts) / seconds, rel=0.02)


def test_shared_prefixes_are_cached(server: Running, tmp_path: Path) -> None:
    shares = []
    for shared in ("0", "60"):
        file = tmp_path / f"{shared}.csv"
        words = ["--shared-words", shared, "--prompt-words", "70", "--answer-tokens", "1"]
        words += ["--seed", shared, "--concurrency", "1", "--requests", "8", "--csv", str(file)]
        assert bench(server, *words) == 0
        shares.append(float(rows_of(file)[0]["cached_share"]))
    assert shares[0] < 0.3 and shares[1] > 0.6, shares


def test_a_rate(server: Running, tmp_path: Path) -> None:
    file = tmp_path / "run.csv"
    words = ["--rate", "200,400", "--requests", "40", "--prompt-words", "4", "--answer-tokens", "3"]
    assert bench(server, *words, "--csv", str(file)) == 0
    for row, rate in zip(rows_of(file), (200, 400), strict=True):
        planned = list(zip(arrivals(rate, 0, 0 if rate == 200 else 1), range(40), strict=False))
        assert row["load"] == "rate" and float(row["seconds"]) >= planned[-1][0]
        assert row["late_p99_ms"] != "" and row["requests"] == "40"


def test_errors_are_counted_by_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = Limits(queue=0)
    with slow_steps(0.02), running(ServerSettings(port=0, limits=limits)) as server:
        file = tmp_path / "run.csv"
        words = ["--concurrency", "200", "--requests", "200", "--answer-tokens", "60"]
        code = bench(server, *words, "--csv", str(file))
        server.wait_idle()
    (row,) = rows_of(file)
    assert (code, row["requests"]) == (1, "200")
    assert 0 < int(row["errors"]) < 200  # more than the engine computes at a time is refused
    assert row["error_kinds"] == f"status 503: {row['errors']}"
    assert "errors at concurrency 200: status 503" in capsys.readouterr().out


def test_the_first_request_says_why_it_failed(
    server: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(server, "--requests", "1", "--ignore-eos") == 1
    assert "failed: status 400: debug_config" in capsys.readouterr().err


def test_reasons_of_refusals() -> None:
    head = b"HTTP/1.1 400 X\r\n\r\n"
    said = {b'{"error": {"message": "x y"}}': "x y", b'{"error": 3}': "", b"<html>": "", b"": ""}
    for body, words in said.items():
        with scripted(head + body) as port:
            result = asyncio.run(send(target(port), "a", 3))
        assert (result.error, result.said) == ("status 400", words)


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\ndata"
ANSWERS = {
    b"HTTP/1.1 500 X\r\n\r\n": "status 500",
    b"hello\r\n\r\n": "bad answer: no HTTP",
    b"HTTP/1.1 200 OK\r\n\r\ndata: {\n\n": "bad answer: JSONDecodeError",
    b"HTTP/1.1 200 OK\r\n\r\ndata: {}\n\n": "cut: the stream ended without [DONE]",
    b'HTTP/1.1 200 OK\r\n\r\ndata: {"error": {"message": "x"}}\n\n': "error event",
    CHUNKED: "connection: IncompleteReadError",
    b"HTTP/1.1 200 OK\r\n\r\ndata: [DONE]\n\n": "",
}  # fmt: skip


@pytest.mark.parametrize("answer", ANSWERS)
def test_kinds_of_failures(answer: bytes) -> None:
    with scripted(answer) as port:
        result = asyncio.run(send(target(port), "a", 3))
    assert (result.error or "") == ANSWERS[answer]
    assert not result.is_counted and result.total > 0


def test_a_server_that_is_silent_or_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert asyncio.run(send(target(port, timeout_s=0.2), "a", 3)).error == "timeout"
    assert "connection" in str(asyncio.run(send(target(port), "a", 3)).error)


def test_an_address_of_ipv6_has_brackets() -> None:
    for host, shown in (("::1", b"[::1]:8000"), ("localhost", b"localhost:8000")):
        head = _request(Target(host, 8000, "/v1", False, "m"), "a", 3)
        assert b"\r\nHost: " + shown + b"\r\n" in head


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--concurrency", "0"], "--concurrency 0"),
        (["--concurrency", "1,x"], "--concurrency 1,x"),
        (["--concurrency", "1.5"], "--concurrency 1.5"),
        (["--rate", "0"], "--rate 0"),
        (["--rate", "nan"], "--rate nan"),
        (["--requests", "0"], "--requests 0"),
        (["--prompt-words", "9-3"], "--prompt-words 9-3"),
        (["--answer-tokens", "a"], "--answer-tokens a"),
        (["--shared-words", "200"], "--shared-words 200"),
        (["--timeout", "0"], "--timeout 0"),
        (["--csv", "/no/such/folder/a.csv"], "--csv /no/such/folder/a.csv: the folder cannot"),
        (["--csv", "/tmp"], "--csv /tmp: is a folder"),
        (["--plot", "."], "--plot .: is a folder"),
        (["--plot", f"{__file__}/a.svg"], "/a.svg: the folder cannot be written"),
    ],
)
def test_wrong_arguments(words: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--url", "http://127.0.0.1:9", *words]) == 2
    assert named in capsys.readouterr().err


def test_the_same_seed_asks_the_same() -> None:
    work = Workload(5, (4, 30), (1, 50), shared_words=3, seed=1)
    assert list(requests_of(work, 0)) == list(requests_of(work, 0))
    first, other = list(requests_of(work, 0)), list(requests_of(work, 1))
    assert first != other
    beginnings = {tuple(one.prompt.split()[:3]) for one in first + other}
    assert len(beginnings) == 1
    assert all(4 <= len(one.prompt.split()) <= 30 for one in first)


def test_percentiles_of_a_histogram() -> None:
    draw, found = random.Random(0), Histogram()
    values = [draw.lognormvariate(-3, 2) for _ in range(20_000)]
    for value in values:
        found.add(value)
    values.sort()
    for share in (0.5, 0.9, 0.99):
        exact = values[int(share * len(values))]
        assert found.percentile(share) == pytest.approx(exact, rel=0.03)
    assert found.mean == pytest.approx(sum(values) / len(values))
    assert len(found._counts) < 1500  # its size does not grow with the number of values
    assert Histogram().percentile(0.5) is None and Histogram().mean is None


def test_a_point_without_answers_has_no_figures() -> None:
    empty = Point("rate", 2.0, errors=Counter({"status 500": 3}), seconds=1.0)
    row = empty.row()
    assert row["answer_tokens_per_s"] is None and row["ttft_p50_ms"] is None
    assert row["error_kinds"] == "status 500: 3"
    assert "status 500: 3" in table([empty])
    assert ElementTree.fromstring(svg([empty], "<a & b>")) is not None
    assert csv_text([empty]).count("\n") == 2


def target(port: int, **more: Any) -> Target:
    return Target("127.0.0.1", port, "/v1", False, "m", **more)


@contextmanager
def scripted(answer: bytes) -> Iterator[int]:
    """A server that reads one request, sends `answer`, and closes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def run() -> None:
            connection, _ = listening.accept()
            with connection, connection.makefile("rb") as file:
                size = 0
                while (line := file.readline()).strip():
                    name, _, value = line.partition(b":")
                    size = int(value) if name.lower() == b"content-length" else size
                assert json.loads(file.read(size))["stream"] is True
                connection.sendall(answer)

        thread = threading.Thread(target=run)
        thread.start()
        yield int(listening.getsockname()[1])
        thread.join()
