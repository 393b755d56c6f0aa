"""Tasks that threads claim: whoever has done its own helps the others. x86 only.

    for start in tasks:                        parallel
      if nobody has found all tasks claimed:
        claim the first task from `start` on that is free, and do it, until none is free

claims  int32 [tasks + 1]   1 for a task that a thread has claimed; the last one: all are claimed
state   int32 [STATE, ...]  what a thread remembers: how many tasks it has looked at (SEEN), and the
                            task that it has claimed (CLAIMED; the number of tasks means none)
"""

from __future__ import annotations

from tvm.script import tirx as T

from mlc_llm.backends.cpu.isa import AMX, AVX2, AVX_VNNI, VNNI, VNNI_BF16, Isa
from mlc_llm.kernels.types import Buffer, Expr, Index

X86 = [isa.name for isa in (AMX, VNNI_BF16, VNNI, AVX_VNNI, AVX2)]
SEEN, CLAIMED = range(2)
STATE = 2


def can_claim(isa: Isa) -> bool:
    """Whether the instruction set has what claims need."""
    return isa.name in X86


def _set(claims: Buffer, task: Index) -> Expr:
    """0 for the one thread that asks first for claims[task], which is 0 before."""
    bit = T.address_of(claims[task])
    return T.call_llvm_intrin("int32", "llvm.x86.atomic.bts", bit, T.int8(0))


@T.inline
def clear_claims(claims, tasks):
    """All tasks are free."""
    for i in T.serial(tasks + 1):
        claims[i] = T.int32(0)


@T.inline
def claim(claims, state, start, tasks):
    """state[CLAIMED]: the next free task from `start` on, now claimed, or `tasks`."""
    state[CLAIMED] = tasks
    while state[CLAIMED] == tasks and state[SEEN] < tasks:
        if _set(claims, (start + state[SEEN]) % tasks) == 0:
            state[CLAIMED] = (start + state[SEEN]) % tasks
        state[SEEN] = state[SEEN] + 1
