"""Events say what the radix trees of the prefix cache hold, whatever happens to it."""

from __future__ import annotations

import random
import struct
from array import array
from collections.abc import Iterable
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc_llm.serve.core.prefix_cache import PrefixCache, PrefixMatch
from mlc_llm.serve.kv_events.blocks import BLOCK_TOKENS, block_keys, next_key, root_key, salt_digest
from mlc_llm.serve.kv_events.events import CacheEvent, Cleared, Removed, Stored
from mlc_llm.serve.kv_events.ledger import BlockLedger

SALTS = ("", "one", "two")


class Mirror:
    """The blocks that events tell of, each with its tokens and what stands before it. It knows
    nothing but the events."""

    def __init__(self) -> None:
        self.blocks: dict[int, tuple[int | None, tuple[int, ...], str]] = {}
        self.batches = 0

    def take(self, events: Iterable[CacheEvent]) -> None:
        self.batches += 1
        for event in events:
            if isinstance(event, Cleared):
                self.blocks.clear()
            elif isinstance(event, Removed):
                for key in event.keys:
                    del self.blocks[key]  # KeyError: it was not there
            else:
                self._store(event)

    def _store(self, event: Stored) -> None:
        assert event.parent is None or event.parent in self.blocks
        assert len(event.tokens) == BLOCK_TOKENS * len(event.keys) > 0
        parent = event.parent
        for at, key in enumerate(event.keys):
            assert key not in self.blocks
            tokens = tuple(event.tokens[at * BLOCK_TOKENS : (at + 1) * BLOCK_TOKENS])
            self.blocks[key] = (parent, tokens, event.salt)
            parent = key

    def prompts(self) -> set[tuple[str, tuple[int, ...]]]:
        """The tokens from the first block on to each block, and the salt."""
        return {self._prompt(key) for key in self.blocks}

    def _prompt(self, key: int) -> tuple[str, tuple[int, ...]]:
        parent, tokens, salt = self.blocks[key]
        return (salt, tokens if parent is None else self._prompt(parent)[1] + tokens)


class Traffic:
    """Sequences that come, grow, are cut and go, over a small alphabet, so that they share."""

    def __init__(self, seed: int, **options: int) -> None:
        self.random = random.Random(seed)
        self.mirror = Mirror()
        self.cache = PrefixCache(self._remove, max_num_sequence=6, **options)
        self.cache.observer = self.ledger = BlockLedger(self.mirror.take)
        self.free, self.active = list(range(6)), dict[int, str]()

    def _remove(self, seq_id: int) -> None:
        self.free.append(seq_id)

    def tokens(self) -> list[int]:
        """Runs of one of two tokens: many prompts begin alike."""
        runs = self.random.choices((20, 64, 100, 128, 200), k=self.random.randint(1, 3))
        return [token for run in runs for token in [self.random.randint(1, 2)] * run]

    def step(self) -> None:
        action = self.random.choice(("begin", "begin", "extend", "finish", "remove", "reset"))
        if action == "begin":
            self._begin()
        elif action == "extend" and self.active:
            self.cache.extend(self._any(), self.tokens())
        elif action == "finish" and self.active:
            self._finish(self._any())
        elif action == "remove" and self.active:
            seq_id = self._any()
            del self.active[seq_id]
            self.cache.remove(seq_id)
        elif action == "reset" and self.random.random() < 0.1:
            self.active.clear()
            self.cache.reset()
            self.free = list(range(6))
        self.ledger.settled()

    def _any(self) -> int:
        return self.random.choice(list(self.active))

    def _begin(self) -> None:
        prompt, salt = self.tokens(), self.random.choice(SALTS)
        prefix = self.cache.lookup(prompt, salt=salt)
        if prefix.kind != "reuse" and not self.free and not self.cache.evict(prefix.source):
            return
        if prefix.kind != "reuse" and not self.free:
            return
        seq_id = self.free.pop() if prefix.kind != "reuse" else prefix.source
        assert seq_id is not None
        self.cache.begin(seq_id, prefix, salt=salt)
        self.active[seq_id] = salt
        self.cache.extend(seq_id, prompt[prefix.length :])

    def _finish(self, seq_id: int) -> None:
        del self.active[seq_id]
        length = self.cache.length(seq_id)
        pinned = self.random.choice((0, 0, length // 2))
        self.cache.finish(seq_id, pinned_length=pinned)

    def held(self) -> set[tuple[str, tuple[int, ...]]]:
        """All whole blocks that a prompt could take over, as the cache itself says."""
        found = set()
        for salt, tree in self.cache._trees.items():
            name = salt_digest(salt) if salt else ""
            for seq_id in list(tree._ends):
                tokens = tuple(tree.get(seq_id))
                ends = range(BLOCK_TOKENS, len(tokens) + 1, BLOCK_TOKENS)
                found |= {(name, tokens[:end]) for end in ends}
        return found


@given(st.integers(0, 1 << 30), st.sampled_from((-1, 0, 2)))
def test_events_rebuild_what_the_cache_holds(seed: int, recycling: int) -> None:
    traffic = Traffic(seed, max_recycling=recycling)
    for _ in range(60):
        traffic.step()
        assert traffic.mirror.prompts() == traffic.held()
    assert traffic.ledger.keys == set(traffic.mirror.blocks)


def test_keys_are_those_of_the_prompt() -> None:
    mirror = Mirror()
    ledger = BlockLedger(mirror.take)
    prompt = list(range(200))
    ledger.begun(1, None, 0, "salt")
    for token in prompt:  # a token a step, as a decoding sequence grows
        ledger.extended(1, [token])
        ledger.settled()
    assert list(mirror.blocks) == block_keys(prompt, root_key("salt"))
    assert len(mirror.blocks) == 3
    assert mirror.batches == 4  # the first one says that nothing is there


def test_keys_tell_tokens_order_salts_and_adapters_apart() -> None:
    prompts = [list(range(64)), list(range(63, -1, -1)), [0] * 64, [0] * 128]
    roots = [root_key(), root_key("a"), root_key("b"), root_key("", "a"), root_key("a", "b")]
    roots += [root_key("1:a"), root_key("ab"), root_key("", "ab")]
    assert len(set(roots)) == len(roots)
    last = {block_keys(prompt, root)[-1] for prompt in prompts for root in roots}
    assert len(last) == len(prompts) * len(roots)
    assert all(0 <= key < 1 << 64 for key in last)


def test_keys_do_not_change_from_one_version_to_the_next() -> None:
    # Other machines and programs compute them too: little-endian BLAKE2b, in words of 4 bytes.
    first = blake2b(bytes(8) + struct.pack("<64i", *[1] * 64), digest_size=8).digest()
    assert block_keys([1] * 128) == [8181271006798496203, 12478767688545200576]
    assert first == struct.pack("<Q", 8181271006798496203)
    assert next_key(0, array("i", [1] * 64)) == 8181271006798496203
    assert root_key("a") == 17548568729252930709


def test_an_incomplete_block_is_not_there() -> None:
    mirror = Mirror()
    ledger = BlockLedger(mirror.take)
    ledger.begun(1, None, 0, "")
    ledger.extended(1, [1] * 63)
    ledger.settled()
    assert not mirror.blocks
    ledger.begun(2, 1, 63, "")
    ledger.extended(2, [1])
    ledger.settled()
    assert list(mirror.blocks) == block_keys([1] * 64)
    ledger.cut(2, 63)
    ledger.settled()
    assert not mirror.blocks


@pytest.mark.parametrize("pinned", [0, 128])
def test_a_prompt_that_is_reused_loses_its_old_end(pinned: int) -> None:
    mirror = Mirror()
    cache = PrefixCache(lambda _: None, max_num_sequence=4)
    cache.observer = BlockLedger(mirror.take)
    cache.begin(0, PrefixMatch())
    cache.extend(0, [1] * 192)
    cache.finish(0, pinned_length=pinned)
    cache.observer.settled()
    assert len(mirror.blocks) == (pinned or 192) // 64
