"""Quantises rows to 16 bits: what a kernel does with a row, whatever its kind.

    for stretch in stretches of the columns:
      for g in groups of the stretch:
        v[g] = what the kind makes of X[row, g]     `row_kinds.py`
        top[g] = max |v[g]|
      scale = top / LIMIT                           of all its groups at once
      for g in groups of the stretch:
        q = round(v[g] / scale[g])
        write planes of q
      for g in groups of the stretch:
        write scale[g], sum of q, scale[g] * sum of q

Each of these loops has short chains of instructions, so that a processor works on several groups at
once: with one loop for all it waited for maxima and quotients.

`quantized_width` has what is written of a group, unless a target says otherwise (`row_panels.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import WeightFormat
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.dot import Words
from mlc_llm.kernels.cpu.input_kinds import find_statistics, load
from mlc_llm.kernels.cpu.prefetch import LINE_BYTES, prefetch
from mlc_llm.kernels.cpu.vectors import block_sums, fsplat, lanes_at, maxima, splat
from mlc_llm.kernels.row_kinds import KINDS, input_width
from mlc_llm.kernels.types import Buffer, Expr, Index
from mlc_llm.record import record

LIMIT = 32512
"""Largest 16-bit activation: its high byte, rounded, still fits a signed byte."""
SCALE, SUM, SCALED_SUM = range(3)
"""The words that describe a group, or the high plane of one."""
DESCRIPTION = 3
"""How many they are."""
STRETCH = 128
"""Columns of a stretch. Their buffers are on the stack, where TVM keeps less than a KiB."""
LINE, AHEAD = LINE_BYTES // 4, 2 * STRETCH
"""Columns of a cache line, and how far ahead a row is asked for."""
ROW, PLACE, FIRST, COUNT = range(4)
"""What a thread keeps of its part of a row, in a buffer: TVM writes a number with a name out
wherever it is read, and a quotient whose sign it cannot tell is a long expression."""
PART, NORM_PART, MOST_PARTS = 256, 512, 16
"""Columns of a part of a row, of one whose norm is looked for, and parts at most."""


def quantized_width(group: int) -> int:
    """32-bit words of a quantised group: its values, then two descriptions."""
    return group // 2 + 2 * DESCRIPTION


def description(X: Buffer, row: Index, group: Index, size: int, is_high: bool) -> Words:
    """The words that describe a group (of `size` columns) of quantised rows, or its high plane."""
    start = size // 2 + (DESCRIPTION if is_high else 0)
    return lambda word: X[row, group, start + word]


def magnitude(x: Expr, lanes: int) -> Expr:
    """Bits of |x|. They order as integers do, with NaN above all, so a maximum keeps each NaN."""
    return T.reinterpret(T.abs(x), dtype=f"int32x{lanes}")


def high_bytes(q: Expr, lanes: int, number: Callable[[int], Expr] = T.int16) -> Expr:
    """The high bytes of integers of 16 bits, rounded so that the low bytes are signed. number:
    makes integers of the type that holds them."""
    return T.shift_right(q + splat(number(128), lanes), splat(number(8), lanes))


def rounded(x: Expr, lanes: int) -> Expr:
    """The nearest integers; of two that are as near the even one."""
    return T.call_llvm_pure_intrin("llvm.lrint", x, dtype=f"int32x{lanes}")


def pack_plane(isa: Isa, q: Expr, plane: int, group: int) -> Expr:
    """The words of a plane; q: the integers of a group, of 32 bits each."""
    quads = group // 4
    halves = T.reinterpret(q, dtype=f"int16x{2 * group}")  # the lower ones are in even places
    if isa.sums == 1:
        pairs = [(plane + odd) * quads + j for j in range(quads) for odd in (0, 2)]
        return T.reinterpret(T.Shuffle([halves], [2 * i for i in pairs]), dtype=f"int32x{quads}")
    order = [i * quads + j for j in range(quads) for i in range(4)]
    part = T.Shuffle([halves], [2 * i for i in order])
    if plane == 0:
        part = high_bytes(part, group)
    return T.reinterpret(T.cast(part, f"int8x{group}"), dtype=f"int32x{quads}")


def narrowed_sum(q: Expr, lanes: int, wanted: int) -> Expr:
    """Sums of lanes of a vector, as many as are wanted."""
    if lanes == wanted:
        return q
    half = f"int32x{lanes // 2}"
    return narrowed_sum(T.vectorlow(half, q) + T.vectorhigh(half, q), lanes // 2, wanted)


@record(eq=False)
class Target:
    """What rows are quantised into.

    at: where the buffer has a word of a row and group. planes: how many are written. whole, high:
    the first word that describes all planes, or the high one; None: it is not described. fmt: of
    the only weights that read it; None: any weights may.
    """

    buffer: Buffer
    at: Callable[[Index, Index, Index], tuple[Index, ...]]
    planes: int
    whole: int | None
    high: int | None
    fmt: WeightFormat | None = None


class QuantizedRows:
    """Statements that quantise. A group is four vectors, one for each byte of a word."""

    def __init__(self, kind: str, k: int, group: int, isa: Isa, eps: float) -> None:
        self.kind, self.k, self.group, self.isa, self.eps = kind, k, group, isa, eps
        self.lanes = group // 4
        self.lane = lanes_at(0, self.lanes)
        self.wide = min(isa.lanes, group)
        self.together = STRETCH // group

    def usual(self, Y: Buffer) -> Target:
        """Y, int32 [m, k/group, `quantized_width`], as the target."""
        high = 2 * self.lanes + DESCRIPTION if self.isa.sums == 2 else None
        return Target(Y, lambda row, g, word: (row, g, word), 2, 2 * self.lanes, high)

    @T.inline
    def quantize(self, given, Y, row):
        """One row, into Y."""
        self.quantize_groups(given, row, self.usual(Y), row, 0, self.k // self.group)

    @T.inline
    def quantize_groups(self, given, row, target, place, first, count):
        """`count` groups of a row, from number `first` on; place: the row of the target."""
        inv = T.alloc_buffer((KINDS[self.kind].statistics,), "float32")
        v = T.alloc_buffer((self.together, self.group), "float32")
        top = T.alloc_buffer((self.together * self.wide,), "int32")
        scale = T.alloc_buffer((self.together,), "float32")
        step = T.alloc_buffer((self.together,), "float32")
        find_statistics(self.kind, given.x, row, self.k, self.eps, inv)
        for stretch in T.serial(T.ceildiv(count, self.together)):
            start = T.meta_var(stretch * self.together)
            for i in T.serial(T.min(self.together, count - start)):
                self.load_group(given, row, first + start + i, inv, v, i, top)
            self.find_scales(top, scale, step)
            self.store_groups(
                target, place, first + start, T.min(self.together, count - start), v, scale, step
            )

    @T.inline
    def ask(self, given, row, g):
        """Asks for what comes behind group g, in this row or the next one. Many rows come from
        another core, and the processor's own prefetching was late for them."""
        for half in T.unroll(input_width(self.kind, self.k) // self.k):
            for line in T.unroll(-(-self.group // LINE)):
                column = T.meta_var(half * self.k + g * self.group + line * LINE)
                T.evaluate(prefetch(given.x, row, column + AHEAD))

    @T.inline
    def load_group(self, given, row, g, inv, v, i, top):
        """Loads group g to v[i]; top[i]: the bits of largest magnitudes, lane by lane."""
        most = T.meta_var(lanes_at(i * self.wide, self.wide))
        self.ask(given, row, g)
        for j in T.unroll(self.group // self.wide):
            lanes = T.meta_var(lanes_at(j * self.wide, self.wide))
            v[i, lanes] = load(
                *(self.kind, given, row, g * self.group + j * self.wide),
                *(self.k, inv, self.wide),
            )
            if j == 0:
                top[most] = magnitude(v[i, lanes], self.wide)
            else:
                top[most] = T.max(top[most], magnitude(v[i, lanes], self.wide))

    @T.inline
    def find_scales(self, top, scale, step):
        """The scales of all groups of a stretch; step: 1 / scale, or 0 for zeros. Maxima of lanes
        come from memory as they went there: numbers written one by one and read as a vector made
        the processor wait for all writes."""
        L, all_lanes = T.meta_var((self.together, self.together * self.wide))
        here = T.meta_var(lanes_at(0, L))
        largest = T.meta_var(maxima(top[lanes_at(0, all_lanes)], all_lanes, self.wide))
        scale[here] = T.reinterpret(largest, dtype=f"float32x{L}") * fsplat(1.0 / LIMIT, L)
        step[here] = T.Select(
            scale[here] > fsplat(0.0, L), fsplat(1.0, L) / scale[here], fsplat(0.0, L)
        )

    @T.inline
    def store_groups(self, target, place, first, count, v, scale, step):
        """Rounds v to integers; writes their planes as `count` groups, and describes them."""
        whole = T.alloc_buffer((self.together * self.wide,), "int32")
        high = T.alloc_buffer((self.together * self.wide,), "int32")
        for i in T.serial(count):
            self.store_group(target, place, first + i, v, i, step[i], whole, high)
        if target.whole is not None:
            self.describe(target, place, first, count, target.whole, whole, scale, 1)
        if target.high is not None:
            self.describe(target, place, first, count, target.high, high, scale, 256)

    @T.inline
    def store_group(self, target, place, g, v, i, step, whole, high):
        """Writes the planes of v[i] as group g. whole[i], high[i]: sums of the integers and of
        their high bytes, lane by lane."""
        q = T.alloc_buffer((self.group,), "int32")
        Y, all_lanes = T.meta_var((target.buffer, lanes_at(0, self.group)))
        sums = T.meta_var(lanes_at(i * self.wide, self.wide))
        q[all_lanes] = rounded(v[i, all_lanes] * splat(step, self.group), self.group)
        Y[target.at(place, g, self.lane)] = pack_plane(self.isa, q[all_lanes], 0, self.group)
        if target.planes == 2:
            low = T.meta_var(lanes_at(self.lanes, self.lanes))
            Y[target.at(place, g, low)] = pack_plane(self.isa, q[all_lanes], 1, self.group)
        if target.whole is not None:
            whole[sums] = narrowed_sum(q[all_lanes], self.group, self.wide)
        if target.high is not None:
            rounded_down = T.meta_var(high_bytes(q[all_lanes], self.group, T.int32))
            high[sums] = narrowed_sum(rounded_down, self.group, self.wide)

    @T.inline
    def describe(self, target, place, first, count, start, partial, scale, factor):
        """Writes SCALE, SUM and SCALED_SUM of `count` groups from word `start` on; or SCALE and
        what the target's weights need beside it."""
        sums = T.alloc_buffer((self.together,), "int32")
        scales = T.alloc_buffer((self.together,), "float32")
        scaled = T.alloc_buffer((self.together,), "float32")
        Y, fmt, L = T.meta_var((target.buffer, target.fmt, self.together))
        here, all_lanes = T.meta_var((lanes_at(0, L), L * self.wide))
        sums[here] = block_sums(partial[lanes_at(0, all_lanes)], all_lanes, self.wide)
        scales[here] = scale[here] * fsplat(float(factor), L)
        scaled[here] = T.cast(sums[here], f"float32x{L}") * scales[here]
        for i in T.serial(count):
            g = T.meta_var(first + i)
            Y[target.at(place, g, start + SCALE)] = T.reinterpret(scales[i], dtype="int32")
            if fmt is None:
                Y[target.at(place, g, start + SUM)] = sums[i]
                Y[target.at(place, g, start + SCALED_SUM)] = T.reinterpret(scaled[i], dtype="int32")
            elif fmt.has_minimum:
                Y[target.at(place, g, start + 1)] = T.reinterpret(scaled[i], dtype="int32")
            else:
                Y[target.at(place, g, start + 1)] = sums[i] * T.int32(-fmt.offset)


class SharedRows(QuantizedRows):
    """The same within a launch: few rows are cut into parts, so that all threads have some."""

    @property
    def parts(self) -> int:
        """Parts of a row. Each looks for the statistics of a norm anew."""
        per = NORM_PART if KINDS[self.kind].norm else PART
        return max(1, min(self.k // per, MOST_PARTS))

    @T.inline
    def quantize_all(self, given, Y, start, m):
        """Rows `start` to `start + m`, on the threads of a launch, into the same rows of Y."""
        self.quantize_some(
            given, self.usual(Y), m, lambda row: start + row, lambda row: start + row
        )

    @T.inline
    def quantize_some(self, given, target, m, source, place):
        """m rows, on the threads of a launch. source, place: the row of X and of the target."""
        parts: T.let[T.int32] = T.if_then_else(m < MOST_PARTS, self.parts, 1)
        groups: T.let[T.int32] = T.truncdiv(self.k // self.group + parts - 1, parts)
        for u in T.parallel(m * parts):
            at = T.alloc_buffer((4,), "int32")
            at[ROW] = source(T.truncdiv(u, parts))
            at[PLACE] = place(T.truncdiv(u, parts))
            at[FIRST] = T.truncmod(u, parts) * groups
            at[COUNT] = T.min(groups, self.k // self.group - at[FIRST])
            self.quantize_groups(given, at[ROW], target, at[PLACE], at[FIRST], at[COUNT])
