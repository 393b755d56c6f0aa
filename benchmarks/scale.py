"""Which replica gets a prompt: prefix-aware routing against power of two choices and against a
router that knows everything at once. A simulation in seconds of its own, with the real router code
and the real prefix cache of each replica.

    python benchmarks/scale.py                    # 4, 64 and 1,000 replicas
    python benchmarks/scale.py --replicas 4 --requests 2000

The load has the shape of known traces: a few system prompts that many conversations share, and
conversations of several turns, each of which repeats what was said before. A replica computes
prompts one after the other at `--speed` tokens a second. It keeps `--cached` sequences. The router
hears events `--delay` seconds after a prompt was computed; the router that knows everything hears
them at once, and knows what each replica has to do.

This measures choices, not machines: no model runs, and no network is there but the delay.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from mlc_llm.ray.prefix_choice import Load, PrefixChoice
from mlc_llm.serve.core.prefix_cache import PrefixCache
from mlc_llm.serve.kv_events.blocks import block_keys
from mlc_llm.serve.kv_events.events import CacheEvent, Cleared, Removed, Stored
from mlc_llm.serve.kv_events.ledger import BlockLedger

SYSTEM_PROMPTS = 16
SYSTEM_TOKENS = (512, 1024, 2048)
TURNS = 6
TURN_TOKENS = (64, 512)
ANSWER_TOKENS = (64, 256)
THINK_S = 8.0


@dataclass(frozen=True)
class Ask:
    """A prompt, and when it comes."""

    at: float
    tokens: list[int]
    answer: list[int]


@dataclass
class Replica:
    """One replica: a prefix cache of the real kind, and the time when it is free."""

    number: int
    cached: int
    tell: Callable[[int, list[CacheEvent]], None]
    free_at: float = 0.0
    ids: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ids = list(range(self.cached + 1))
        self.cache = PrefixCache(self.ids.append, max_num_sequence=self.cached + 1)
        self.ledger = BlockLedger(lambda events: self.tell(self.number, events))
        self.cache.observer = self.ledger

    def compute(self, ask: Ask) -> int:
        """Take a prompt in. Returns how many of its tokens the cache had."""
        prefix = self.cache.lookup(ask.tokens)
        if prefix.kind != "reuse" and not self.ids:
            self.cache.evict(prefix.source)
        seq_id = prefix.source if prefix.kind == "reuse" else self.ids.pop()
        assert seq_id is not None
        self.cache.begin(seq_id, prefix)
        self.cache.extend(seq_id, ask.tokens[prefix.length :])
        self.cache.extend(seq_id, ask.answer)
        self.cache.finish(seq_id)
        self.ledger.settled()
        return prefix.length


def load(requests: int, rate: float, seed: int) -> list[Ask]:
    """Conversations that begin at random times; `rate` prompts come a second."""
    chance = random.Random(seed)
    systems = [
        [chance.randrange(32_000) for _ in range(chance.choice(SYSTEM_TOKENS))]
        for _ in range(SYSTEM_PROMPTS)
    ]
    found: list[Ask] = []
    start = 0.0
    while len(found) < requests:
        start += chance.expovariate(rate / TURNS)
        at, tokens = start, list(chance.choice(systems[: chance.randint(1, SYSTEM_PROMPTS)]))
        for _ in range(TURNS):
            tokens = tokens + _some(chance, TURN_TOKENS)
            answer = _some(chance, ANSWER_TOKENS)
            found.append(Ask(at, tokens, answer))
            tokens = tokens + answer
            at += chance.expovariate(1 / THINK_S) + 2.0
    return sorted(found[:requests], key=lambda one: one.at)


def _some(chance: random.Random, between: tuple[int, int]) -> list[int]:
    return [chance.randrange(32_000) for _ in range(chance.randint(*between))]


@dataclass
class Outcome:
    """What became of a load under one way to choose."""

    hit: float
    p50_s: float
    p99_s: float
    choice_ms: float
    """Processor time of the slowest percent of decisions, at its fast end."""


class Simulation:
    """Replicas, and a router that hears of them with a delay."""

    def __init__(self, count: int, cached: int, speed: float, delay: float, way: str) -> None:
        self.way, self.speed, self.delay = way, speed, delay
        self.choice: PrefixChoice[int] = PrefixChoice(random.Random(1))
        self.choice.loads = {number: Load(speed) for number in range(count)}
        self._order = itertools.count()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._finish = 0.0
        self.replicas = [Replica(number, cached, self._told) for number in range(count)]
        self.chance = random.Random(2)

    def run(self, asks: Sequence[Ask]) -> Outcome:
        waits, decisions, cached, total = [], [], 0, 0
        for ask in asks:
            self._until(ask.at)
            keys = block_keys(ask.tokens[:-1])
            started = time.thread_time()
            number = self._choose(ask, keys)
            decisions.append(time.thread_time() - started)
            replica = self.replicas[number]
            begins = max(ask.at, replica.free_at)
            uncached = len(ask.tokens) - self.choice.cached_tokens(number, keys)
            self._finish = begins  # events of this prompt come behind its end
            had = self._computed(replica, ask, begins)
            waits.append(replica.free_at - ask.at)
            cached, total = cached + had, total + len(ask.tokens)
            self._sent(number, uncached, replica.free_at)
        waits.sort()
        decisions.sort()
        return Outcome(
            cached / total,
            waits[len(waits) // 2],
            waits[int(len(waits) * 0.99)],
            decisions[int(len(decisions) * 0.99)] * 1e3,
        )

    def _computed(self, replica: Replica, ask: Ask, begins: float) -> int:
        """The cache takes the prompt in now; its events come when it would be computed."""
        self._events: list[tuple[int, list[CacheEvent]]] = []
        had = replica.compute(ask)
        replica.free_at = begins + (len(ask.tokens) - had) / self.speed
        heard = replica.free_at + (0.0 if self.way == "all-knowing" else self.delay)
        for number, events in self._events:
            self._at(heard, partial(self._hear, number, events))
        return had

    def _choose(self, ask: Ask, keys: list[int]) -> int:
        if self.way == "power of two":
            two = self.chance.sample(range(len(self.replicas)), min(2, len(self.replicas)))
            return min(two, key=lambda one: self.choice.loads[one].running)
        if self.way == "all-knowing":
            for number, replica in enumerate(self.replicas):
                waiting = max(0.0, replica.free_at - ask.at) * self.speed
                mine = self.choice.loads[number]
                mine.add(int(waiting) - mine.waiting_tokens, 0)
        found = self.choice.choose(keys, len(ask.tokens))
        assert found is not None
        return found[0]

    def _sent(self, number: int, uncached: int, ends: float) -> None:
        """The router knows what it has sent, and hears when that was computed."""
        mine = self.choice.loads[number]
        tokens = uncached if self.way == "prefix" else 0
        mine.add(tokens, 1)

        def ended() -> None:
            mine.add(-tokens, -1)

        self._at(ends, ended)

    def _told(self, number: int, events: list[CacheEvent]) -> None:
        if hasattr(self, "_events"):
            self._events.append((number, events))

    def _hear(self, number: int, events: list[CacheEvent]) -> None:
        for event in events:
            if isinstance(event, Stored):
                self.choice.index.stored(number, event.keys)
            elif isinstance(event, Removed):
                self.choice.index.removed(number, event.keys)
            elif isinstance(event, Cleared):
                self.choice.index.cleared(number)

    def _at(self, when: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._later, (when, next(self._order), call))

    def _until(self, now: float) -> None:
        while self._later and self._later[0][0] <= now:
            heapq.heappop(self._later)[2]()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--replicas", type=int, nargs="+", default=[4, 64, 1000])
    parser.add_argument(
        "--requests", type=int, help="(default: 50 for each replica, 2000 at least)"
    )
    parser.add_argument("--speed", type=float, default=2000.0, help="prompt tokens a second")
    parser.add_argument("--cached", type=int, default=32, help="sequences that a replica keeps")
    parser.add_argument("--delay", type=float, default=0.05, help="seconds until events are known")
    parser.add_argument("--rate", type=float, default=0.8, help="prompts a second for each replica")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print(
        f"speed {args.speed:g} tokens/s, {args.cached} sequences kept, events {args.delay:g} s late"
    )
    print("replicas  router         hit rate  TTFT p50 s  p99 s   decision p99 ms")
    for count in args.replicas:
        requests = args.requests or max(2000, 50 * count)
        asks = load(requests, args.rate * count, args.seed)
        for way in ("power of two", "prefix", "all-knowing"):
            simulation = Simulation(count, args.cached, args.speed, args.delay, way)
            found = simulation.run(asks)
            print(
                f"{count:8}  {way:13}  {found.hit:8.3f}  {found.p50_s:10.3f}  {found.p99_s:6.3f}  "
                f"{found.choice_ms:8.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
