"""Kills replicas at random moments while clients stream, and counts what became of each request.

    python benchmarks/scale_chaos.py --seconds 600 --kills 540 --log FILE --write
    python benchmarks/scale_chaos.py --model tiny --replicas 4 --clients 16

`tiny` is a small random model, whose tokens depend on the seed; those of `mock://echo` do not.

First each prompt is asked once, and nothing is killed: that is the undisturbed text. Then clients
ask the same prompts with the same seeds. An answer is whole if its stream has one end, its text is
the undisturbed one, and its usage came once with the undisturbed number of tokens. Everything else
is counted by what was wrong with it, and the script ends with 1.

Kills are SIGKILL to the process of one replica. They come at random moments, `--kills` in
`--seconds` on average. Only replicas with an open engine are killed, `--grown` seconds after it was
seen, because others have no answers yet; where there is none, the kill waits for one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import server_page
from scale_app import Served, application

from mlc_llm.testing.tiny_model import write_tiny_model

LONGEST_S = 600.0
"""A request that has not ended then is lost."""
LINE_BYTES = 1 << 20
TELL_S = 15.0
NAMES = r"chatcmpl-\w+"
"""Of requests: errors are counted without them."""
RESENT = b"goes to another replica"
"""In the log, for each time."""
TINY = "tiny"
WORDS = tuple("one two three four five six seven eight nine ten red green blue".split())  # noqa: SIM905


@dataclass(frozen=True)
class Ask:
    """A prompt, and the random numbers of its answer."""

    text: str
    seed: int
    tokens: int

    def body(self) -> bytes:
        return json.dumps(
            {
                "model": "model",
                "messages": [{"role": "user", "content": self.text}],
                "seed": self.seed,
                "temperature": 1.0,
                "max_tokens": self.tokens,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()


@dataclass
class Answer:
    """What came of an answer."""

    text: str = ""
    ends: list[str] = field(default_factory=list)
    """Finish reasons."""
    usages: list[int] = field(default_factory=list)
    """Tokens of the answer, each time they were told."""
    done: int = 0
    error: str | None = None

    def wrong(self, true: Answer | None) -> str | None:
        """What is wrong with it; None: it is whole. true: the undisturbed one."""
        if self.error is not None:
            return f"error: {re.sub(NAMES, '...', self.error)[:120]}"
        if (len(self.ends), len(self.usages), self.done) != (1, 1, 1):
            return f"{len(self.ends)} ends, {len(self.usages)} usages, {self.done} [DONE]"
        if true is not None and (self.text, self.usages) != (true.text, true.usages):
            return "another text"
        return None


@dataclass
class Tally:
    """What has been seen."""

    whole: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    longest_s: float = 0.0


def asks(number: int, tokens: int, seed: int) -> list[Ask]:
    """Prompts of different lengths."""
    chance = random.Random(seed)
    texts = [" ".join(chance.choices(WORDS, k=chance.randint(4, 120))) for _ in range(number)]
    return [Ask(text, chance.getrandbits(31), tokens) for text in texts]


async def answer(port: int, ask: Ask) -> Answer:
    """Send it and read to the end. It raises nothing: what fails is the answer's error."""
    found = Answer()
    try:
        await asyncio.wait_for(_read(port, ask, found), LONGEST_S)
    except asyncio.TimeoutError:
        found.error = "no end"
    except (OSError, EOFError, ValueError) as error:
        found.error = f"{type(error).__name__}: {error}"
    return found


async def _read(port: int, ask: Ask, found: Answer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=LINE_BYTES)
    try:
        body = ask.body()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        status = await reader.readline()
        while await reader.readline() not in (b"\r\n", b""):
            pass  # the other lines of the head
        async for data in _events(reader):
            _take(data, found)
        if b" 200 " not in status:
            found.error = f"status {status.decode('latin-1').strip()[9:]}"
    finally:
        writer.close()


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Data of server-sent events. They come in chunks, which may end in the middle of a line."""
    rest = b""
    while size := int(await reader.readline() or b"0", 16):
        *lines, rest = (rest + await reader.readexactly(size)).split(b"\n")
        await reader.readline()  # the end of the chunk
        for line in lines:
            if line.startswith(b"data: "):
                yield line[6:].strip()


def _take(data: bytes, found: Answer) -> None:
    if data == b"[DONE]":
        found.done += 1
        return
    event = json.loads(data)
    if event.get("error"):
        found.error = str(event["error"].get("message", event["error"]))
        return
    for choice in event.get("choices", []):
        found.text += choice["delta"].get("content") or ""
        if choice.get("finish_reason"):
            found.ends.append(choice["finish_reason"])
    if event.get("usage"):
        found.usages.append(event["usage"]["completion_tokens"])


async def _client(
    served: Served, work: Sequence[tuple[Ask, Answer]], tally: Tally, until: float, number: int
) -> None:
    chance = random.Random(number)
    while time.monotonic() < until:
        ask, true = chance.choice(work)
        started = time.monotonic()
        found = await answer(served.port, ask)
        tally.longest_s = max(tally.longest_s, time.monotonic() - started)
        wrong = found.wrong(true)
        if wrong is None:
            tally.whole += 1
        else:
            tally.wrong[wrong] += 1


def is_open(process: int) -> bool:
    """Its engine is open: ZeroMQ's threads, which publish its KV events, are there."""
    names = []
    for place in Path(f"/proc/{process}/task").glob("*/comm"):
        with contextlib.suppress(OSError):
            names.append(place.read_text())
    return any(name.startswith("ZMQbg") for name in names)


@dataclass
class Killer:
    """Kills replicas. `grown`: seconds for which its engine has been open, at least."""

    served: Served
    grown: float
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    since: dict[int, float] = field(default_factory=dict)
    """When each was seen with an open engine."""

    async def run(self, kills: int, until: float, tally: Tally) -> None:
        started = time.monotonic()
        pace, due = kills / (until - started), started
        while (due := due + self.chance.expovariate(pace)) < until:
            while (now := time.monotonic()) < until:
                grown = await self._grown(now)
                if now >= due and grown:
                    tally.kills += self._kill(self.chance.choice(grown))
                    break
                await asyncio.sleep(0.1)

    async def _grown(self, now: float) -> list[int]:
        there = await asyncio.to_thread(self.served.replicas)
        grown = [one for one in there if is_open(one)]
        return [one for one in grown if now - self.since.setdefault(one, now) >= self.grown]

    def _kill(self, process: int) -> bool:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True


async def chaos(
    killer: Killer, work: Sequence[Ask], *, clients: int, kills: int, seconds: float
) -> Tally:
    """Kill for so long; every request that was sent is waited for."""
    gate, served = asyncio.Semaphore(8), killer.served

    async def undisturbed(ask: Ask) -> Answer:
        async with gate:
            return await answer(served.port, ask)

    say(f"asking {len(work)} prompts, 8 at a time, while nothing is killed")
    true = await asyncio.gather(*map(undisturbed, work))
    for one in true:
        if one.wrong(None):
            raise SystemExit(f"an answer is wrong before anything was killed: {one.wrong(None)}")
    tally = Tally()
    pairs = list(zip(work, true, strict=True))
    until = time.monotonic() + seconds
    say(f"{clients} clients ask for {seconds:g} s, and replicas are killed")
    told = asyncio.ensure_future(_tell(tally, until))
    await asyncio.gather(
        killer.run(kills, until, tally),
        *(_client(served, pairs, tally, until, number) for number in range(clients)),
    )
    told.cancel()
    return tally


def say(text: str) -> None:
    """What it does now, beside the results."""
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


async def _tell(tally: Tally, until: float) -> None:
    """How far it is."""
    while True:
        await asyncio.sleep(TELL_S)
        left = until - time.monotonic()
        words = f"{left:.0f} s left" if left > 0 else "the last answers are waited for"
        seen = f"{tally.kills} kills, {tally.whole} whole answers, {tally.wrong.total()} wrong"
        say(f"{seen}; {words}")


@contextlib.contextmanager
def model_of(name: str) -> Iterator[str]:
    """The model to open. `tiny` is made."""
    if name != TINY:
        yield name
        return
    with tempfile.TemporaryDirectory(prefix="scale-") as folder:
        yield str(write_tiny_model(Path(folder) / "tiny.gguf"))


def table(args: argparse.Namespace, tally: Tally, resent: int | None) -> str:
    """What has been seen, as a table. resent: None is left out."""
    rows = [
        ("model, replicas, clients", f"`{args.model}`, {args.replicas}, {args.clients}"),
        ("tokens of an answer, at most", f"{args.tokens}"),
        ("seconds, kills of replicas", f"{args.seconds:g}, {tally.kills}"),
        ("age in seconds from which on a replica is killed", f"{args.grown:g}"),
        ("whole answers", f"{tally.whole}"),
        ("longest answer", f"{tally.longest_s:.1f} s"),
        *((f"**wrong**: {words}", f"{count}") for words, count in tally.wrong.most_common()),
        ("other texts, errors, no end, or several ends or usages", f"{tally.wrong.total()}"),
    ]
    if resent is not None:
        rows.insert(4, ("requests sent to another replica", f"{resent} times"))
    return "\n".join(
        f"| {name} | {value} |" for name, value in [*rows[:1], ("---", "---"), *rows[1:]]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--model", default="mock://echo?step_ms=10")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--prompts", type=int, default=64, help="different ones")
    parser.add_argument("--tokens", type=int, default=400, help="of an answer, at most")
    parser.add_argument("--attempts", type=int, default=100)
    parser.add_argument("--grown", type=float, default=0.0, help="seconds that it was open")
    parser.add_argument("--health-check", type=float, default=0.5, help="`health_check_s`")
    parser.add_argument("--log", type=Path, help="for the output of the application")
    parser.add_argument("--write", action="store_true", help="into docs/scale.md")
    args = parser.parse_args()
    more = {"replicas": args.replicas, "attempts": args.attempts, "resume": "replica"}
    more["health_check_s"] = args.health_check
    work = asks(args.prompts, args.tokens, seed=1)
    say(f"Ray and {args.replicas} replicas start")
    with model_of(args.model) as model, application(model, args.log, **more) as served:
        tally = asyncio.run(
            chaos(
                Killer(served, args.grown),
                work,
                clients=args.clients,
                kills=args.kills,
                seconds=args.seconds,
            )
        )
    say("everything has ended")
    resent = None if args.log is None else args.log.read_bytes().count(RESENT)
    text = table(args, tally, resent)
    print(text)
    if args.write:
        server_page.write("", text, server_page.SCALE, "scale_chaos.py")
    return 1 if tally.wrong or not tally.whole else 0


if __name__ == "__main__":
    sys.exit(main())
