"""Attention over pages on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cuda_code import check_code
from emulated import Emulator

from mlc_llm.backends.cuda.formats import PAGE
from mlc_llm.kernels.cuda.attention import attention
from mlc_llm.kernels.cuda.attention_join import join
from mlc_llm.kernels.cuda.attention_sizes import FEW, LOG2E, SHARES, STATE, Sizes

pytestmark = pytest.mark.cuda
Array = npt.NDArray[Any]


@dataclass
class Case:
    """Sequences, each a number of places and how many of its last tokens are new."""

    heads: int
    kv_heads: int
    head_dim: int
    sequences: tuple[tuple[int, int], ...]
    window: tuple[int, int] = (1 << 30, 0)
    cap: float | None = None
    sinks: Array | None = None
    sink_query: bool = False

    def tables(self) -> tuple[Array, Array, Array]:
        """Places, query blocks and page ids; pages of different sequences alternate."""
        place, blocks, ids = [], [], []
        most = Sizes(self.head_dim, self.heads // self.kv_heads).tokens
        for number, (length, new) in enumerate(self.sequences):
            for start in range(0, new, most):
                blocks.append((len(place) + start, min(most, new - start), len(ids)))
            place += range(length - new, length)
            ids += [i * len(self.sequences) + number for i in range(-(-length // PAGE))]
        return tuple(np.array(one, np.int32) for one in (place, blocks, ids))  # type: ignore[return-value]

    def inputs(self) -> tuple[Array, Array]:
        """Queries, and pages; places that nobody wrote hold no numbers."""
        random = np.random.default_rng(self.head_dim)
        place, blocks, ids = self.tables()
        width, size = self.heads * self.head_dim, 2 * self.head_dim**-0.5
        shape = (len(place), 2 * width if self.sink_query else width)
        q = random.normal(size=shape, scale=size).astype(np.float32)
        pages = np.full((ids.max() + 1, self.kv_heads, 2, PAGE, self.head_dim), np.nan, np.float16)
        starts = dict.fromkeys(blocks[:, 2].tolist())
        for start, (length, _) in zip(starts, self.sequences, strict=True):
            for t in range(length):
                new = random.normal(size=(self.kv_heads, 2, self.head_dim))
                pages[ids[start + t // PAGE], :, :, t % PAGE] = new
        return q, pages

    def found(self, emulate: Emulator) -> Array:
        q, pages = self.inputs()
        flat = pages.reshape(*pages.shape[:3], -1)
        has_sinks = self.sinks is not None
        sizes, sinks = (self.heads, self.kv_heads, self.head_dim), (self.sinks,) * has_sinks
        window = np.array(self.window, np.int32)
        given = (q, flat, *self.tables(), window, *sinks)
        return attended(emulate, sizes, given, self.cap, sinks, sink_query=self.sink_query)

    def wanted(self) -> Array:
        q, pages = self.inputs()
        place, blocks, ids = self.tables()
        halves = 2 if self.sink_query else 1
        shape = (len(q), halves, self.kv_heads, -1, self.head_dim)
        split = q.astype(np.float64).reshape(shape) / LOG2E
        out = np.zeros_like(split[:, 0])
        for first, count, start in blocks:
            for row in range(first, first + count):
                t = np.arange(place[row] + 1)
                t = t[(t < self.window[1]) | (t > place[row] - self.window[0])]
                kv = pages[ids[start + t // PAGE], :, :, t % PAGE].astype(np.float64)
                of_sinks = t // PAGE * PAGE < self.window[1]
                out[row] = self._row(split[row], kv, of_sinks)
        return out.reshape(len(q), -1)

    def _row(self, q: Array, kv: Array, of_sinks: Array) -> Array:
        """q: [1 or 2, ...], the second for places of a page that has sinks."""
        scores, *others = np.einsum("nhgd,thd->nhgt", q, kv[:, :, 0])
        for one in others:
            scores = np.where(of_sinks, one, scores)
        if self.cap is not None:
            scores = self.cap * np.tanh(scores / self.cap)
        more = np.full((*scores.shape[:2], 1), -np.inf)
        if self.sinks is not None:
            more = self.sinks.reshape(more.shape)
        best = np.maximum(scores.max(axis=2, keepdims=True), more)
        weights = np.exp(scores - best)
        total = weights.sum(axis=2, keepdims=True) + np.exp(more - best)
        return np.einsum("hgt,thd->hgd", weights / total, kv[:, :, 1])


def attended(
    emulate: Emulator,
    sizes: tuple[int, int, int],
    given: tuple[Array, ...],
    cap: float | None = None,
    sinks: tuple[Array, ...] = (),
    *,
    has_first: bool = False,
    sink_query: bool = False,
) -> Array:
    """What both kernels make."""
    (heads, _, head_dim), place = sizes, given[2]
    shares = np.full((min(len(place), FEW), heads, SHARES, STATE + head_dim), np.nan, np.float32)
    kernel = attention(*sizes, cap, bool(sinks), has_first, sink_query=sink_query)
    out = np.zeros((len(place), heads * head_dim), np.float32)
    *_, shares, out = emulate(kernel, *given, shares, out)
    return emulate(join(heads, head_dim, bool(sinks)), place, *sinks, shares, out)[-1]


CASES = {
    "decode": Case(4, 2, 64, ((1, 1), (130, 1), (17, 1))),
    "a prompt": Case(2, 1, 80, ((133, 6),)),
    "many splits": Case(1, 1, 16, ((1300, 2),)),
    "a large step": Case(1, 1, 16, ((1200, 3), (70, 70))),
    "large heads": Case(1, 1, 264, ((20, 2),)),
    "larger heads in a large step": Case(2, 1, 512, ((FEW + 1, FEW + 1),)),
    "heads that share keys, in a large step": Case(8, 1, 40, ((200, 66), (5, 1)), window=(40, 3)),
    "many heads that share keys": Case(71, 1, 16, ((150, 1),)),
    "a cap and sinks in a large step": Case(
        2, 1, 72, ((90, 70),), cap=1.5, sinks=np.array([2.0, -1.0], np.float32)
    ),
    "a window": Case(2, 2, 64, ((300, 3),), window=(70, 0)),
    "a window with sinks": Case(2, 2, 64, ((300, 2),), window=(20, 4)),
    "sinks with queries of their own": Case(
        2, 1, 64, ((300, 2), (7, 3)), window=(20, 4), sink_query=True
    ),
    "the same on two pages, in a large step": Case(
        2, 1, 40, ((160, 66), (3, 1)), window=(40, 18), sink_query=True
    ),
    "the same in large heads, with learned sinks": Case(
        1,
        1,
        264,
        ((150, FEW + 1),),
        window=(60, 3),
        sink_query=True,
        sinks=np.array([0.5], np.float32),
    ),
    "queries for sinks, of which there are none": Case(
        2, 1, 64, ((90, 3),), window=(20, 0), sink_query=True
    ),
    "a cap": Case(2, 2, 64, ((40, 2),), cap=2.0),
    "learned sinks": Case(2, 1, 64, ((9, 1),), sinks=np.array([3.0, -2.0], np.float32)),
}


@pytest.mark.parametrize("name", CASES)
def test_what_each_token_sees(emulate: Emulator, name: str) -> None:
    found, wanted = CASES[name].found(emulate), CASES[name].wanted()
    assert np.allclose(found, wanted, rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize(
    ("heads", "head_dim", "window", "sink_query"),
    [
        (2, 16, (1 << 30, 0), False),
        (4, 136, (100, 5), False),
        (4, 64, (100, 18), True),
        (4, 136, (100, 5), True),
    ],
)
def test_a_token_alone_has_the_bits_that_it_has_in_a_prompt(
    emulate: Emulator, heads: int, head_dim: int, window: tuple[int, int], sink_query: bool
) -> None:
    case = Case(heads, 1, head_dim, ((1140 if heads == 2 else 290, FEW + 1),), window)
    case.sink_query = sink_query
    (q, pages), (place, blocks, ids) = case.inputs(), case.tables()
    near, sizes = np.array(case.window, np.int32), (heads, 1, head_dim)
    flat = pages.reshape(*pages.shape[:3], -1)
    given = (q, flat, place, blocks, ids, near)
    together = attended(emulate, sizes, given, sink_query=sink_query)  # a large step
    for row in (0, 17, FEW):
        one, own = slice(row, row + 1), np.array([[0, 1, 0]], np.int32)
        given = (q[one], flat, place[one], own, ids, near)
        alone = attended(emulate, sizes, given, sink_query=sink_query)
        assert alone.tobytes() == together[one].tobytes()


@pytest.mark.parametrize("reach", [9, 1000])
@pytest.mark.parametrize("lengths", [(1, 5, 40), (150, 17, 3)], ids=["a step", "a large step"])
def test_texts_that_are_seen_on_both_sides(
    emulate: Emulator, lengths: tuple[int, ...], reach: int
) -> None:
    """The texts of a step, as an encoder sees them: so many tokens before a token and behind it."""
    case = Case(2, 2, 64, tuple((count, count) for count in lengths))
    (q, pages), (_, blocks, ids) = case.inputs(), case.tables()
    place = np.array([min(i + reach, n - 1) for n in lengths for i in range(n)], np.int32)
    first = np.array([max(i - reach, 0) for n in lengths for i in range(n)], np.int32)
    window = np.array([1, 1], np.int32)  # is not read
    given = (q, pages.reshape(*pages.shape[:3], -1), place, blocks, ids, window, first)
    found, wanted = attended(emulate, (2, 2, 64), given, has_first=True), np.zeros(q.shape)
    split = q.astype(np.float64).reshape(len(q), 2, 1, 64) / LOG2E
    for start, count, page in blocks:
        for row in range(start, start + count):
            t = np.arange(first[row], place[row] + 1)
            kv = pages[ids[page + t // PAGE], :, :, t % PAGE].astype(np.float64)
            wanted[row] = case._row(split[row][None], kv, t < 0).reshape(-1)
    assert np.allclose(found, wanted, rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize("head_dim", [64, 80, 112, 128, 256, 512])
def test_machine_code(head_dim: int) -> None:
    wanted = {"HMMA", "LDSM", "LDGSTS", "STG", "SHFL"}
    check_code(attention(32, 8, head_dim), wanted)
    check_code(attention(32, 8, head_dim, sink_query=True), wanted)
    if head_dim < 128:
        check_code(attention(16, 16, head_dim, has_first=True), wanted)
    check_code(join(32, head_dim, has_sinks=True), wanted={"LDG", "STG"})


def test_every_gpu_has_the_shared_memory() -> None:
    """99 KiB of a block, on 8.6 and 8.9."""
    assert max(Sizes(head_dim, 4).words * 4 for head_dim in range(8, 513, 8)) <= 99 << 10
