"""The tasks of attention: which query block, KV head and KV split a task has, and in which order.

A query block of one token is a task for each KV split and KV head. It has a part for the result of
each split. A query block of several tokens is one task for each KV head; it has room for one part
or more and uses none.

    task number, of a query block's first part p, with w parts:  p * kv_heads ...
        KV split = number % w,  KV head = number // w

A worker does several tasks, one after the other.
"""

from __future__ import annotations

from tvm.script import tirx as T

from mlc_llm.kernels.cpu.attention_shape import KV_SPLIT, Arguments
from mlc_llm.kernels.types import Buffer, Expr, Index
from mlc_llm.record import record

SPREAD = 16
"""Tasks that follow each other are so many steps of the whole work apart: later tokens of a prompt
see more than earlier ones, and every thread gets a stretch of tasks."""


WORKERS, WORKER_TASKS, MOST_WORKERS = 64, 8, 1024
"""There are so many workers, or, up to the last number, so many tasks for each: enough that all
threads finish together. (A worker's number times that of all tasks has to be an int32.)"""


@record(eq=False)
class Task:
    """What a task computes, each number int32 [1]."""

    number: Buffer
    """The task's number among all tasks; then its number in its query block."""
    block: Buffer
    """The query block."""
    first_part: Buffer
    """Where the parts of the query block begin."""
    part_count: Buffer
    """Parts that the query block has room for."""
    split: Buffer
    """The KV split, for a query block of one token."""
    kv_head: Buffer


def new_task() -> Task:
    """Scratch for a task, with nothing in it.

    Numbers in buffers, not names: a name is spelt out again wherever it is used, and compiling
    takes three times as long.
    """
    return Task(*(T.alloc_buffer((1,), "int32") for _ in range(6)))


def _first_part(given: Arguments, block: Index) -> Expr:
    """Where the parts of a query block begin.

    A block of a sequence that decodes has enough parts. The blocks of a prompt share a page list,
    and all but the last have one part.
    """
    return given.blocks[block, 2] // KV_SPLIT + block


def count_parts(given: Arguments) -> Expr:
    """The parts of all query blocks."""
    return given.id_count // KV_SPLIT + given.block_count


@T.inline
def find_parts(given, block, first_part, part_count):
    """The parts of a query block: the first one, and how many."""
    first_part[0] = _first_part(given, block)
    part_count[0] = count_parts(given) - first_part[0]
    if block + 1 < given.block_count:
        part_count[0] = given.blocks[block + 1, 2] // KV_SPLIT + block + 1 - first_part[0]


@T.inline
def find_block(shape, given, task):
    """The last query block whose tasks begin at this one or before, by bisection."""
    above = T.alloc_buffer((1,), "int32")
    middle = T.alloc_buffer((1,), "int32")
    task.block[0] = 0
    above[0] = given.block_count
    while above[0] - task.block[0] > 1:
        middle[0] = (task.block[0] + above[0]) // 2
        if _first_part(given, middle[0]) * shape.kv_heads <= task.number[0]:
            task.block[0] = middle[0]
        else:
            above[0] = middle[0]
    find_parts(given, task.block[0], task.first_part, task.part_count)


def spread_stride(tasks: Expr, is_prompt: Expr) -> Expr:
    """The `stride` of `spread`: 1 where every token decodes."""
    return T.if_then_else(is_prompt, T.max(tasks // SPREAD // 2, 1), 1)


def spread_count(tasks: Expr, stride: Index) -> Expr:
    """How many numbers `spread` takes: a few more than there are tasks."""
    return (tasks + stride - 1) // stride * stride


def worker_count(tasks: Expr) -> Expr:
    """How many workers do so many tasks."""
    return T.min(tasks, T.min(T.max(WORKERS, tasks // WORKER_TASKS), MOST_WORKERS))


def spread(u: Expr, tasks: Expr, stride: Index) -> Expr:
    """A different task for each u; neighbours of u are a part in `stride` of all tasks apart."""
    columns = (tasks + stride - 1) // stride
    return u % stride * columns + u // stride
