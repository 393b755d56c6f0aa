"""Tokens of a step that have the same LoRA adapter, found once for all matrices.

    for each token block:
      groups = tokens of the block that have the same adapter

slots   int32 [m]: the adapter of a token, -1 for none
groups  int32 [2 m + 2]: their number; where each begins in the list, and behind the last one where
        it ends; the list of tokens with an adapter, group by group, which begins at m + 2
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.cpu.vectors import SCHEDULED
from mlc_llm.kernels.types import Buffer, Expr, Index
from mlc_llm.record import record

TOKENS = 32
"""Tokens of a token block."""


@record(eq=False)
class Groups:
    """What a kernel reads of the two tensors."""

    slots: Buffer
    table: Buffer

    @property
    def count(self) -> Expr:
        return self.table[0]

    @property
    def tokens(self) -> Expr:
        """Tokens with an adapter."""
        return self.first(self.count)

    def first(self, group: Index) -> Expr:
        """Where a group begins in the list."""
        return self.table[group + 1]

    def token(self, at: Index) -> Expr:
        """A token of the list."""
        return self.table[self.slots.shape[0] + 2 + at]

    def slot(self, group: Index) -> Expr:
        """The adapter of a group."""
        return self.slots[self.token(self.first(group))]


def table_size(m: Index) -> Index:
    """Numbers of `groups`."""
    return m * 2 + 2


@cache
def group_tokens() -> PrimFunc:
    """Kernel of (slots, groups)."""

    @T.prim_func(private=True, s_tir=True)
    def group(slots: T.handle, groups: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        S = T.match_buffer(slots, (m,), "int32")
        G = T.match_buffer(groups, (table_size(m),), "int32")
        with T.sblock("root"):
            is_first = T.alloc_buffer((1,), "int32")
            end = T.alloc_buffer((1,), "int32")
            G[0] = 0
            G[1] = 0
            for t in T.serial(m):
                is_first[0] = T.if_then_else(S[t] >= 0, 1, 0)
                for i in T.serial(t % TOKENS):
                    if S[t - t % TOKENS + i] == S[t]:
                        is_first[0] = 0
                if is_first[0] > 0:
                    end[0] = G[G[0] + 1]
                    for i in T.serial(T.min(m - t, TOKENS - t % TOKENS)):
                        if S[t + i] == S[t]:
                            G[m + 2 + end[0]] = t + i
                            end[0] = end[0] + 1
                    G[0] = G[0] + 1
                    G[G[0] + 1] = end[0]

    return group
