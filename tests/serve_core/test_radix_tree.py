"""The tree against a plain dictionary of lists."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc_llm.errors import InvalidField
from mlc_llm.serve.core.radix_page import PAGE_TOKENS
from mlc_llm.serve.core.radix_tree import BLOCK_PAGES, PagedRadixTree

BLOCK = BLOCK_PAGES * PAGE_TOKENS
SIZES = [PAGE_TOKENS // 4, PAGE_TOKENS // 2, PAGE_TOKENS, PAGE_TOKENS * 3 // 2, PAGE_TOKENS * 2]


class Naive:
    """What the tree means, without a tree."""

    def __init__(self) -> None:
        self.all: dict[int, list[int]] = {}

    def match(self, tokens: list[int]) -> tuple[int, tuple[int, ...]]:
        lengths = {name: common(mine, tokens) for name, mine in self.all.items()}
        best = max(lengths.values(), default=0)
        return best, tuple(sorted(n for n, length in lengths.items() if length == best > 0))


def common(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def compare(tree: PagedRadixTree, naive: Naive, probes: list[list[int]]) -> None:
    tree.check_integrity()
    for name, tokens in naive.all.items():
        assert tree.get(name) == tokens and tree.get_length(name) == len(tokens)
        if tokens:
            assert tree.get_token(name, len(tokens) // 2) == tokens[len(tokens) // 2]
    for probe in probes:
        assert tree.match(probe) == naive.match(probe)


def tokens_like(rng: random.Random, naive: Naive) -> list[int]:
    """Often something that is there already, then something new: so that sequences meet."""
    known = rng.choice(list(naive.all.values())) if naive.all else []
    start = rng.randint(0, len(known))
    fresh = [rng.randrange(3) for _ in range(rng.choice([0, 1, 5, 63, 64, 65, 200]))]
    return known[start : rng.randint(start, len(known))] + fresh


def one_operation(rng: random.Random, tree: PagedRadixTree, naive: Naive, new: int) -> None:
    kinds = ["add", "extend", "extend", "fork", "rollback", "remove"]
    kind = rng.choice(kinds) if naive.all else "add"
    name = rng.choice(list(naive.all)) if naive.all else -1
    mine = naive.all.get(name, [])
    if kind == "add" or (kind == "fork" and not mine):
        tree.add(new)
        naive.all[new] = []
    elif kind == "extend":
        more = tokens_like(rng, naive)
        tree.extend(name, more)
        naive.all[name] = mine + more
    elif kind == "fork":
        offset = rng.randint(1, len(mine))
        tree.fork(new, name, offset)
        naive.all[new] = mine[:offset]
    elif kind == "rollback":
        count = rng.randint(0, len(mine))
        tree.rollback(name, count)
        naive.all[name] = mine[: len(mine) - count]
    else:
        tree.remove(name)
        del naive.all[name]


def test_ten_thousand_random_operations() -> None:
    rng, tree, naive = random.Random(7), PagedRadixTree(), Naive()
    for new in range(10_000):
        one_operation(rng, tree, naive, new)
        while len(naive.all) > 12:
            name = rng.choice(list(naive.all))
            tree.remove(name)
            del naive.all[name]
        probe = tokens_like(rng, naive)
        assert tree.match(probe) == naive.match(probe)
        if new % 20 == 0:
            compare(tree, naive, [mine[:-1] for mine in naive.all.values()])
    for name in list(naive.all):
        tree.remove(name)
    tree.check_integrity()
    assert tree.free_capacity() == BLOCK


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_short_random_programs(seed: int, length: int) -> None:
    rng, tree, naive = random.Random(seed), PagedRadixTree(), Naive()
    for new in range(length):
        one_operation(rng, tree, naive, new)
        compare(tree, naive, [tokens_like(rng, naive)])
    tree.reset()
    tree.check_integrity()
    assert tree.free_capacity() == BLOCK and not any(map(tree.has, naive.all))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("other_size", SIZES)
def test_capacity_comes_back_after_removal(size: int, other_size: int) -> None:
    tree = PagedRadixTree()
    tree.add(0)
    tree.extend(0, [1] * size)
    before = tree.free_capacity()
    assert before == BLOCK - -(-size // PAGE_TOKENS) * PAGE_TOKENS
    tree.add(1)
    tree.extend(1, [1] * (other_size // 2) + [2] * (other_size - other_size // 2))
    tree.fork(2, 0, max(1, size // 2))
    tree.extend(2, [3] * other_size)
    assert tree.get(2) == [1] * (size // 2) + [3] * other_size
    tree.remove(1)
    tree.remove(2)
    tree.check_integrity()
    assert tree.free_capacity() == before and tree.get(0) == [1] * size


@pytest.mark.parametrize("size", SIZES)
def test_equal_sequences_take_the_pages_of_one(size: int) -> None:
    tree = PagedRadixTree()
    for name in range(50):
        tree.add(name)
        tree.extend(name, range(size))
    assert tree.free_capacity() == BLOCK - -(-size // PAGE_TOKENS) * PAGE_TOKENS
    assert tree.match(range(size + 9)) == (size, tuple(range(50)))
    for name in range(50):
        tree.rollback(name, size)
    assert tree.free_capacity() == BLOCK and tree.get(0) == []


def test_capacity_grows_by_blocks() -> None:
    tree = PagedRadixTree()
    assert tree.free_capacity() == BLOCK
    tree.add(0)
    tree.extend(0, range(BLOCK))
    assert tree.free_capacity() == 0
    tree.extend(0, [1])
    assert tree.free_capacity() == BLOCK - PAGE_TOKENS


def test_match_names_all_that_share_and_none_without_a_common_token() -> None:
    tree = PagedRadixTree()
    assert tree.match([1, 2]) == (0, ()) and tree.match([]) == (0, ())
    for name, tokens in {5: [1, 2, 3], 3: [1, 2, 4], 4: [1], 9: []}.items():
        tree.add(name)
        tree.extend(name, tokens)
    assert tree.match([1, 2, 9]) == (2, (3, 5))
    assert tree.match([1]) == (1, (3, 4, 5)) and tree.match([7]) == (0, ())


def test_decoding_one_token_a_time_fills_pages() -> None:
    tree = PagedRadixTree()
    tree.add(0)
    for token in range(200):
        tree.extend(0, [token])
    assert tree.get(0) == list(range(200)) and tree.free_capacity() == BLOCK - 4 * PAGE_TOKENS


@pytest.mark.parametrize(
    ("method", "arguments", "named"),
    [
        ("add", (0,), "seq_id = 0"),
        ("add", ("a",), "seq_id = 'a'"),
        ("add", (True,), "seq_id = True"),
        ("remove", (7,), "seq_id = 7"),
        ("extend", (7, [1]), "seq_id = 7"),
        ("extend", (0, [2**31]), "tokens"),
        ("extend", (0, [1.5]), "tokens"),
        ("extend", (0, b"abcd"), "tokens"),
        ("extend", (0, None), "tokens"),
        ("match", ("ab",), "tokens"),
        ("rollback", (7, 0), "seq_id = 7"),
        ("rollback", (0, 4), "num_tokens = 4"),
        ("rollback", (0, -1), "num_tokens = -1"),
        ("fork", (0, 0, 1), "seq_id = 0"),
        ("fork", (1, 7, 1), "seq_id = 7"),
        ("fork", (1, 0, 0), "offset = 0"),
        ("fork", (1, 0, 4), "offset = 4"),
        ("get", (7,), "seq_id = 7"),
        ("get_length", (7,), "seq_id = 7"),
        ("get_token", (0, 3), "position = 3"),
    ],
)
def test_misuse_is_refused_and_changes_nothing(
    method: str, arguments: tuple[Any, ...], named: str
) -> None:
    tree = PagedRadixTree()
    tree.add(0)
    tree.extend(0, [1, 2, 3])
    with pytest.raises(InvalidField) as caught:
        getattr(tree, method)(*arguments)
    assert named in str(caught.value)
    tree.check_integrity()
    assert tree.get(0) == [1, 2, 3] and not tree.has(1)
